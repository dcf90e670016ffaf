"""The history of single rows, for models that ``TASKCLAIM["HISTORY"]`` names: written after each commit.

One INSERT a batch, on the connection that changed the rows; an error is logged and changes nothing else.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import Signal
from django.utils.translation import gettext_noop

from django_taskclaim import conf, signals
from django_taskclaim.claim import claim_of
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.audit import storable
from django_taskclaim.control.models import ClaimEvent
from django_taskclaim.control.reading import is_kept
from django_taskclaim.db import DatabaseNow
from django_taskclaim.error_text import class_and_text, one_line
from django_taskclaim.states import Status
from django_taskclaim.tables import scope_of

#: What an expired lease made of its row; stored as it stands here, and translated where it is shown.
OUTCOMES = {
    "charged": gettext_noop("put back, one try used up"),
    "uncharged": gettext_noop("put back"),
    "quarantined": gettext_noop("put back, to be claimed alone"),
    "failed": gettext_noop("failed: no try was left"),
}

#: The signals that are written down, and their event; the others tell it themselves. Renewals are too many.
EVENTS: dict[Signal, str] = {
    signals.rows_claimed: "claimed",
    signals.rows_completed: "completed",
    signals.rows_failed: "failed",
    signals.rows_released: "released",
    signals.rows_handed_over: "handed over",
    signals.claim_lost: "lost",
    signals.rows_expired: "expired",
    signals.rows_acted_on: "",
}


def _write(sender: Any, signal: Signal, using: str, **facts: Any) -> None:
    """Write what a signal says of the rows of *sender*."""
    if not is_kept(sender, using):
        return
    about = _about_keys if "keys" in facts else _about_rows
    events = about(sender, EVENTS[signal], **facts)
    ClaimEvent.objects.using(using).bulk_create(events, batch_size=int(conf.setting("CHUNK_SIZE")))


def _about_rows(
    model: Any,
    event: str,
    *,
    rows: Iterable[Any],
    error: object = None,
    to: str = "",
    **others: object,
) -> Iterator[ClaimEvent]:
    detail = one_line(*class_and_text(error)) if event == "failed" else to
    status = claim_columns(model).status.attname
    for row in rows:
        claim = claim_of(row)
        if claim is None and event == "lost":
            continue
        found = _event(model, event, row.pk if claim is None else claim.pk, detail)
        if event == "failed" and row.__dict__.get(status) != Status.FAILED:
            found.event = "retried"
        if claim is not None:
            found.holder, found.iteration = claim.token
        yield found


def _about_keys(
    model: Any,
    event: str,
    *,
    keys: Sequence[object],
    holders: Sequence[str | None] = (),
    outcome: str = "",
    act: str = "",
    by: str | None = None,
    reason: str = "",
    **others: object,
) -> Iterator[ClaimEvent]:
    """Yield the events of rows of which nobody has loaded an instance."""
    detail = OUTCOMES[outcome] if outcome else reason
    for key, holder in zip(keys, holders or [by] * len(keys), strict=True):
        found = _event(model, event or act, key, detail)
        found.holder = holder or ""
        yield found


def _event(model: Any, event: str, key: object, detail: str) -> ClaimEvent:
    return ClaimEvent(
        model=scope_of(model),
        key=storable(str(key), 255),
        event=event,
        at=DatabaseNow(),
        detail=storable(detail, 500),
    )


def listen(**changed: object) -> None:
    """Write down every change from now on, if the history of any model is switched on: else nobody pays for it."""
    if changed and changed["setting"] != conf.SETTING:
        return
    try:
        named = conf.setting("HISTORY")
    except ImproperlyConfigured:
        # E001 reports it.
        named = ()
    for signal in EVENTS:
        if named:
            signal.connect(_write, dispatch_uid=__name__)
        else:
            signal.disconnect(dispatch_uid=__name__)


# As tests do.
setting_changed.connect(listen, dispatch_uid=__name__)
