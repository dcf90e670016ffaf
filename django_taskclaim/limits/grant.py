"""How many rows one claim may take under ``rate``, ``max_running`` and ``hours``, by the database's clock.

What is counted is counted under the lock for which claims that count wait, so no other claim changes it before this one
commits.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django_taskclaim.fields import as_utc
from django_taskclaim.limits.model_limits import ModelLimits, Rate, limits_of
from django_taskclaim.querysets.conditions import is_running
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.transactions import refuse_old_snapshots
from django_taskclaim.tables import RateLevel

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
        self._levels = RateLevel.objects.using(target.alias)

    def begin(self, wanted: int, *, by_key: bool) -> int:
        """Return how many of the *wanted* rows may be claimed in the transaction that is open.

        Where rows are counted, by key or over the whole table, claims of the table wait for each other from here on
        until they commit.
        """
        if self._closed():
            return 0
        if by_key or self._rates or any(one.max_running for one in self._limits):
            label = self._target.columns.owner._meta.label_lower
            refuse_old_snapshots(
                self._target,
                f"claim_batch() counts what others have claimed for a limit of {label}",
            )
            self._target.dialect.advisory_lock(f"limits:{label}")
        return self._allowed(wanted)

    def refused_now(self) -> Refusal | None:
        """Return which limit keeps anybody from claiming a single row now; None where none does."""
        return None if not self._closed() and self._allowed(1) else self._answer.refusal

    def _closed(self) -> bool:
        """Say whether hours keep rows from being claimed now."""
        self._answer.refusal = None
        if any(one.hours for one in self._limits):
            self._answer.refusal = closed_hours(self._limits, self._target.dialect.current_time())
        return self._answer.refusal is not None

    def _allowed(self, wanted: int) -> int:
        stored = self._stored_levels()
        now = self._target.dialect.current_time() if self._rates else None
        for limits in self._limits:
            if limits.rate is None or now is None:
                continue
            level = _level(limits.rate, stored.get(limits.scope), now)
            if int(level) < wanted:
                wanted = max(0, int(level))
                wait = _wait_for(limits.rate, level, wanted)
                until = now + timedelta(seconds=wait)
                self._answer.refusal = Refusal("rate", limits, until, wait)
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
        if not taken or not self._rates:
            return
        # By the clock of now: the rows may have been claimed much later than was asked, where the machine stood still.
        # What came meanwhile is capped first, else the minute from the claim on would exceed the rate.
        now, stored = self._target.dialect.current_time(), self._stored_levels()
        for scope, rate in self._rates.items():
            level = _level(rate, stored.get(scope), now) - taken
            if not self._levels.filter(scope=scope).update(level=level, at=now):
                self._levels.create(scope=scope, level=level, at=now)

    def _stored_levels(self) -> dict[str, RateLevel]:
        """Return how many rows each rate let be claimed after the last claim, by scope."""
        rows = self._levels.filter(scope__in=self._rates) if self._rates else ()
        return {row.scope: row for row in rows}


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
