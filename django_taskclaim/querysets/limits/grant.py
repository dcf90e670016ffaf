"""How many rows a claim may take under ``rate``, ``max_running`` and ``hours``, over all who claim.

They are looked at with each claim of such a model, by the database's clock; what is counted is counted under the lock
for which claims that count wait, so no other claim changes it before this one commits.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.apps import apps
from django.db import models

from django_taskclaim.allowances import Rate
from django_taskclaim.fields import as_utc
from django_taskclaim.querysets.limits.stored import (
    ModelLimits,
    effective,
    is_limited,
    learns_of_limits,
    limits_held,
    named_limits,
    stored_rows,
)
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.states import Status

#: What a claim of a new model may take at once under a rate.
FIRST_ROWS = 1.0

#: A worker asks again once this part of what may come together has come, or one row.
WORTH_WHILE = 0.25

#: What was written so far ahead of the database's clock was written by another clock, of a server before this one.
AHEAD = timedelta(seconds=5)


class Refusal(NamedTuple):
    """Why a claim may take nothing, or no more, now."""

    #: ``hours``, ``rate`` or ``max_running``.
    option: str
    #: When that will be over; None where nobody can tell.
    until: datetime | None
    #: The same, in seconds from now.
    wait: float | None
    limits: ModelLimits


@dataclass(slots=True)
class Answer:
    """What a claim leaves for those who ask again: why it took no more than it did."""

    refusal: Refusal | None = None


class Grant:
    """How many rows one claim of a limited model may take, and what it has taken."""

    def __init__(self, target: ClaimTarget, answer: Answer | None = None) -> None:
        self._target, self._answer = target, answer or Answer()
        self._ask()

    def _ask(self) -> None:
        """Ask what holds, without a lock."""
        self._limits, rows = limits_held(self._target)
        known = next(iter(rows.values()), None)
        self.now = self._target.dialect.current_time() if known is None else as_utc(known.now)
        self._rates = {one.scope: one.rate for one in self._limits if one.rate is not None}
        #: How many rows each rate lets be claimed, by scope.
        self._levels = {
            scope: _level(rate, rows.get(scope), self.now) for scope, rate in self._rates.items()
        }
        filled = {scope: rows[scope].filled_at for scope in self._rates if scope in rows}
        #: Scopes of rates that were filled at a moment which this clock has not come to.
        self._ahead = [
            scope for scope, at in filled.items() if at and as_utc(at) > self.now + AHEAD
        ]

    @property
    def is_ahead(self) -> bool:
        """Whether a clock before this one has filled a rate, which only a claim under the lock can mend."""
        return bool(self._ahead)

    @property
    def counted(self) -> list[str]:
        """The names of what is counted, for which claims have to wait for each other."""
        options = ("rate", "max_running")
        return [name for name in options if any(getattr(one, name) for one in self._limits)]

    def closed(self) -> Refusal | None:
        """Return which hours keep rows from being claimed now: those that open last."""
        found = [
            Refusal("hours", opens, (opens - self.now).total_seconds(), one)
            for one in self._limits
            if one.hours is not None and (opens := one.hours.opens_at(self.now)) is not None
        ]
        return max(found, key=lambda one: one.until or self.now, default=None)

    def room(self, wanted: int) -> int:
        """Return how many of the *wanted* rows hours and rates let be claimed."""
        self._answer.refusal = self.closed()
        if self._answer.refusal is not None:
            return 0
        scope = min(self._levels, key=lambda one: self._levels[one], default=None)
        if scope is None or (room := max(0, int(self._levels[scope]))) >= wanted:
            return wanted
        rate, level = self._rates[scope], self._levels[scope]
        enough = max(1.0, rate.most * WORTH_WHILE)
        missing = enough - (level - room) if room else min(enough, rate.most) - level
        wait = max(0.0, missing / rate.per_second)
        limits = next(one for one in self._limits if one.scope == scope)
        self._answer.refusal = Refusal("rate", self.now + timedelta(seconds=wait), wait, limits)
        return room

    def room_under_lock(self, wanted: int) -> int:
        """Return how many of the *wanted* rows may be claimed, by what no other claim changes any more."""
        self._ask()
        if self._ahead:
            # Filled from now on: not before this clock shows again what the one before it has shown.
            stored_rows(self._target.alias, self._ahead).update(filled_at=self.now)
        return self._places(self.room(wanted))

    def _places(self, wanted: int) -> int:
        """Return how many of the *wanted* rows may be processing beside those that are."""
        limited = [one for one in self._limits if one.max_running]
        if not limited or not wanted:
            return wanted
        target, limits = self._target, min(limited, key=lambda one: one.max_running or 0)
        most = limits.max_running or 0
        running = target.rows.order_by().filter(**{target.columns.status.name: Status.PROCESSING})
        held = len(target.dialect.first(running, target.table, most, target.columns.key))
        if most - held < wanted:
            self._answer.refusal = Refusal("max_running", None, None, limits)
        return max(0, min(wanted, most - held))

    def charge(self, taken: int, room: int) -> None:
        """Take so many rows off what each rate allows."""
        if taken < room:
            # It was not for a limit that the claim took no more.
            self._answer.refusal = None
        if not taken or not self._rates:
            return
        # The rows have been claimed since it was asked what holds, later where the machine stood still. What came
        # meanwhile counts, but not beside all that may come together: a minute from the claim on would exceed the rate.
        now = self._target.dialect.current_time()
        since = max(0.0, (now - self.now).total_seconds())
        model = apps.get_model("taskclaim", "FleetLimit")
        for scope, rate in self._rates.items():
            came = min(rate.most, self._levels[scope] + since * rate.per_second)
            facts = {"level": came - taken, "filled_at": now}
            if not stored_rows(self._target.alias, [scope]).update(**facts):
                rows = model._default_manager.using(self._target.alias)
                rows.bulk_create([model(scope=scope, **facts)], ignore_conflicts=True)

    def refusal(self) -> Refusal | None:
        """Return what keeps anybody from claiming a single row now; None where nothing of this kind does."""
        return None if self._places(self.room(1)) else self._answer.refusal


def refused_now(target: ClaimTarget) -> Refusal | None:
    """Return what limit keeps anybody from claiming a single row now; None where none does."""
    if not is_limited(target.model, target.alias) and not learns_of_limits(target):
        return None
    return Grant(target).refusal()


def settled(model: type[models.Model], row: Any) -> dict[str, Any]:
    """Return what the rate that holds by *row* has left at the row's ``now``, for another to begin with."""
    rate = effective(named_limits(model).get(row.scope, ModelLimits(row.scope)), row).rate
    if rate is None or row.filled_at is None:
        return {"filled_at": None}
    now = as_utc(row.now)
    return {"level": _level(rate, row, now), "filled_at": now}


def _level(rate: Rate, row: Any, now: datetime) -> float:
    if row is None or row.filled_at is None:
        return FIRST_ROWS
    # Who waited for the lock may have asked the time before the one in front has written it.
    since = max(0.0, (now - as_utc(row.filled_at)).total_seconds())
    return float(min(rate.most, row.level + since * rate.per_second))
