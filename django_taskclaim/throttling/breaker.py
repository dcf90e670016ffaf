"""The circuit breaker: when most tries of a model fail, stop trying for a while, then try with a few rows.

Closed it counts, open it rests, half open it lets one small batch through. A success of that closes it again; when
all of it failed, it rests longer. The name and the three states are those of Michael Nygard's "Release It!".
"""

from dataclasses import dataclass
from threading import Lock

from django_taskclaim import conf
from django_taskclaim.claim import clock

#: Rows of the batch that is let through after a rest; each may cost its row a try.
TRIAL = 3

#: The longest rest, in rests.
LONGEST_REST = 10


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """Why claims of one model wait, and until when by ``clock()``; the cause may end it before."""

    reason: str
    until: float
    #: Whether rows that were claimed but not started are to go back.
    gives_back: bool = False


class CircuitBreaker:
    """One for each model of a process; any thread may call any method.

    It trips when the share ``TASKCLAIM["BREAKER"]`` of at least ``BREAKER_OUTCOMES`` tries in the window failed.
    """

    def __init__(self) -> None:
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
            if self.state is None:
                self._count(good, bad)
            elif self._trial and good:
                self.state = None
                self._begin_to_count()
            elif self._trial:
                self._bad += bad
                if self._bad >= self._trial:
                    self._trip(f"{self._bad} tries after a rest failed again")

    def claimed(self, rows: int) -> None:
        """Note that so many rows were let through: after a rest they are the trial.

        They may be lost or given back, so the outcome is waited for no longer than the window.
        """
        with self._lock:
            if rows and self.state is not None and clock() >= self.state.until:
                self._begin_to_count()
                self._trial = rows
                waits = f"waiting for what becomes of {rows} rows"
                self.state = ThrottleState(waits, clock() + self._within)

    def room(self) -> int | None:
        """Return how many rows may be claimed at once: a few after a rest, None for no limit."""
        return None if self.state is None else TRIAL

    def _begin_to_count(self) -> None:
        #: The trial is the number of rows let through after a rest.
        self._good, self._bad, self._trial, self._counts_since = 0, 0, 0, clock()

    def _count(self, good: int, bad: int) -> None:
        if clock() - self._counts_since > self._within:
            self._begin_to_count()
            self._trips = 0
        self._good += good
        self._bad += bad
        total = self._good + self._bad
        if bad and total >= self._outcomes and self._bad / total >= self._rate:
            self._trip(f"{self._bad} of the last {total} tries failed")

    def _trip(self, reason: str) -> None:
        """Rest, twice as long as the last time if that was not long ago."""
        rests = min(2**self._trips, LONGEST_REST)
        self.state = ThrottleState(reason, clock() + self._rest * rests, gives_back=True)
        # Bounded, for the power grows without an end.
        self._trips = min(self._trips + 1, LONGEST_REST)
        self._begin_to_count()
