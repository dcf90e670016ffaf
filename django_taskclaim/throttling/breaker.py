"""The circuit breaker: when most tries of a model fail, stop trying for a while, then try with a few rows.

Closed it counts, open it rests, half open it lets one small batch through; a success of that closes it again, and
when all of it failed it rests longer. The name and the three states are those of Michael Nygard's "Release It!".
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from typing import Any, Self

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.throttling.holds import Hold

#: Rows of the batch that is let through after a rest; each may cost its row a try.
TRIAL = 3

#: The longest rest, in rests.
LONGEST_REST = 10

#: Parts of the window that are forgotten one at a time, so that memory does not grow with the rows.
PARTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When to trip, ``TASKCLAIM["BREAKER"]`` in words: *rate* of at least *outcomes* within the window failed."""

    rate: float
    outcomes: int
    within: timedelta
    rest: timedelta

    @classmethod
    def configured(cls) -> Self | None:
        """Return the rule of the settings, keys that are left out at their defaults; None without a breaker."""
        given: Mapping[str, Any] | None = conf.setting("BREAKER")
        if given is None:
            return None
        told = {**conf.BREAKER_DEFAULTS, **given}
        return cls(
            rate=told["rate"],
            outcomes=told["outcomes"],
            within=conf.as_duration(told["within"]),
            rest=conf.as_duration(told["rest"]),
        )


@dataclass(slots=True)
class _Part:
    """Outcomes of one tenth of the window."""

    since: float
    good: int = 0
    bad: int = 0


class CircuitBreaker:
    """One for each model of a process; any thread may call any method."""

    def __init__(self, rule: Rule, now: Callable[[], float] = clock) -> None:
        self.rule = rule
        self._now = now
        self._lock = Lock()
        self._parts: deque[_Part] = deque()
        #: Until when nothing is tried; None while the breaker is closed.
        self._rests_until: float | None = None
        self._trial = _Trial(0, 0.0)
        self._why = ""
        self._trips = 0
        self._closed_at = now()

    def heard(self, *, good: int = 0, bad: int = 0) -> None:
        """Count outcomes. While it rests they are late ones of before, which say nothing new."""
        with self._lock:
            if self._rests_until is None:
                self._count(good, bad)
            elif self._trial.rows:
                self._judge_trial(good, bad)

    def claimed(self, rows: int) -> None:
        """Note that so many rows were let through: after a rest they are the trial."""
        with self._lock:
            if rows and self._rests_until is not None and self._now() >= self._rests_until:
                self._trial = _Trial(rows, self._now() + self.rule.within.total_seconds())

    def hold(self) -> Hold | None:
        """Return why nothing may be claimed now; None also while a trial may be."""
        with self._lock:
            if self._rests_until is None:
                return None
            if self._now() < self._rests_until:
                return Hold(self._why, self._rests_until, gives_back=True)
            if self._now() < self._trial.until:
                return Hold(
                    f"waiting for what becomes of {self._trial.rows} rows", self._trial.until
                )
            return None

    def room(self) -> int | None:
        """Return how many rows may be claimed at once: a few after a rest, None for no limit."""
        with self._lock:
            return None if self._rests_until is None else TRIAL

    def _count(self, good: int, bad: int) -> None:
        now, window = self._now(), self.rule.within.total_seconds()
        while self._parts and self._parts[0].since <= now - window:
            self._parts.popleft()
        if not self._parts or now - self._parts[-1].since >= window / PARTS:
            self._parts.append(_Part(now))
        self._parts[-1].good += good
        self._parts[-1].bad += bad
        failed = sum(part.bad for part in self._parts)
        total = failed + sum(part.good for part in self._parts)
        if bad and total >= self.rule.outcomes and failed / total >= self.rule.rate:
            if now - self._closed_at > window:
                self._trips = 0
            self._trip(f"{failed} of the last {total} tries failed")

    def _judge_trial(self, good: int, bad: int) -> None:
        if good:
            self._rests_until, self._trial = None, _Trial(0, 0.0)
            self._closed_at = self._now()
            return
        self._trial.failed += bad
        if self._trial.failed >= self._trial.rows:
            self._trip(f"{self._trial.failed} tries after a rest failed again")

    def _trip(self, why: str) -> None:
        """Rest, twice as long as the last time if that was not long ago."""
        rest = self.rule.rest.total_seconds() * min(2**self._trips, LONGEST_REST)
        # Bounded, for the power grows without an end.
        self._trips = min(self._trips + 1, LONGEST_REST)
        self._why = why
        self._rests_until = self._now() + rest
        self._trial = _Trial(0, 0.0)
        self._parts.clear()


@dataclass(slots=True)
class _Trial:
    """The rows let through after a rest. They may be lost or given back, so they are waited for until a moment."""

    rows: int
    until: float
    failed: int = 0
