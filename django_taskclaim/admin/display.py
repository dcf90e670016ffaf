"""The claim columns as people read them, in a list and on a page. All that a row holds is text and stays text.

The columns of a row are read by their roles, and seen at one moment of the database's clock.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import DEFAULT_DB_ALIAS, models
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from django_taskclaim.columns import claim_columns
from django_taskclaim.control.models import ClaimEvent
from django_taskclaim.control.reading import history
from django_taskclaim.fields import OPEN_ENDED, QUARANTINED, as_utc
from django_taskclaim.holders import names_of
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.scope import is_expired, is_running
from django_taskclaim.states import Status

#: Open, but not due yet; and running with a lease that has ended.
WAITING, EXPIRED = "waiting", "expired"

#: The words on the pills.
STATES: Mapping[str, Any] = {
    Status.OPEN.value: gettext_lazy("open"),
    WAITING: gettext_lazy("waiting"),
    Status.PROCESSING.value: gettext_lazy("running"),
    EXPIRED: gettext_lazy("expired"),
    Status.COMPLETE.value: gettext_lazy("complete"),
    Status.FAILED.value: gettext_lazy("failed"),
    Status.PAUSED.value: gettext_lazy("paused"),
}


# What there is to say of a row

#: Where an instance keeps its facts once a page has looked at it.
FACTS = "_taskclaim_facts"


def look_at(rows: Iterable[models.Model], now: datetime) -> list["RowFacts"]:
    """Read the claim columns of all rows of a page as they are *now*, by the database's clock."""
    seen = list(rows)
    found = [RowFacts(row, now) for row in seen]
    names = names_of(facts.holder for facts in found)
    for row, facts in zip(seen, found, strict=True):
        facts.holder_name = names[facts.holder]
        row.__dict__[FACTS] = facts
    return found


def longest_running(rows: models.QuerySet[Any], now: datetime, most: int) -> list["RowFacts"]:
    """Return those of *rows* that run under a lease, the longest claimed first."""
    columns = claim_columns(rows.model)
    running = rows.filter(is_running(columns), ~is_expired(columns))
    return look_at(running.order_by(columns.claimed_at.name)[:most], now)


def facts_of(row: models.Model) -> "RowFacts":
    """Return the facts of a row, also of one that no page has looked at."""
    if FACTS not in row.__dict__:
        look_at([row], database_time(row._state.db or DEFAULT_DB_ALIAS))
    facts: RowFacts = row.__dict__[FACTS]
    return facts


class RowFacts:
    """The claim columns of a row as they are read; those that its model does not have are None, or an empty text."""

    def __init__(self, row: models.Model, now: datetime) -> None:
        columns = claim_columns(type(row))

        def read(role: str) -> Any:
            field = getattr(columns, role)
            value = None if field is None else getattr(row, field.attname)
            return as_utc(value) if isinstance(value, datetime) else value

        self.now, self.key = now, row.pk
        self.max_attempts = policy_for(type(row)).max_attempts
        self.status = str(read("status"))
        self.is_held = self.status == Status.PROCESSING
        #: As it is stored, and as people read it.
        self.holder: str = read("claimed_by") or ""
        self.holder_name = self.holder
        self.iteration: int = read("iteration")
        self.claimed_at: datetime | None = read("claimed_at")
        self.expires_at: datetime | None = read("expires_at")
        #: How long the lease still lasts, negative once it has ended; nothing without one.
        self.left = (self.expires_at or now) - now
        self.completed_at: datetime | None = read("completed_at")
        #: When the row was completed, or began its last try; None of one that is not over.
        is_over = self.status in (Status.COMPLETE, Status.FAILED)
        self.ended_at = (self.completed_at or self.claimed_at) if is_over else None
        # A model that counts no tries counts how often the row was put back.
        self.attempts: int = read("attempts" if columns.attempts else "iteration")
        due_at = (read("not_before") if self.status == Status.OPEN else None) or now
        #: Whether the row is to be claimed alone, because its worker died on its last try.
        self.crashed = due_at >= QUARANTINED
        #: How long an open row waits until it is due; None where it is.
        self.wait = due_at - now if now < due_at < QUARANTINED else None
        #: Whether the row is a range of keys among which rows may still be committed.
        self.open_ended = due_at == OPEN_ENDED
        self.error_class: str = read("error_class") or ""
        message, _newline, rest = (read("last_error") or "").strip().partition("\n")
        #: What the error says in its first line, and the rest of the text: the traceback, where one is stored.
        self.error, self.error_rest = message.strip(), rest.strip("\n")
        #: One of ``Status``, or ``waiting``, or ``expired``; and the word on its pill.
        self.kind = self.status
        if self.wait is not None:
            self.kind = WAITING
        elif self.is_held and self.left <= timedelta():
            self.kind = EXPIRED
        self.word = STATES.get(self.kind, self.kind)
        #: What a list offers to do to the row, as django-admin-actions draws it.
        self.buttons: list[dict[str, str]] = []


def summary(facts: RowFacts, *, all_of_it: bool = False) -> SafeString:
    """Return what one line tells of a claim: its state, error, holder, tries and time.

    Of a row that is over, only *all_of_it* names the holder and the tries; without it a long name of a holder is cut.
    """
    context = {"claim": facts, "all_of_it": all_of_it, "length": 255 if all_of_it else 40}
    return render_to_string("admin/taskclaim/summary.html", context)


#: The events of a row's history with which a claim begins; every other ends one.
BEGINNINGS = {"claimed", "handed over", "taken over"}


def steps_of(row: models.Model, alias: str) -> Iterator[tuple[ClaimEvent, timedelta | None]]:
    """Yield the history of a row, and with what ends a claim how long it was held."""
    since = None
    for event in history(type(row), row.pk, using=alias):
        yield event, since and event.at - since
        since = event.at if event.event in BEGINNINGS else None
