"""How many rows one claim may take under ``rate``, ``max_running`` and ``hours``, by the database's clock.

What is counted is counted under the lock for which claims that count wait, so no other claim changes it before this one
commits.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from django_taskclaim.db import ClaimedRow
from django_taskclaim.fields import as_utc
from django_taskclaim.limits.key_limits import limits_over
from django_taskclaim.limits.model_limits import ModelLimits, limits_of
from django_taskclaim.limits.rate_and_hours import Rate
from django_taskclaim.querysets.conditions import is_running
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.transactions import refuse_old_snapshots
from django_taskclaim.tables import RateLevel

if TYPE_CHECKING:
    from django_taskclaim.querysets.claiming import ClaimCall

#: What the first claim under a rate may take.
FIRST_ROWS = 1.0

#: A level from further in the future was written by the clock of a server before this one.
AHEAD = timedelta(seconds=5)

#: A worker asks again once this part of what a rate saves up has become available, or one row.
WORTH_WHILE = 0.25


class Refusal(NamedTuple):
    """Why a claim may take nothing, or no more, now."""

    #: ``hours``, ``rate`` or ``max_running``.
    option: str
    limits: ModelLimits
    #: When that will be over, and in how many seconds; None where nobody can say.
    until: datetime | None = None
    wait: float | None = None


def closed_hours(limits: Iterable[ModelLimits], now: datetime) -> Refusal | None:
    """Return which hours keep rows from being claimed *now*: those that open last; None where all are open."""
    found = [
        Refusal("hours", one, opens, (opens - now).total_seconds())
        for one in limits
        if one.hours is not None and (opens := one.hours.opens_at(now)) is not None
    ]
    return max(found, key=lambda one: one.wait or 0.0, default=None)


@dataclass(slots=True)
class Answer:
    """What a claim leaves for a caller that asks again: why it took no more than it did."""

    refusal: Refusal | None = None


class Grant:
    """How many rows one claim of a limited model may take, and what it has taken."""

    def __init__(self, target: ClaimTarget, answer: Answer | None = None) -> None:
        self._target, self._answer = target, answer or Answer()
        self._limits = limits_of(target.model, using=target.alias)
        self._rates = {one.scope: one.rate for one in self._limits if one.rate is not None}
        #: How many rows each rate lets be claimed, by scope, and when that was asked.
        self._levels: dict[str, float] = {}
        self._asked_at: datetime | None = None

    @property
    def counted(self) -> list[str]:
        """The names of what is counted, for which claims have to wait for each other."""
        options = ("rate", "max_running")
        return [name for name in options if any(getattr(one, name) for one in self._limits)]

    def closed(self) -> Refusal | None:
        """Return which hours keep rows from being claimed now: those that open last."""
        self._answer.refusal = None
        if any(one.hours for one in self._limits):
            self._answer.refusal = closed_hours(self._limits, self._target.dialect.current_time())
        return self._answer.refusal

    def allowed(self, wanted: int) -> int:
        """Return how many of the *wanted* rows may be claimed, by what no other claim changes any more."""
        return self._allowed_to_run(self._allowed_by_rates(wanted))

    def _allowed_by_rates(self, wanted: int) -> int:
        if not self._rates:
            return wanted
        now = self._asked_at = self._target.dialect.current_time()
        rows = RateLevel.objects.using(self._target.alias).filter(scope__in=self._rates)
        stored = {row.scope: row for row in rows}
        for limits in self._limits:
            if (rate := limits.rate) is None:
                continue
            level = self._levels[limits.scope] = _level(rate, stored.get(limits.scope), now)
            if int(level) < wanted:
                wanted = max(0, int(level))
                wait = _wait_for(rate, level, wanted)
                until = now + timedelta(seconds=wait)
                self._answer.refusal = Refusal("rate", limits, until, wait)
        return wanted

    def _allowed_to_run(self, wanted: int) -> int:
        """Return how many of the *wanted* rows may be processing beside those that are."""
        limited = [one for one in self._limits if one.max_running]
        if not limited or not wanted:
            return wanted
        target, limits = self._target, min(limited, key=lambda one: one.max_running or 0)
        most = limits.max_running or 0
        running = target.rows.order_by().filter(is_running(target.columns))
        held = len(target.dialect.first(running, target.table, most, target.columns.key))
        if most - held < wanted:
            self._answer.refusal = Refusal("max_running", limits)
        return max(0, min(wanted, most - held))

    def charge(self, taken: int, allowed: int) -> None:
        """Take so many rows off what each rate allows."""
        if taken < allowed:
            # It was not for a limit that the claim took no more.
            self._answer.refusal = None
        if not taken or self._asked_at is None:
            return
        # The rows were claimed later than the level was asked for, much later where the machine stood still. What came
        # meanwhile is capped before they are taken off: else the minute from the claim on would exceed the rate.
        now = self._target.dialect.current_time()
        seconds = (now - self._asked_at).total_seconds()
        rows = RateLevel.objects.using(self._target.alias)
        for scope, rate in self._rates.items():
            level = rate.later(self._levels[scope], seconds) - taken
            if not rows.filter(scope=scope).update(level=level, at=now):
                rows.create(scope=scope, level=level, at=now)


def _wait_for(rate: Rate, level: float, taken: int) -> float:
    """Return in how many seconds it is worth while to ask again, once *taken* rows are off the *level*."""
    enough = max(1.0, rate.most * WORTH_WHILE)
    missing = enough - (level - taken) if taken else min(enough, rate.most) - level
    return max(0.0, missing / rate.per_second)


def _level(rate: Rate, stored: RateLevel | None, now: datetime) -> float:
    """Return how many rows may be claimed *now*, by what the last claim has *stored*."""
    if stored is None or as_utc(stored.at) > now + AHEAD:
        return FIRST_ROWS
    return rate.later(stored.level, (now - as_utc(stored.at)).total_seconds())


def refused_now(target: ClaimTarget) -> Refusal | None:
    """Return what limit keeps anybody from claiming a single row now; None where none does."""
    answer = Answer()
    grant = Grant(target, answer)
    return None if grant.closed() is None and grant.allowed(1) else answer.refusal


def claim_within_limits(call: "ClaimCall", wanted: int) -> list[ClaimedRow]:
    """Claim up to *wanted* rows in the transaction that is open, and no more than the limits of the model allow."""
    target = call.target
    grant = Grant(target, call.request.answer)
    if grant.closed() is not None:
        return []
    counted = [*grant.counted, *dict.fromkeys(one.option for one in limits_over(target.model))]
    if counted:
        names = " and ".join(counted)
        refuse_old_snapshots(target, f"claim_batch() counts what others have claimed for {names}")
        # Claims of the table that count wait for each other until they commit.
        target.dialect.advisory_lock(f"limits:{target.columns.owner._meta.label_lower}")
    allowed = grant.allowed(wanted)
    rows = call.take(allowed) if allowed else []
    grant.charge(len(rows), allowed)
    return rows
