"""The circuit breaker: when most tries of a model fail, stop trying for a while, then try with one row.

Closed it counts, open it rests, half open it lets one row through. If that is done, it closes again; if it fails, the
next rest is longer. The name and the three states are those of Michael Nygard's "Release It!".
"""

from dataclasses import dataclass
from threading import Lock

from django.db.models import Model

from django_taskclaim import conf
from django_taskclaim.claim import clock

#: The longest rest, in rests.
LONGEST_REST = 10


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """Why claims of one model wait, and until when by ``clock()``; the cause may end it before."""

    reason: str
    until: float


class CircuitBreaker:
    """One for each model of a process; any thread may call any method.

    It trips when the share ``TASKCLAIM["BREAKER"]`` of at least ``BREAKER_OUTCOMES`` tries in the window failed.
    """

    name = "circuit breaker"

    def __init__(self, model: type[Model]) -> None:
        self.models = [model]
        self._rate, self._outcomes = conf.setting("BREAKER"), conf.setting("BREAKER_OUTCOMES")
        self._within = conf.duration("BREAKER_WITHIN").total_seconds()
        self._rest = conf.duration("BREAKER_REST").total_seconds()
        self._lock = Lock()
        self._trips = 0
        #: Why nothing may be claimed, or was until the rest was over; None while the breaker is closed.
        self.state: ThrottleState | None = None
        self._begin_to_count()

    def heard(self, *, good: int = 0, bad: int = 0) -> None:
        """Count outcomes. While it rests they are late ones of before, and are ignored."""
        with self._lock:
            if self.rests():
                return
            if self.state is not None and not good:
                if bad:
                    self._trip("a try after a rest failed again")
                return
            if self.state is not None:
                self.state = None
                self._begin_to_count()
            if clock() - self._counts_since > self._within:
                self._begin_to_count()
                self._trips = 0
            self._good += good
            self._bad += bad
            total = self._good + self._bad
            if bad and total >= self._outcomes and self._bad / total >= self._rate:
                self._trip(f"{self._bad} of the last {total} tries failed")

    def rests(self) -> bool:
        """Say whether nothing may be claimed now; what has not started is to go back, because it would only fail."""
        return self.state is not None and clock() < self.state.until

    def _begin_to_count(self) -> None:
        self._good, self._bad, self._counts_since = 0, 0, clock()

    def _trip(self, reason: str) -> None:
        """Rest, twice as long as the last time if that was not long ago."""
        rests = min(2**self._trips, LONGEST_REST)
        self.state = ThrottleState(reason, clock() + self._rest * rests)
        self._trips += 1
        self._begin_to_count()
