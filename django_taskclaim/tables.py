"""The tables of this app, and the scopes of the switch. They live on every database that holds a claimable model."""

from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_taskclaim.columns import claim_columns, memoized
from django_taskclaim.fields import CounterField, HolderField, MomentField, ShortTextField, as_utc

if apps.apps_ready and not apps.is_installed("django_taskclaim"):
    raise ImproperlyConfigured(
        "Add 'django_taskclaim' to INSTALLED_APPS, then run manage.py migrate."
    )

#: How long the rows of a worker that fell silent are kept, and a lease name that nobody holds.
SILENCE_KEPT = timedelta(days=1)

#: The scope of the switch that stops every model.
EVERY_MODEL = "*"

#: The overrides that hold for all who claim, and all that a switch stores in place of the handler's options.
LIMITS = ("rate", "max_running", "hours")
OVERRIDES = ("batch_size", "lease", *LIMITS)


def scope_of(model: type[models.Model]) -> str:
    """Return the scope that a pause of *model* is stored under: its own label, a proxy's real model's."""
    concrete = model._meta.concrete_model or model
    return concrete._meta.label_lower


@memoized
def own_scopes(model: type[models.Model]) -> tuple[str, ...]:
    """Return the scopes of the table's owner, and of all models down to *model* itself."""
    owner = claim_columns(model).owner
    between = [scope_of(cls) for cls in reversed(model.__mro__) if issubclass(cls, owner)]
    return tuple(dict.fromkeys(between))


def scopes_over(model: type[models.Model]) -> list[str]:
    """Return the scopes whose pause stops a claim through *model*: that of all, and its own."""
    return [EVERY_MODEL, *own_scopes(model)]


def throttle_scope(scope: str) -> str:
    """Return the scope of the stop that ends by itself and holds for everyone who claims, on every host."""
    return f"{scope}!throttle"


def stop_scopes(model: type[models.Model]) -> list[str]:
    """Return every scope whose stop keeps claims through *model* back: a person's pause, or a throttle."""
    return [*scopes_over(model), *map(throttle_scope, own_scopes(model))]


class Switch(models.Model):
    """What a person has stored for one model, or for all: a pause, and what replaces options of the handler.

    Claims are paused while ``paused_at`` is set and ``until`` is not past. An override that is NULL follows the
    handler; an empty text or 0 is no limit. Read inside every claim statement; written through
    ``django_taskclaim.switch``. A throttle of everyone has a row of its own, under ``throttle_scope``.
    """

    scope = models.CharField(max_length=200, primary_key=True)
    paused_at = MomentField(null=True, default=None)
    until = MomentField(null=True, default=None)
    reason = ShortTextField(max_length=500, default="", blank=True)
    by = HolderField(default="", blank=True)
    batch_size = models.IntegerField(null=True, default=None)
    lease = models.DurationField(null=True, default=None)
    rate = models.CharField(max_length=40, null=True, default=None)
    max_running = models.IntegerField(null=True, default=None)
    hours = models.CharField(max_length=40, null=True, default=None)
    #: When an override was last set, and who did.
    set_at = MomentField(null=True, default=None)
    set_by = HolderField(null=True, default=None)

    @classmethod
    def row(cls, scope: str, using: str) -> "models.QuerySet[Switch]":
        """Return the row of *scope* alone, made where it was missing, for an ``update()`` that names its columns."""
        rows = cls._default_manager.using(using).filter(scope=scope)
        if not rows.exists():
            rows.bulk_create([cls(scope=scope)], ignore_conflicts=True)
        return rows

    @property
    def overrides(self) -> dict[str, Any]:
        """What replaces options of the handler, by name."""
        values = {name: getattr(self, name) for name in OVERRIDES}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def is_for_all(self) -> bool:
        """Whether it is the switch of all models."""
        return self.scope == EVERY_MODEL

    def is_off(self, now: datetime) -> bool:
        """Whether a stop, a person's or a throttle, is in force at that moment of the database's clock."""
        return self.paused_at is not None and (self.until is None or as_utc(self.until) > now)


class Control(Switch):
    """Stands for the control room where Django's admin wants a model; a proxy, and nothing reads rows through it."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("control room")
        verbose_name_plural = _("control room")


class WorkerProcess(models.Model):
    """A worker that is, or was lately, alive: what ``claimstatus`` and the control page show."""

    #: ``<worker>@<host>:<pid>``.
    name = HolderField(primary_key=True)
    #: Of the models it claims.
    labels = models.JSONField(default=list, blank=True)
    started_at = MomentField()
    seen_at = MomentField(db_index=True)
    #: What a person has told it to do, until it obeys: the name of one of ``WORKER_COMMANDS``.
    command = models.CharField(max_length=20, default="", blank=True)
    rows_held = models.IntegerField(default=0)
    rows_done = models.BigIntegerField(default=0)
    rows_failed = models.BigIntegerField(default=0)
    last_error = ShortTextField(max_length=500, default="", blank=True)
    #: The automatic stops of its claims, for people to read: label, source, reason, and until when in UTC.
    throttles = models.JSONField(default=list, blank=True)

    #: Whether it has reported lately; ``monitoring.overview.workers`` says so by the database's clock.
    alive: bool

    def serves(self, model: type[models.Model]) -> bool:
        """Say whether the worker claims rows of *model*."""
        return model._meta.label_lower in map(str.lower, self.labels)


class RateLevel(models.Model):
    """How many rows a rate would have let be claimed at the moment ``at``; written by the claims of such models."""

    scope = models.CharField(max_length=200, primary_key=True)
    level = models.FloatField()
    at = MomentField()


class NamedLease(models.Model):
    """A lease on a name rather than on a row of the user's; on MySQL also the queue of one holder's requests."""

    name = HolderField(primary_key=True)
    claimed_by = HolderField(null=True, default=None)
    claimed_at = MomentField(null=True, default=None)
    expires_at = MomentField(null=True, default=None)
    iteration = CounterField(default=0, db_default=0)
