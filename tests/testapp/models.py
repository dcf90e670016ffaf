"""Models of every shape a user's table may have; ``tests.factories`` fills them."""

import uuid
from typing import Any

from django.db import connection, models

from django_taskclaim.fields import PriorityField
from django_taskclaim.models import ClaimMixin, PrefixedTaskMixin, RangeMixin, TaskMixin
from django_taskclaim.querysets import ClaimManager, ClaimQuerySet


class Payload(models.Model):
    """What the user keeps in the row: something to write results to, in any shape."""

    note = models.TextField(blank=True, default="")
    counter = models.IntegerField(default=0)

    class Meta:
        abstract = True


class Photo(TaskMixin, Payload):
    """The plain one."""

    url = models.CharField(max_length=200, blank=True, default="")
    country = models.CharField(max_length=2, blank=True, default="")
    width = models.IntegerField(null=True, blank=True)
    height = models.IntegerField(null=True, blank=True)


class PhotoProxy(Photo):
    class Meta:
        proxy = True


class ClaimOnly(ClaimMixin, Payload):
    """No attempts, no waiting time, no error texts, no priority."""


class UuidKey(TaskMixin, Payload):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    # Its forms have it.
    priority = PriorityField(default=0, db_default=0)


class TextKey(TaskMixin, Payload):
    key = models.CharField(primary_key=True, max_length=100)


class CompositeKey(TaskMixin, Payload):
    pk = models.CompositePrimaryKey("tenant", "number")
    tenant = models.IntegerField()
    number = models.IntegerField()
    #: Django would call an expression by this name.
    value1 = models.TextField(default="")


class Parent(TaskMixin, Payload):
    """Keeps the claim columns that ``Child`` inherits."""


class Child(Parent):
    """Its claim columns are in another table than its own ones."""

    extra = models.TextField(blank=True, default="")


class PlainParent(Payload):
    """Knows nothing of claims."""


class ChildOwnsClaim(PlainParent, TaskMixin):
    """Its claim columns are in its own table, its key and payload in the parent's."""

    extra = models.TextField(blank=True, default="")


class ChildProxy(ChildOwnsClaim):
    class Meta:
        proxy = True


class LoudQuerySet(ClaimQuerySet):
    """A user's own queryset with a method of its own."""

    def loud(self) -> Any:
        return self.filter(note__endswith="!")


class VisibleManager(ClaimManager.from_queryset(LoudQuerySet)):  # type: ignore[misc]
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(hidden=False)


class HiddenRows(TaskMixin, Payload):
    """Its default manager does not show all of its rows."""

    hidden = models.BooleanField(default=False)

    objects = VisibleManager()
    everything = ClaimManager()


class ReservedWords(TaskMixin, Payload):
    """Names that need quoting everywhere."""

    key = models.AutoField(primary_key=True, db_column="key")
    note = models.TextField(blank=True, default="", db_column="select")
    counter = models.IntegerField(default=0, db_column="group")

    class Meta:
        db_table = "order"


class AModelWhoseNameIsLongerThanAnyDatabaseAcceptsForATableOrAnIndexName(TaskMixin, Payload):
    """Django shortens its table name, and index names have 30 characters for any name of the class."""


class Author(models.Model):
    name = models.CharField(max_length=50)


class OrderedByForeignKey(TaskMixin, Payload):
    """A default ordering that joins another table, over a key that may be missing."""

    author = models.ForeignKey(Author, on_delete=models.CASCADE, null=True, blank=True)

    class Meta:
        ordering = ["author__name"]


class PrefixedOwnStatus(PrefixedTaskMixin, Payload):
    """The user's own ``status`` and ``priority`` mean something else than ours."""

    status = models.CharField(max_length=20, default="draft")
    priority = models.CharField(max_length=20, default="whenever")


class Ledger(models.Model):
    """Append-only: who did what to which row. Not claimable."""

    model = models.CharField(max_length=200)
    key = models.TextField()
    worker = models.TextField(blank=True, default="")
    note = models.TextField(blank=True, default="")
    at = models.DateTimeField(auto_now_add=True)


class Job(TaskMixin, Payload):
    """What the tests of the worker have done by real processes: ``act`` says what the handler does."""

    act = models.CharField(max_length=50, default="work")


class AtomicJob(Job):
    """The same rows, done by an atomic handler."""

    class Meta:
        proxy = True


class BatchJob(Job):
    """The same rows, done in batches."""

    class Meta:
        proxy = True


class AtomicBatchJob(Job):
    """The same rows, done in batches, each batch in one transaction."""

    class Meta:
        proxy = True


class AsyncJob(Job):
    """The same rows, done by a coroutine function."""

    class Meta:
        proxy = True


class QuickJob(Job):
    """The same rows, done by a handler that does nothing."""

    class Meta:
        proxy = True


class Effect(models.Model):
    """What an atomic handler writes beside its row; not claimable."""

    key = models.TextField()


class Source(models.Model):
    """What ranges are of: a counter that says how often each row was worked on. Not claimable."""

    counter = models.IntegerField(default=0)

    class Meta:
        abstract = True


class IntSource(Source):
    pass


class UuidSource(Source):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


class TextSource(Source):
    key = models.CharField(primary_key=True, max_length=100)


class CompositeSource(Source):
    pk = models.CompositePrimaryKey("tenant", "number")
    tenant = models.IntegerField()
    number = models.IntegerField()


class IntRange(RangeMixin, TaskMixin):
    source = IntSource

    #: A column of the user's own.
    note = models.TextField(blank=True, default="")


class UuidRange(TaskMixin, RangeMixin):
    source = "testapp.UuidSource"

    name = models.CharField(max_length=40, null=True, unique=True)


class TextRange(RangeMixin, PrefixedTaskMixin):
    source = TextSource


class CompositeRange(RangeMixin, ClaimMixin):
    source = CompositeSource


class LogSource(models.Model):
    """Lines that others write all the time."""

    counter = models.IntegerField(default=0)


class LogRange(RangeMixin, TaskMixin):
    source = LogSource
    growing = True
    plan_ahead = 10
    commits_within = 2 if connection.vendor == "mysql" else None


class PhotoRange(RangeMixin, TaskMixin):
    """Ranges of rows that can be claimed themselves."""

    source = Photo
