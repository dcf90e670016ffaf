"""The history of single rows, for models that ``TASKCLAIM["HISTORY"]`` names: heard from the signals, after the commit.

One INSERT a batch, on the connection that changed the rows; an error is logged and changes nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db.models import F
from django.dispatch import Signal
from django.utils.translation import gettext_noop

from django_taskclaim import conf, signals
from django_taskclaim.claim import claim_of
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.audit import storable
from django_taskclaim.control.installed import is_on
from django_taskclaim.control.models import ClaimEvent
from django_taskclaim.control.reading import HANDED_TO
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


def is_kept(model: Any, using: str) -> bool:
    """Say whether the history of rows of *model* is switched on, and can be written there."""
    named = conf.setting("HISTORY")
    return (
        bool(named) and scope_of(model) in {str(label).lower() for label in named} and is_on(using)
    )


def _note(
    model: object, using: str, event: str, rows: Iterable[object], details: Sequence[str] = ()
) -> None:
    """Write that *event* happened to *rows*, each with a detail of its own where there are some."""
    given = list(rows)
    told = details or [""] * len(given)
    events = [_event(model, event, row, detail) for row, detail in zip(given, told, strict=True)]
    ClaimEvent.objects.using(using).bulk_create(events, batch_size=int(conf.setting("CHUNK_SIZE")))


def _event(model: Any, event: str, row: Any, detail: str) -> ClaimEvent:
    claim = claim_of(row)
    return ClaimEvent(
        model=scope_of(model),
        key=_key(row.pk if claim is None else claim.pk),
        event=event,
        holder="" if claim is None else claim.token.holder,
        iteration=None if claim is None else claim.token.iteration,
        at=DatabaseNow(),
        detail=storable(detail, 500),
    )


def _key(key: object) -> str:
    return storable(str(key), 255)


def _claimed(sender: object, rows: Sequence[object], using: str, **kwargs: object) -> None:
    if is_kept(sender, using):
        _note(sender, using, "claimed", rows)


def _completed(sender: object, rows: Sequence[object], using: str, **kwargs: object) -> None:
    if is_kept(sender, using):
        _note(sender, using, "completed", rows)


def _released(sender: object, rows: Sequence[object], using: str, **kwargs: object) -> None:
    if is_kept(sender, using):
        _note(sender, using, "released", rows)


def _lost(sender: Any, rows: Sequence[Any], using: str, **kwargs: object) -> None:
    if is_kept(sender, using):
        _note(sender, using, "lost", [row for row in rows if claim_of(row) is not None])


def _failed(
    sender: Any, rows: Sequence[object], using: str, error: object, **kwargs: object
) -> None:
    if not is_kept(sender, using):
        return
    told = one_line(*class_and_text(error))
    status = claim_columns(sender).status.attname
    final = [row for row in rows if row.__dict__.get(status) == Status.FAILED]
    again = [row for row in rows if row.__dict__.get(status) != Status.FAILED]
    for event, same in (("failed", final), ("retried", again)):
        if same:
            _note(sender, using, event, same, [told] * len(same))


def _renewed(sender: Any, rows: Sequence[Any], using: str, **kwargs: Any) -> None:
    """Keep the renewals of one claim as one event: when the latest was, and how many there were."""
    if not is_kept(sender, using):
        return
    by_holder: dict[str, dict[str, Any]] = {}
    for row in rows:
        if (claim := claim_of(row)) is not None:
            by_holder.setdefault(claim.token.holder, {})[_key(claim.pk)] = row
    for holder, same in by_holder.items():
        known = ClaimEvent.objects.using(using).filter(
            model=scope_of(sender), key__in=list(same), event="renewed", holder=holder
        )
        there = set(known.values_list("key", flat=True))
        if there:
            known.update(at=DatabaseNow(), times=F("times") + 1)
        if len(there) < len(same):
            _note(sender, using, "renewed", [same[key] for key in same if key not in there])


def _expired(
    sender: object,
    keys: Sequence[object],
    outcome: str,
    using: str,
    holders: Sequence[str | None] = (),
    **kwargs: object,
) -> None:
    if is_kept(sender, using):
        _note_keys(sender, using, "expired", keys, OUTCOMES[outcome], holders)


def _handed_over(
    sender: object, rows: Sequence[object], to: str, using: str, **kwargs: object
) -> None:
    if is_kept(sender, using):
        _note(sender, using, "handed over", rows, [f"{HANDED_TO}{to}"] * len(rows))


def _acted_on(
    sender: object,
    keys: Sequence[object],
    act: str,
    using: str,
    by: str | None = None,
    reason: str = "",
    **kwargs: object,
) -> None:
    if is_kept(sender, using):
        _note_keys(sender, using, act, keys, reason, [by] * len(keys))


def _note_keys(
    model: Any,
    using: str,
    event: str,
    keys: Sequence[object],
    detail: str = "",
    holders: Sequence[str | None] = (),
) -> None:
    """Write that *event* happened to the rows with these keys, of which nobody has loaded an instance."""
    who = holders or [None] * len(keys)
    events = [
        ClaimEvent(
            model=scope_of(model),
            key=_key(key),
            event=event,
            holder=holder or "",
            at=DatabaseNow(),
            detail=detail,
        )
        for key, holder in zip(keys, who, strict=True)
    ]
    ClaimEvent.objects.using(using).bulk_create(events, batch_size=int(conf.setting("CHUNK_SIZE")))


_RECEIVERS: dict[Signal, Callable[..., None]] = {
    signals.rows_claimed: _claimed,
    signals.rows_renewed: _renewed,
    signals.rows_completed: _completed,
    signals.rows_failed: _failed,
    signals.rows_released: _released,
    signals.rows_handed_over: _handed_over,
    signals.claim_lost: _lost,
    signals.rows_expired: _expired,
    signals.rows_acted_on: _acted_on,
}


def listen(**changed: object) -> None:
    """Hear of every change from now on, if the history of any model is switched on: else nobody pays for it."""
    if changed and changed["setting"] != conf.SETTING:
        return
    try:
        named = conf.setting("HISTORY")
    except ImproperlyConfigured:
        # E001 reports it.
        named = ()
    for signal, receiver in _RECEIVERS.items():
        if named:
            signal.connect(receiver, dispatch_uid=__name__)
        else:
            signal.disconnect(dispatch_uid=__name__)


# As tests do.
setting_changed.connect(listen, dispatch_uid=__name__)
