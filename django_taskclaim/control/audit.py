"""The record of what operators do, from the admin and from the commands: who, what, how many, why."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import apps
from django.db import connections, models, router, transaction
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_taskclaim.control.actions import what_was_done
from django_taskclaim.control.models import OperatorAct, is_on
from django_taskclaim.db import DatabaseNow
from django_taskclaim.formatting import counted, format_number
from django_taskclaim.holders import name_of, user_of
from django_taskclaim.models import Switch
from django_taskclaim.signals import rows_acted_on
from django_taskclaim.tables import EVERY_MODEL, scope_of

logger = logging.getLogger("django_taskclaim.control")


def record_action(
    model: type[models.Model] | None,
    action: str,
    *,
    rows: int | None = None,
    by: str,
    reason: str = "",
    user: Any = None,
    key: str = "",
    worker: str = "",
    using: str | Iterable[str] | None = None,
) -> None:
    """Record that *by* did *action* to so many rows of *model*, or with None to all models.

    *rows* is None for what is done to no rows, such as a pause. *key* is the row where it was one, *worker* the process
    that got a command. *using* names the database, or several; None is the one that the model is written to. One
    INFO record is logged; an ``OperatorAct`` is stored on each database where the control app lives, and a ``LogEntry``
    where there is a Django *user* and Django's admin. It raises nothing: what was done is not undone because its
    record failed.
    """
    label = EVERY_MODEL if model is None else scope_of(model)
    what = " ".join(part for part in (label, key or worker) if part)
    of = what if rows is None else f"{counted(rows, 'row')} of {what}"
    facts = {"act": action, "rows": rows or 0, "by": by, "reason": reason, "key": key or worker}
    logger.info(
        "%s by %s, %s%s",
        *(action.capitalize(), by, of, f": {reason}" if reason else ""),
        extra={"event": "act", "model": label, **facts},
    )
    for alias in _aliases(model, using):
        if is_on(alias):
            _guarded(alias, _store_act, label, facts)
    if getattr(user, "pk", None) is not None and apps.is_installed("django.contrib.admin"):
        from django.contrib.admin.models import LogEntry

        entry = {
            "user_id": user.pk,
            "object_id": key or None,
            "object_repr": storable(_object(model, action, rows, key, worker), 200),
            "change_message": storable(_message(action, rows, reason), 2000),
        }
        _guarded(router.db_for_write(LogEntry), _store_entry, model or Switch, entry)


def record_take_over(
    sender: Any,
    keys: Sequence[object],
    act: str,
    using: str,
    by: str = "",
    reason: str = "",
    **others: object,
) -> None:
    """Record rows that were taken over: the verb itself is given who and why. A receiver of ``rows_acted_on``."""
    if act == "taken over":
        user = user_of(by)
        facts: dict[str, Any] = {"by": name_of(by, user), "user": user, "reason": reason}
        key = str(keys[0]) if len(keys) == 1 else ""
        record_action(sender, "take over", rows=len(keys), key=key, using=using, **facts)


def listen() -> None:
    """Record every row that is taken over from now on."""
    rows_acted_on.connect(record_take_over, dispatch_uid=__name__)


def _object(
    model: type[models.Model] | None, action: str, rows: int | None, key: str, worker: str
) -> str:
    """Return what the admin's list of recent acts shows, which has room for nothing else."""
    done = what_was_done(action)
    if model is None:
        return _("all models: %(done)s") % {"done": done}
    meta = model._meta
    if key:
        return f"{meta.verbose_name} {key}: {done}"
    if rows is not None and not worker:
        name = meta.verbose_name if rows == 1 else meta.verbose_name_plural
        return f"{format_number(rows)} {name}: {done}"
    return f"{worker or meta.verbose_name_plural}: {done}"


def _message(action: str, rows: int | None, reason: str) -> str:
    text = str(capfirst(what_was_done(action)))
    if rows is not None:
        words = {"done": text, "number": format_number(rows)}
        text = ngettext("%(done)s, %(number)s row", "%(done)s, %(number)s rows", rows) % words
    return f"{text}: {reason}" if reason else text


def _aliases(model: type[models.Model] | None, using: str | Iterable[str] | None) -> list[str]:
    if using is None:
        return [router.db_for_write(model or Switch)]
    return [using] if isinstance(using, str) else list(using)


def _guarded(alias: str, store: Any, *given: Any) -> None:
    """Store a record; what goes wrong is logged, and leaves a transaction of the caller's usable."""
    try:
        if connections[alias].in_atomic_block:
            with transaction.atomic(using=alias):
                store(alias, *given)
        else:
            store(alias, *given)
    except Exception:
        logger.exception("The record of an action could not be stored on %r", alias)


def _store_act(alias: str, label: str, facts: dict[str, Any]) -> None:
    OperatorAct.objects.using(alias).create(
        at=DatabaseNow(),
        model=label,
        act=facts["act"][:50],
        rows=facts["rows"],
        by=storable(facts["by"], 200),
        reason=storable(facts["reason"], 500),
        key=storable(facts["key"], 255),
    )


def _store_entry(alias: str, model: type[models.Model], entry: dict[str, Any]) -> None:
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType

    content_type = ContentType.objects.get_for_model(model, for_concrete_model=False)
    LogEntry.objects.using(alias).create(
        content_type_id=content_type.pk, action_flag=CHANGE, **entry
    )


def storable(text: str, length: int) -> str:
    """Return what a column takes of a text that anybody may have written."""
    clean = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return clean[:length]
