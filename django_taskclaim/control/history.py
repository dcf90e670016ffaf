"""The history of single rows: failures, and for models that ``TASKCLAIM["HISTORY"]`` names all that happens to them.

One INSERT a batch, after the commit, on the connection that changed the rows; an error is logged and changes nothing
else.
"""

from typing import Any

from django.core.signals import setting_changed
from django.dispatch import Signal

from django_taskclaim import conf, signals
from django_taskclaim.claim import claim_of
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.models import ClaimEvent, is_on
from django_taskclaim.control.reading import is_named
from django_taskclaim.db import DatabaseNow
from django_taskclaim.error_text import clean, describe
from django_taskclaim.querysets.operating import OUTCOMES
from django_taskclaim.states import Status
from django_taskclaim.tables import scope_of

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
    """Write what a signal says of the rows of *sender*, or of those with these keys, which nobody has loaded."""
    if not is_on(using) or (signal is not signals.rows_failed and not is_named(sender)):
        return
    event, detail = EVENTS[signal] or facts["act"], facts.get("to") or facts.get("reason", "")
    if signal is signals.rows_expired:
        detail, _columns = OUTCOMES[facts["outcome"]]
    elif signal is signals.rows_failed:
        detail = describe(facts["error"])
    shared = {"model": scope_of(sender), "at": DatabaseNow(), "detail": clean(detail)[:500]}
    keys = facts.get("keys", ())
    holders = facts.get("holders") or [facts.get("by", "")] * len(keys)
    found = [
        ClaimEvent(
            key=clean(str(key))[:255], event=event, holder=clean(holder or "")[:200], **shared
        )
        for key, holder in zip(keys, holders, strict=True)
    ]
    status = claim_columns(sender).status.attname
    for row in facts.get("rows", ()):
        is_back = event == "failed" and row.__dict__.get(status) != Status.FAILED
        one = ClaimEvent(event="retried" if is_back else event, **shared)
        if claim := claim_of(row):
            one.key, (one.holder, one.iteration) = clean(str(claim.pk))[:255], claim.token
            found.append(one)
    ClaimEvent.objects.using(using).bulk_create(found, batch_size=int(conf.setting("CHUNK_SIZE")))


def listen(**changed: object) -> None:
    """Write down failures from now on, and every change if the project names models."""
    for signal in EVENTS:
        is_kept = conf.is_given("HISTORY") or signal is signals.rows_failed
        (signal.connect if is_kept else signal.disconnect)(_write, dispatch_uid=__name__)


# As tests do.
setting_changed.connect(listen, dispatch_uid=__name__)
