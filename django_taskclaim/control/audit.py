"""The record of what operators do, from the admin and from the commands: who, what, how many, why.

Also what a person changes of the switch of a model, pauses and overrides, and the commands that a person gives to one
worker process: every page and command does it here, so that each is recorded.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models, router, transaction
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_taskclaim.columns import claim_columns, has_claim_columns
from django_taskclaim.control.actions import DONE, WORKER_COMMANDS
from django_taskclaim.control.models import APP, ClaimEvent, OperatorAct, is_on
from django_taskclaim.control.reading import is_named
from django_taskclaim.db import DatabaseNow
from django_taskclaim.error_text import clean
from django_taskclaim.formatting import counted, format_duration
from django_taskclaim.models import Switch, WorkerProcess
from django_taskclaim.monitoring.overview import workers
from django_taskclaim.switch import (
    SwitchError,
    claimable_models,
    override_as_text,
    pause,
    places_of,
    resume,
    set_overrides,
)
from django_taskclaim.tables import EVERY_MODEL, scope_of

logger = logging.getLogger("django_taskclaim.control")


def record_action(
    model: type[models.Model] | None,
    action: str,
    *,
    rows: int | None = None,
    by: object,
    reason: str = "",
    key: str = "",
    name: str = "",
    using: str | Iterable[str] | None = None,
) -> None:
    """Record that *by*, a Django user or a name, did *action* to so many rows of *model*, or with None to all models.

    *rows* is None for what is done to no rows, such as a pause. *key* is the row where it was one, the process that got
    a command, or a group of failures, and *name* what people call that. *using* names the database, or several; None is
    the one that the model is written to. One INFO record is logged; an ``OperatorAct`` is stored on each database where
    the control app lives, and of one row a step of its history; and a ``LogEntry`` of a user where there is Django's
    admin. It raises nothing: what was done is not undone because its record failed.
    """
    label = EVERY_MODEL if model is None else scope_of(model)
    subject = "all models" if model is None else label
    if rows is not None:
        subject = f"{counted(rows, 'row')} of {subject}"
    why = f": {reason}" if reason else ""
    facts = {
        "model": label,
        "act": action[:50],
        "rows": rows or 0,
        "by": clean(str(by))[:200],
        "reason": clean(reason)[:500],
        "key": clean(f"{key} {name}" if name else key)[:255],
    }
    words = action.capitalize(), by, f"{subject} {name or key}".rstrip(), why
    logger.info("%s by %s, %s%s", *words, extra={"event": "act", **facts})
    if using is None:
        using = router.db_for_write(model or Switch)
    for alias in [using] if isinstance(using, str) else using:
        if is_on(alias):
            act = OperatorAct(at=DatabaseNow(), **facts)
            _store(alias, [act])
            # Where a model keeps all that happens to its rows, our verbs have written the step; a project's have not.
            if rows and key and not (action in DONE and is_named(model)):
                step = ClaimEvent(model=label, key=act.key, event=action[:20], at=DatabaseNow())
                step.holder, step.detail = act.by, act.reason
                _store(alias, [step])
    if getattr(by, "pk", None) is not None and apps.is_installed("django.contrib.admin"):
        done = str(DONE.get(action, action))
        title = f"{name or key or subject}: {done}"
        entry = _entry(model or Switch, by, key if rows else "", title, f"{capfirst(done)}{why}")
        _store(router.db_for_write(apps.get_model("admin.LogEntry")), entry)


def _store(alias: str, records: Iterable[models.Model]) -> None:
    """Store the records; log what goes wrong, and leave a transaction of the caller's usable."""
    try:
        with transaction.atomic(using=alias):
            for record in records:
                record.save(using=alias)
    except Exception:
        logger.exception("The record of an action could not be stored on %r", alias)


def _entry(
    model: type[models.Model], user: Any, key: str, title: str, text: str
) -> Iterator[models.Model]:
    """Yield what the admin shows as a recent action, and in the history of the row; asks for its content type."""
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType

    yield LogEntry(
        user_id=user.pk,
        content_type_id=ContentType.objects.get_for_model(model, for_concrete_model=False).pk,
        object_id=key or None,
        object_repr=clean(title)[:200],
        action_flag=CHANGE,
        change_message=clean(text)[:2000],
    )


