"""The work, what is known of it, and what was done to its workers."""

from typing import Any

from django.db import models

from django_taskclaim.fields import CounterField, HolderField, MomentField
from django_taskclaim.models import TaskMixin

#: What a trigger copies from the work table into the history, as it was before a write and as it is after it.
TRACKED = (
    *("status", "claimed_by", "claimed_at", "expires_at", "iteration", "attempts", "not_before"),
    *("completed_at", "error_class", "wanted", "signed_by", "signed_iteration"),
)


class Work(TaskMixin):
    """A row to be done. What a handler writes to it, it signs with its token."""

    #: What the handler does, see ``tests.chaos.app.claims``.
    act = models.CharField(max_length=50, default="work")
    #: The handler's queryset takes wanted rows only.
    wanted = models.BooleanField(default=True)
    signed_by = HolderField(null=True, default=None)
    signed_iteration = models.IntegerField(null=True, default=None)
    #: A result that refers to another table.
    resource = models.ForeignKey("Resource", models.PROTECT, null=True, related_name="+")


class History(models.Model):
    """Every change of a row of work, written by a trigger in the same transaction; for ``TRACKED`` see below."""

    seq = models.BigAutoField(primary_key=True)
    work_id = models.BigIntegerField()
    op = models.CharField(max_length=1)
    at = MomentField()

    class Meta:
        indexes = [
            models.Index(fields=["work_id", "seq"], name="chaos_history_row"),
            models.Index(fields=["new_status", "at"], name="chaos_history_claims"),
        ]


for _name in TRACKED:
    for _when in ("old", "new"):
        _field: Any = Work._meta.get_field(_name).clone()  # type: ignore[union-attr,unused-ignore]
        _field.null, _field.default, _field.db_default = True, None, models.NOT_PROVIDED
        History.add_to_class(f"{_when}_{_name}", _field)


class Effect(models.Model):
    """What handlers did: over their own connection (``effect``), and what a file kept (other phases)."""

    id = models.BigAutoField(primary_key=True)
    work_id = models.BigIntegerField()
    holder = HolderField()
    iteration = CounterField()
    #: One for each call of the handler.
    run = models.CharField(max_length=32)
    #: ``effect``, or ``started``, ``raised`` and ``ended``.
    phase = models.CharField(max_length=7)

    class Meta:
        indexes = [models.Index(fields=["work_id", "iteration"], name="chaos_effect_token")]


class Act(models.Model):
    """What was done from outside, between two moments of the database's clock: a pause, a reset, a fault."""

    kind = models.CharField(max_length=20)
    #: The worker that it was done to, by the first part of its holders' names.
    worker = HolderField(default="")
    began_at = MomentField(null=True)
    ended_at = MomentField(null=True)
    #: The last entry of the history when it ended. A statement that began before may write later ones.
    ended_after = models.BigIntegerField(null=True)


class Orphan(models.Model):
    """A claim that stood when its process was killed or frozen, and when it must be claimable again."""

    kind = models.CharField(max_length=20)
    work_id = models.BigIntegerField()
    holder = HolderField()
    iteration = CounterField()
    left_at = MomentField()
    #: How long it may take, in seconds.
    bound = models.FloatField()


class Resource(models.Model):
    """Something that handlers lock beside their row, in either order, so that deadlocks happen, or refer to."""
