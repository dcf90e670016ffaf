"""Models whose classes have just got a mixin, and whose tables, by the migrations, have not."""

from django.db import models

from django_taskclaim.models import PrefixedTaskMixin, TaskMixin


class Parcel(TaskMixin):
    """An outbox with a past."""

    address = models.CharField(max_length=100)

    def process(self) -> None:
        """Sent, as far as anybody here cares."""


class Letter(PrefixedTaskMixin):
    """It has a status of its own."""

    status = models.CharField(max_length=20, default="written")

    class Meta:
        db_table = "group"


class Taken(TaskMixin):
    """Its table has had a status before."""


class New(TaskMixin):
    """No migration makes its table."""


class Legacy(TaskMixin):
    class Meta:
        managed = False
