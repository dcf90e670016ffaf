"""The tables of this app. They live on every database that holds a claimable model."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_taskclaim.fields import CounterField, ErrorClassField, HolderField, MomentField
from django_taskclaim.switch_reading import TABLE as SWITCH_TABLE


class Switch(models.Model):
    """The stored pause flag of one model, or of all: a row is paused while ``paused_at`` is set and ``until`` not past.

    Read inside every claim statement; turned through ``django_taskclaim.switch``.
    """

    scope = models.CharField(max_length=200, primary_key=True)
    paused_at = MomentField(null=True, default=None)
    until = MomentField(null=True, default=None)
    reason = ErrorClassField(max_length=500, default="", blank=True)
    by = HolderField(default="", blank=True)

    class Meta:
        db_table = SWITCH_TABLE
        verbose_name = _("switch")
        verbose_name_plural = _("switches")

    def __str__(self) -> str:
        return f"{self.scope}: {'paused' if self.paused_at else 'running'}"


class Control(Switch):
    """Stands for the control room where Django's admin wants a model; a proxy, and nothing reads rows through it."""

    class Meta:
        proxy = True
        db_table = SWITCH_TABLE
        default_permissions = ()
        verbose_name = _("control room")
        verbose_name_plural = _("control room")


class WorkerProcess(models.Model):
    """A worker that is, or was lately, alive: what ``claimstatus`` and the control page show."""

    name = HolderField(primary_key=True)
    #: Of the models it claims, all of them: others share a rate by what stands here.
    labels = models.TextField(default="", blank=True)
    host = models.CharField(max_length=200)
    pid = models.IntegerField()
    version = models.CharField(max_length=50)
    started_at = MomentField()
    seen_at = MomentField(db_index=True)
    state = models.CharField(max_length=20, default="running")
    rows_held = models.IntegerField(default=0)
    rows_done = models.BigIntegerField(default=0)
    rows_failed = models.BigIntegerField(default=0)
    last_error = ErrorClassField(max_length=500, default="", blank=True)

    class Meta:
        db_table = "taskclaim_workerprocess"
        verbose_name_plural = _("worker processes")

    def __str__(self) -> str:
        return str(self.name)


class Throttle(models.Model):
    """An automatic stop of one model's claims by one process, in force until ``until`` is past.

    Written by ``django_taskclaim.throttling``, for people to read: no claim statement looks here.
    """

    process = HolderField()
    label = models.CharField(max_length=200)
    source = ErrorClassField()
    reason = ErrorClassField(max_length=500)
    since_at = MomentField()
    until = MomentField()

    class Meta:
        db_table = "taskclaim_throttle"

    def __str__(self) -> str:
        return f"{self.label} by {self.process}: {self.reason}"


class FleetLimit(models.Model):
    """What all who claim rows of one model keep to together: what a person has set, and how much of a rate is left.

    Of what is set, NULL follows the handler, and an empty text or 0 is no limit. Written through
    ``django_taskclaim.limits``, and by the claims of models that have a rate.
    """

    scope = models.CharField(max_length=200, primary_key=True)
    rate = models.CharField(max_length=40, null=True, default=None)
    max_running = models.IntegerField(null=True, default=None)
    hours = models.CharField(max_length=40, null=True, default=None)
    set_at = MomentField(null=True, default=None)
    set_by = HolderField(default="", blank=True)
    #: Rows that the rate would have let be claimed at the moment ``filled_at``.
    level = models.FloatField(default=0.0)
    filled_at = MomentField(null=True, default=None)

    class Meta:
        db_table = "taskclaim_fleetlimit"

    def __str__(self) -> str:
        return str(self.scope)


class NamedLease(models.Model):
    """A lease on a name rather than on a row of the user's; on MySQL also the queue of one holder's requests."""

    name = HolderField(primary_key=True)
    claimed_by = HolderField(null=True, default=None)
    claimed_at = MomentField(null=True, default=None)
    expires_at = MomentField(null=True, default=None)
    iteration = CounterField(default=0, db_default=0)

    class Meta:
        db_table = "taskclaim_namedlease"

    def __str__(self) -> str:
        return str(self.name)
