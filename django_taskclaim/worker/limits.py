"""What the claims of one process keep to beside the options of handlers and command line, as long as somebody says so.

Set by the service thread, looked at by the claimer; without a limit nothing here costs anything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django_taskclaim.tokens import clock
from django_taskclaim.worker.sizing import BatchSize

#: A rate is kept over so many seconds: a claim takes what has come together in this time at most.
BURST = 1.0
#: A claim waits until so many seconds' worth of rows may be taken, or one row where that is less.
LEAST = 0.25


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of one model; None is no limit."""

    batch_size: int | None = None
    #: Rows that this process may hold at a time.
    concurrency: int | None = None
    #: Rows that this process may claim a second.
    rate: float | None = None
    #: How long its claims last unless renewed.
    lease: timedelta | None = None

    def is_tighter_than(self, other: "Limit") -> bool:
        """Say whether rows that were claimed under *other* may be too many."""
        return _is_less(self.concurrency, other.concurrency) or _is_less(self.rate, other.rate)


def _is_less(new: float | None, old: float | None) -> bool:
    return new is not None and (old is None or new < old)


class Pace:
    """How many rows may be claimed now so that it is no more than so many a second."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._rows = 0.0
        self._looked = clock()

    @property
    def _most(self) -> float:
        return max(1.0, self.rate * BURST)

    def room(self) -> int:
        """Return how many rows may be claimed now."""
        now = clock()
        self._rows = min(self._most, self._rows + self.rate * (now - self._looked))
        self._looked = now
        return int(self._rows)

    def took(self, rows: int) -> None:
        """Note that so many were claimed."""
        self._rows -= rows

    def next_at(self) -> float:
        """Return when, by ``clock()``, a claim is worth its while."""
        missing = max(1.0, self.rate * LEAST) - self._rows
        return self._looked + max(0.0, missing / self.rate)


class Limits:
    """The limits of all models of one process."""

    def __init__(self) -> None:
        #: False while somebody has yet to say what the limits are: until then nothing is claimed.
        self.known = True
        self._limits: dict[Any, Limit] = {}
        self._paces: dict[Any, Pace] = {}

    def keep(self, model: Any, limit: Limit) -> None:
        """Let claims of *model* keep to *limit* from now on."""
        if limit.rate is None:
            self._paces.pop(model, None)
        elif model in self._paces:
            self._paces[model].rate = limit.rate
        else:
            self._paces[model] = Pace(limit.rate)
        self._limits[model] = limit

    def room(self, model: Any, size: BatchSize, held: Callable[[Any], int]) -> int:
        """Return how many rows the next claim may ask for; *held* counts those that the process has already."""
        if not self.known:
            return 0
        limit = self._limits.get(model, _NONE)
        most = [size.most(limit.batch_size, limit.lease)]
        if limit.concurrency is not None:
            most.append(max(0, limit.concurrency - held(model)))
        if pace := self._paces.get(model):
            most.append(pace.room())
        return min(most)

    def lease(self, model: Any) -> timedelta | None:
        """Return how long claims of *model* last unless renewed; None where the handler says so."""
        return self._limits.get(model, _NONE).lease

    def is_full(self, model: Any, held: Callable[[Any], int]) -> bool:
        """Say whether the process holds all the rows of *model* that it may."""
        limit = self._limits.get(model, _NONE)
        return limit.concurrency is not None and held(model) >= limit.concurrency

    def next_at(self, model: Any) -> float:
        """Return when, by ``clock()``, rows of *model* may be claimed again; in the past where nothing limits that."""
        pace = self._paces.get(model)
        return 0.0 if pace is None else pace.next_at()

    def took(self, model: Any, rows: int) -> None:
        """Note that a claim has returned so many rows."""
        if pace := self._paces.get(model):
            pace.took(rows)


_NONE = Limit()