# The switch


def turn(
    model: type[models.Model] | None,
    *,
    off: bool,
    by: object,
    reason: str = "",
    until: timedelta | None = None,
    using: str | None = None,
) -> None:
    """Pause or resume claims of *model*, or of all models with None.

    Raises ``SwitchError`` where a database could not be reached.
    """
    how: dict[str, Any] = {"reason": reason, "by": str(by), "until": until} if off else {}
    if off and until:
        reason = f"{reason} {_('for %(time)s') % {'time': format_duration(until)}}".strip()
    with _recording(model, "pause" if off else "resume", using, by=by, reason=reason):
        (pause if off else resume)(model, using=using, **how)


def change_overrides(
    model: type[models.Model],
    values: Mapping[str, object],
    *,
    by: object,
    reason: str = "",
    using: str | None = None,
) -> None:
    """Set *values* as ``switch.set_overrides`` does, with its errors."""
    changed = overrides_text(values)
    why = f"{changed}: {reason}" if reason else changed
    overrides: dict[str, Any] = {**values, "by": str(by)}
    with _recording(model, "settings", using, by=by, reason=why):
        set_overrides(model, using=using, **overrides)


def overrides_text(overrides: Mapping[str, object]) -> str:
    """Return overrides as people write them: ``batch size 10, lease 30s, rate none``."""
    return ", ".join(
        f"{name.replace('_', ' ')} {override_as_text(value)}" for name, value in overrides.items()
    )


@contextmanager
def _recording(
    model: type[models.Model] | None, action: str, using: str | None, **facts: Any
) -> Iterator[None]:
    """Record what the block does to the switch on each database that *using* means, where it was done."""
    done = places_of(using, claimable_models() if model is None else [model])
    try:
        yield
    except SwitchError as error:
        if error.done:
            record_action(model, action, using=error.done, **facts)
        raise
    record_action(model, action, using=done, **facts)


# Commands to one worker process


def send_command(
    worker_name: str, command: str, *, by: object, reason: str = "", using: str
) -> None:
    """Tell one worker process to ``drain`` or to ``stop``; it obeys within five seconds.

    Another command replaces one that it has not obeyed yet. Each model that it serves gets an act. Refused inside a
    transaction, as the verbs refuse it. ValueError in one sentence for an unknown command, and for a process
    that is silent or not listed: it would not obey. ImproperlyConfigured if the tables of this app are not on the
    database.
    """
    if not is_on(using):
        text = f"Commands need {APP} in INSTALLED_APPS, and its tables on the database {using!r}."
        raise ImproperlyConfigured(text)
    action = WORKER_COMMANDS.get(command)
    if action is None:
        given = {"command": repr(command), "commands": ", ".join(WORKER_COMMANDS)}
        text = _("A worker cannot be told to %(command)s; it knows %(commands)s.")
        raise ValueError(text % given)
    living = (one for one in workers(using) if one.alive)
    worker = next((one for one in living if one.name == worker_name), None)
    if worker is None:
        text = _(
            "No living worker is listed as %(name)s. Rows of one that is silent come back when their leases end."
        )
        raise ValueError(text % {"name": repr(worker_name)})
    # A lock that is kept on this row would keep the process from its reports, and its leases.
    with transaction.atomic(using=using, durable=True):
        WorkerProcess.objects.using(using).filter(name=worker.name).update(command=command)
    # In the language of the person who gave the command, as the reason is.
    why = f"{action.label}: {reason}" if reason else str(action.label)
    facts: dict[str, Any] = {"by": by, "reason": why, "using": using}
    # One model of each table.
    for model in {claim_columns(one).owner: one for one in models_of(worker)}.values():
        record_action(model, "worker command", key=worker.name, **facts)


def models_of(worker: WorkerProcess) -> list[type[models.Model]]:
    """Return the models that a worker claims, as far as this project still has them."""
    return [one for one in apps.get_models() if has_claim_columns(one) and worker.serves(one)]
