"""How far a table has got, and why somebody gets no rows: counts, and a sentence for people made of them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count, Min, Q

from django_taskclaim.fields import OPEN_ENDED
from django_taskclaim.formatting import format_clock_time, format_number
from django_taskclaim.limits import Grant
from django_taskclaim.limits.key_limits import at_their_limit
from django_taskclaim.querysets import scope
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.states import UNKNOWN, Status


@dataclass(frozen=True, slots=True)
class Progress:
    """How many rows are in each state, counted in one statement; on pages and in ``claimstatus`` in part estimated."""

    open: int = 0
    processing: int = 0
    complete: int = 0
    failed: int = 0
    paused: int = 0
    #: Rows whose status is none of the five, which no verb finds: an UPDATE by hand, or another program.
    unknown: int = 0
    #: The states whose numbers are estimates; the sum of all rows is one, too, where there is any.
    estimated: frozenset[str] = frozenset()

    @property
    def total(self) -> int:
        return self.left + self.finished + self.paused + self.unknown

    @property
    def left(self) -> int:
        """Rows that wait to be done, or are being done."""
        return self.open + self.processing

    @property
    def finished(self) -> int:
        """Rows that no worker will touch again unless an operator resets them."""
        return self.complete + self.failed

    @property
    def fraction(self) -> float:
        """The finished part of all rows, from 0.0 to 1.0; 1.0 for an empty table."""
        return self.finished / self.total if self.total else 1.0


def progress_of(queryset: Rows) -> Progress:
    """Count the rows of *queryset* in each state."""
    scope.refuse_unclaimable(queryset)
    target = ClaimTarget.of(queryset.model, queryset.db)
    rows, status = target.rows_of(queryset), target.columns.status.name
    counts = dict(rows.values_list(status).annotate(n=Count("*")))
    if not counts.keys() <= set(Status.values):
        # MySQL and MariaDB claim "Open" as open, and may name all open rows so.
        states = {one.value: Q(**{status: one}) for one in Status}
        states[UNKNOWN] = ~scope.in_state(target.columns, *Status)
        counts = rows.aggregate(**{name: Count(status, filter=q) for name, q in states.items()})
    return Progress(**counts)


class WhyEmpty(NamedTuple):
    """Why somebody who asks for rows gets none; its ``str()`` says so in a sentence."""

    #: The pause, throttle or limit that keeps everybody from claiming now. The other values are left out then.
    stopped: str = ""
    #: How many rows others hold, and when the first of their leases ends, which may have passed.
    held: int = 0
    next_free: datetime | None = None
    #: How many open rows are not due yet, and when the first one is.
    waiting: int = 0
    next_due: datetime | None = None
    #: How many rows are open and due: freed since, or locked at that moment.
    ready: int = 0
    #: How many more would be ready without a limit per key.
    kept_back: int = 0

    def __str__(self) -> str:
        facts = [
            (self.kept_back, "kept back by a limit per key", "", None),
            (self.ready, "free now, ask again", "", None),
            (self.held, "held by others", "next free", self.next_free),
            (self.waiting, "waiting", "next due", self.next_due),
        ]
        parts = [
            f"{format_number(count)} {what}{_at(moment, when)}"
            for count, what, when, moment in facts
            if count
        ]
        return self.stopped or "; ".join(parts) or "nothing is left"


def _at(moment: datetime | None, when: str, comma: str = ", ") -> str:
    return "" if moment is None else f"{comma}{when} {format_clock_time(moment)}"


def why_empty(queryset: Rows, who: str) -> WhyEmpty:
    """Say why *who* gets no rows of *queryset*; see ``ClaimQuerySet.why_empty``."""
    target = ClaimTarget.over(queryset)
    grant = Grant(target)
    stop = grant.stops.throttle or grant.stops.closed
    if grant.stops.pauses:
        return WhyEmpty("paused")
    if stop is not None:
        return WhyEmpty(f"throttled{_at(stop.until, 'until', ' ')}: {grant.stops.throttled}")
    rows = target.rows_of(queryset)
    rows = rows.filter(scope.in_state(target.columns, Status.OPEN, Status.PROCESSING))
    found = WhyEmpty(**rows.aggregate(**_counts(target, who)))
    # Does a rate or a number keep anybody from claiming a single row now?
    grant.allowed(1)
    reached, kept_back = grant.reached, found.ready + found.kept_back
    if reached is None or not kept_back:
        return found
    return WhyEmpty(
        f"{format_number(kept_back)} kept back by {reached.reason}{_at(reached.until, 'next')}"
    )


def _counts(target: ClaimTarget, who: str) -> dict[str, object]:
    """Return what ``WhyEmpty`` holds, as aggregates over open and running rows."""
    columns = target.columns
    status, expiry, waiting = columns.status.name, columns.expires_at.name, columns.not_before
    held = scope.is_running(columns) & ~Q(**{columns.claimed_by.name: who})
    due, limited = scope.is_open(columns) & scope.is_due(columns), at_their_limit(target)
    counts: dict[str, Any] = {
        "held": Count(status, filter=held),
        "next_free": Min(expiry, filter=held),
        "ready": Count(status, filter=due & ~limited if limited else due),
    }
    if limited:
        counts["kept_back"] = Count(status, filter=due & limited)
    if waiting is not None:
        later = scope.is_open(columns) & scope.is_waiting(columns)
        counts["waiting"] = Count(status, filter=later)
        counts["next_due"] = Min(waiting.name, filter=later & ~Q(**{waiting.name: OPEN_ENDED}))
    return counts
