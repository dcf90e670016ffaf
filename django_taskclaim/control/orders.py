"""What a person tells workers: orders to one process, and live settings of one model. Each is recorded as an act."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import DatabaseError, Error, IntegrityError, connections, models
from django.db.models import F
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext, pgettext_lazy

from django_taskclaim.checks.handlers import shortest_lease
from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.contention import retry_on_contention
from django_taskclaim.control.audit import record_action, storable
from django_taskclaim.control.installed import NAME, is_on
from django_taskclaim.db import DatabaseNow, dialect_for
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line, format_number
from django_taskclaim.handlers import handler_for
from django_taskclaim.models import WorkerProcess
from django_taskclaim.monitoring.overview import Worker, workers
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.states import WORKER_MARK
from django_taskclaim.switch import as_stored, overrides_of, set_overrides
from django_taskclaim.tables import LIMITS, scope_of

if TYPE_CHECKING:
    from django_taskclaim.control.models import LiveSettings, WorkerOrder

#: What ``change_settings`` takes.
SETTINGS = ("batch_size", "lease")
FIELDS = (*SETTINGS, *LIMITS)

#: What a limit is set to where there shall be none, whatever the handler says.
NO_LIMIT = "none"

#: How the record calls them, and the orders: in the language of whoever gave them, as is the reason beside it.
_SETTINGS = {
    "batch_size": gettext_lazy("batch size"),
    "lease": gettext_lazy("lease"),
    "rate": gettext_lazy("rate"),
    "max_running": gettext_lazy("rows at once"),
    "hours": gettext_lazy("hours"),
}
_ORDERS = {
    "drain": pgettext_lazy("order", "drain"),
    "stop": pgettext_lazy("order", "stop"),
    "release": pgettext_lazy("order", "release"),
}


class OrderError(TaskClaimError):
    """Not all rows of a silent process could be put back: ``put_back`` were.

    ``errors`` holds what was said, by the label of each model that it was said of.
    """

    def __init__(self, worker: str, put_back: int, errors: Mapping[str, Exception]) -> None:
        self.worker, self.put_back, self.errors = worker, put_back, dict(errors)
        super().__init__(worker, put_back, self.errors)

    def __str__(self) -> str:
        refused = "; ".join(f"{label}: {first_line(error)}" for label, error in self.errors.items())
        told = ngettext(
            "Of the silent worker process %(worker)s, %(n)s row was put back, and then refused: %(errors)s",
            "Of the silent worker process %(worker)s, %(n)s rows were put back, and then refused: %(errors)s",
            self.put_back,
        )
        return told % {"worker": self.worker, "n": format_number(self.put_back), "errors": refused}


def order(
    worker_name: str, what: str, *, by: str, user: Any = None, reason: str = "", using: str
) -> "WorkerOrder":
    """Tell one worker process to ``drain``, ``stop`` or ``release``; it obeys within five seconds.

    A process that fell silent hears nothing: its rows are released here and now, all of them, and any other order is a
    ValidationError, as is an unknown one. Each model that it serves gets an act with its own rows. Raises
    ``WorkerProcess.DoesNotExist`` for a name that is not listed, and ``OrderError`` where rows of one model could not
    be put back; those of the others were, and the order is at its end all the same.
    """
    _require(using)
    from django_taskclaim.control.models import WorkerOrder

    if what not in WorkerOrder.Order.values:
        known = ", ".join(WorkerOrder.Order.values)
        orders = {"order": repr(what), "orders": known}
        raise ValidationError(
            _("A worker cannot be told to %(order)s; it knows %(orders)s.") % orders
        )
    worker = _worker(worker_name, using)
    if not worker.alive and what != WorkerOrder.Order.RELEASE:
        raise ValidationError(
            _(
                "%(worker)s has said nothing for a while, so it would not hear that; release its rows instead."
            )
            % {"worker": worker.name}
        )
    given = WorkerOrder.objects.using(using).create(
        worker=worker.name,
        order=what,
        reason=storable(reason, 500),
        by=storable(by, 200),
        at=DatabaseNow(),
    )
    said = str(_ORDERS[what])
    told = f"{said}: {reason}" if reason else said
    facts: dict[str, Any] = {"by": by, "reason": told, "user": user, "using": using}
    if worker.alive:
        for model in _tables_of(worker):
            record_action(model, "worker order", worker=worker.name, **facts)
    else:
        given.put_back = _release_all(worker, given, facts)
    given.refresh_from_db(using=using)
    return given


def _worker(name: str, using: str) -> Worker:
    found = next((worker for worker in workers(using) if worker.name == name), None)
    if found is None:
        raise WorkerProcess.DoesNotExist(
            _("No worker is listed as %(name)s.") % {"name": repr(name)}
        )
    return found


def _release_all(worker: Worker, given: "WorkerOrder", facts: dict[str, Any]) -> int:
    """Put back all that a silent process holds, and end the order; what one table refuses keeps no other from it."""
    put_back, errors = 0, {}
    for model in _tables_of(worker):
        rows, error = _take_back(model, worker, facts["using"])
        if model is not None and error is not None:
            errors[model._meta.label] = error
        put_back += rows
        record_action(model, "worker order", rows=rows, worker=worker.name, **facts)
    same = type(given).objects.using(facts["using"]).filter(pk=given.pk)
    same.update(done_at=DatabaseNow())
    if errors:
        raise OrderError(worker.name, put_back, errors)
    return put_back


def models_of(worker: Worker) -> list[type[models.Model]]:
    """Return the models that a worker claims, as far as this project still has them."""
    found = []
    for label in worker.labels:
        try:
            model = apps.get_model(label)
            claim_columns(model)
        except (LookupError, ValueError, TypeError):
            continue
        found.append(model)
    return found


def _tables_of(worker: Worker) -> list[type[models.Model] | None]:
    """Return one model of each table that a worker claims from; None, which means all, where none is known."""
    tables = {claim_columns(model).owner: model for model in models_of(worker)}
    return list(tables.values()) or [None]


def _take_back(
    model: type[models.Model] | None, worker: Worker, using: str
) -> tuple[int, Exception | None]:
    """Put back every row that a dead process holds; by the token, so that its late writes land nowhere.

    Returns how many, and what the database said where that was not all.
    """
    if model is None:
        return 0, None
    holder = claim_columns(model).claimed_by.name
    rows: ClaimQuerySet[Any] = ClaimQuerySet(model, using=using)
    began, counts = clock(), [0]
    try:
        held = rows.filter(**{f"{holder}__startswith": holders_of(worker.name)})
        held.take_back(progress=counts.append)
        refused = refusals(model, using, since=began)
        return counts[-1], DatabaseError(str(refused[0])) if refused else None
    except (Error, TaskClaimError) as error:
        if not connections[using].in_atomic_block:
            connections[using].close_if_unusable_or_obsolete()
        return counts[-1], error


def holders_of(process: str) -> str:
    """Return how the holder of every claim begins that a process makes, by the name that it reports under."""
    return f"{process}{WORKER_MARK}"


def change_settings(
    model: type[models.Model],
    values: Mapping[str, Any],
    *,
    by: str,
    user: Any = None,
    reason: str = "",
    using: str,
) -> None:
    """Change what claims of *model* follow; workers do so within five seconds. What *values* leaves out stays.

    ``batch_size`` and ``lease`` are for workers; ``rate``, ``max_running`` and ``hours`` for all who claim, and "none"
    is no limit there. None or an empty text gives a setting back to the handler. Raises ValidationError by field name
    for values that make no sense, and TypeError for a model that is not claimable. Values that change nothing are not
    recorded.
    """
    _require(using)
    claim_columns(model)
    _refuse_unknown(values)
    settings, limits, errors = _cleaned(values)
    if not errors and settings.get("lease") is not None:
        errors |= _refused_lease(model, timedelta(seconds=settings["lease"]), using)
    if errors:
        raise ValidationError(errors)
    retry = retry_on_contention(using=using, atomic=False)
    by = storable(by, 200)
    try:
        changes = retry.call(_store, model, settings, by, using)
    except IntegrityError:
        # Somebody else was the first to set anything, at the same moment.
        changes = retry.call(_store, model, settings, by, using)
    stored = overrides_of(model, using=using)
    changed = {name: value for name, value in limits.items() if value != stored[name]}
    if changed:
        set_overrides(model, by=by, using=using, **changed)
        changes += [_changed(name, value, stored[name]) for name, value in changed.items()]
    if changes:
        text = ", ".join(changes) + (f": {reason}" if reason else "")
        record_action(model, "settings", by=by, reason=text, user=user, using=using)


def settings_of(model: type[models.Model], *, using: str) -> dict[str, Any]:
    """Return what is stored for *model*, by the names that ``change_settings`` takes; None follows the handler."""
    from django_taskclaim.control.models import LiveSettings

    row = LiveSettings.objects.using(using).filter(model=scope_of(model)).first() or LiveSettings()
    return {name: getattr(row, name) for name in SETTINGS} | overrides_of(model, using=using)


def _refuse_unknown(values: Mapping[str, Any]) -> None:
    for name in values:
        if name not in FIELDS:
            names = {"name": repr(name), "names": ", ".join(FIELDS)}
            raise ValidationError(
                _("There is no live setting %(name)s; there are %(names)s.") % names
            )


def _cleaned(
    values: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, list[str]]]:
    """Return the settings and the limits as they are stored, and what is wrong, by name."""
    from django_taskclaim.control.models import LiveSettings

    settings: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    errors: dict[str, list[str]] = {}
    for name, value in values.items():
        try:
            if name in SETTINGS:
                settings[name] = _clean(LiveSettings._meta.get_field(name), value)
            else:
                limits[name] = _clean_limit(name, value)
        except ValidationError as error:
            errors[name] = error.messages
    return settings, limits, errors


def _store(
    model: type[models.Model], settings: Mapping[str, Any], by: str, using: str
) -> list[str]:
    """Store what differs, and return it in words."""
    from django_taskclaim.control.models import LiveSettings

    rows = LiveSettings.objects.using(using).filter(model=scope_of(model))
    with dialect_for(connections[using]).own_transaction():
        before = rows.first() or LiveSettings()
        new = {name: value for name, value in settings.items() if value != getattr(before, name)}
        facts: dict[str, Any] = {**new, "changed_at": DatabaseNow(), "changed_by": by}
        if new and not rows.update(version=F("version") + 1, **facts):
            rows.create(model=scope_of(model), **facts)
    return [_changed(name, value, getattr(before, name)) for name, value in new.items()]


def _refused_lease(model: type[models.Model], lease: timedelta, using: str) -> dict[str, list[str]]:
    """Say which handlers *lease* is too short for, where nobody can renew while a row runs."""
    same = [one for one in apps.get_models() if scope_of(one) == scope_of(model)]
    handlers = [handler for one in same if (handler := handler_for(one)) is not None]
    refused = [
        _(
            "%(handler)s is atomic, and while a row runs nobody can renew on this database: it needs a lease of"
            " %(seconds)s s at least."
        )
        % {"handler": handler.name, "seconds": f"{least.total_seconds():g}"}
        for handler in handlers
        if lease < (least := shortest_lease(handler, using))
    ]
    return {"lease": refused} if refused else {}


def _clean(field: Any, value: Any) -> Any:
    if value is None or value == "":
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValidationError(_("Enter a number."))
    clean = field.clean(value, None)
    if isinstance(clean, float) and not math.isfinite(clean):
        raise ValidationError(_("Enter a number."))
    return clean


def _clean_limit(name: str, value: Any) -> Any:
    if value is None or value == "":
        return None
    if value == NO_LIMIT:
        return 0 if name == "max_running" else ""
    if name == "max_running" and isinstance(value, str):
        value = int(value) if value.isdecimal() else value
    try:
        return as_stored(name, value)
    except ValueError as error:
        raise ValidationError(str(error)) from error


def _changed(name: str, now: Any, before: Any) -> str:
    sides = {"setting": _SETTINGS[name], "now": _said(now), "before": _said(before)}
    return _("%(setting)s %(now)s (was %(before)s)") % sides


def _said(value: Any) -> str:
    if value is None:
        return pgettext("setting", "default")
    if value in ("", 0):
        return NO_LIMIT
    return f"{value:g}" if isinstance(value, float) else str(value)


def in_words(settings: "LiveSettings") -> list[str]:
    """Return what live settings say that handlers and command lines do not: ``batch size 10``, ``lease 30``."""
    given = {name: getattr(settings, name) for name in SETTINGS}
    return [
        f"{_SETTINGS[name]} {_said(value)}" for name, value in given.items() if value is not None
    ]


def open_orders(worker_name: str, *, using: str) -> "list[WorkerOrder]":
    """Return what a worker process was told to do and has not done yet, oldest first."""
    if not is_on(using):
        return []
    from django_taskclaim.control.models import WorkerOrder

    orders = WorkerOrder.objects.using(using).filter(worker=worker_name, done_at=None)
    return list(orders.order_by("id"))


def _require(using: str) -> None:
    if not is_on(using):
        raise ImproperlyConfigured(
            f"Orders and live settings need the tables of {NAME} on the database {using!r}: add it to INSTALLED_APPS,"
            " let routers migrate it there, and run manage.py migrate."
        )
