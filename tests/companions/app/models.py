"""Tables that may not be altered, and companions of them. Django's migrations make none; see ``apps``."""

import uuid

from django.db import models

from django_taskclaim.models import ClaimMixin, SourceKey, SourceMixin, TaskMixin


class Page(models.Model):
    """A legacy table with a text key and a status of its own."""

    slug = models.CharField(primary_key=True, max_length=60)
    title = models.CharField(max_length=100, default="")
    status = models.CharField(max_length=20, default="published")
    words = models.IntegerField(null=True)
    visits = models.IntegerField(default=0)

    class Meta:
        managed = False
        db_table = "legacy_page"


class PageTask(SourceMixin, TaskMixin):
    """The plain one."""

    source = models.OneToOneField(Page, models.DO_NOTHING, db_constraint=False)

    class Meta:
        managed = False


class PageCheck(SourceMixin, ClaimMixin):
    """A second piece of work on the same table; its key is the source's, and Python makes one of its values."""

    source = models.OneToOneField(Page, models.DO_NOTHING, db_constraint=False, primary_key=True)
    number = models.UUIDField(default=uuid.uuid4, unique=True)
    verdict = models.CharField(max_length=10, default="none")

    class Meta:
        managed = False


class Line(models.Model):
    """A composite key, one part of which is a link."""

    pk = models.CompositePrimaryKey("page", "number")
    page = models.ForeignKey(Page, models.DO_NOTHING, db_constraint=False)
    number = models.IntegerField()
    text = models.CharField(max_length=100, default="")
    length = models.IntegerField(null=True)

    class Meta:
        managed = False
        db_table = "legacy_line"


class LineTask(SourceMixin, TaskMixin):
    source = SourceKey(Line)

    class Meta:
        managed = False


class FarPage(models.Model):
    """On another database."""

    number = models.BigAutoField(primary_key=True)
    title = models.CharField(max_length=100, default="")

    class Meta:
        managed = False


class FarTask(SourceMixin, TaskMixin):
    source = SourceKey(FarPage)
    title = models.CharField(max_length=100, default="")

    class Meta:
        managed = False


class Task(TaskMixin):
    """Claimable by itself."""

    note = models.CharField(max_length=50, default="")

    class Meta:
        managed = False


class TaskAudit(SourceMixin, TaskMixin):
    """A second piece of work on a table that is claimed by itself."""

    source = models.OneToOneField(Task, models.CASCADE)
    #: Nothing that a companion should have: only one row can be there.
    only = models.CharField(max_length=5, default="one", unique=True)

    class Meta:
        managed = False


class Draft(models.Model):
    """Known by a code, once it has one."""

    code = models.CharField(max_length=20, null=True, unique=True)

    class Meta:
        managed = False


class DraftTask(SourceMixin, ClaimMixin):
    source = models.OneToOneField(Draft, models.CASCADE, to_field="code", null=True)

    class Meta:
        managed = False


TABLES = [Page, PageTask, PageCheck, Line, LineTask, FarPage, FarTask, Task, TaskAudit]
TABLES += [Draft, DraftTask]
