"""The tables of the control page; they live on every database that holds a claimable model.

They can be imported where the app is not installed; ``is_on`` says whether they may be used.
``model`` is always ``scope_of(model)``, the label of the concrete model in lower case; ``*`` means all models.
Each table has an age at which workers prune it.
"""

from collections import Counter
from collections.abc import Mapping
from uuid import uuid4

from django.apps import apps
from django.db import models, router

from django_taskclaim.fields import HolderField, MomentField, ShortTextField

APP, LABEL = "django_taskclaim.control", "taskclaim_control"


def is_on(using: str) -> bool:
    """Say whether these tables are to be found on the database *using*; asks no database."""
    return apps.is_installed(APP) and router.allow_migrate(using, LABEL)


class OperatorAct(models.Model):
    """What a person did to rows, or to a model as a whole, from the admin or from a shell."""

    id = models.BigAutoField(primary_key=True)
    at = MomentField()
    model = models.CharField(max_length=200)
    act = models.CharField(max_length=50)
    rows = models.BigIntegerField(default=0)
    by = HolderField()
    reason = ShortTextField(max_length=500, default="")
    #: The row, where it was one; the worker that was given a command; the ``Group.id`` of failures, and their name.
    key = HolderField(max_length=255, default="")

    class Meta:
        app_label = LABEL
        db_table = "taskclaim_operatoract"
        default_permissions = ("view",)
        permissions = [
            ("view_control", "Can look at the control page"),
            ("operate", "Can pause, resume, reset and release, and command workers"),
            ("configure", "Can change settings that override handlers"),
        ]
        indexes = [models.Index(fields=["model", "id"], name="taskclaim_act_of_model")]


class ThroughputMinute(models.Model):
    """What one worker process got done of one model in one minute; when it is old, ten minutes of all processes."""

    id = models.UUIDField(primary_key=True, default=uuid4)
    model = models.CharField(max_length=200)
    #: Where the minute begins.
    at = MomentField()
    #: The process as ``WorkerProcess`` names it; empty once it has been taken together with the others.
    process = HolderField(default="")
    #: As ``worker.counters`` names them.
    counts = models.JSONField(default=dict)

    class Meta:
        app_label = LABEL
        db_table = "taskclaim_throughput"
        default_permissions = ()
        indexes = [models.Index(fields=["at"], name="taskclaim_throughput_at")]

    def add(self, counts: Mapping[str, int]) -> None:
        """Take in what has been counted beside it."""
        self.counts = Counter(self.counts) + Counter(counts)


class ClaimEvent(models.Model):
    """One thing that happened to one row: a failure, or of models that ``TASKCLAIM["HISTORY"]`` names anything."""

    id = models.BigAutoField(primary_key=True)
    model = models.CharField(max_length=200)
    key = HolderField(max_length=255)
    #: claimed, lost, released, expired, completed, retried, failed, handed over, or an operator's act.
    event = models.CharField(max_length=20)
    holder = HolderField(default="")
    iteration = models.IntegerField(null=True, default=None)
    at = MomentField()
    detail = ShortTextField(max_length=500, default="")

    class Meta:
        app_label = LABEL
        db_table = "taskclaim_claimevent"
        default_permissions = ()
        indexes = [models.Index(fields=["model", "key", "id"], name="taskclaim_event_of_row")]
