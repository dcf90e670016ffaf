"""When expired rows are put back again and again: only after the living could have renewed them."""

import random
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.policy import RENEWALS_PER_LEASE, policy_for
from django_taskclaim.querysets.manager import ClaimQuerySet
from django_taskclaim.querysets.operating import release_expired
from django_taskclaim.querysets.refusals import without_refused
from django_taskclaim.querysets.scope import ClaimTarget

#: How often the database's clock is read in a renewal interval, at least.
READINGS = 8


class Reaper:
    """Puts back the expired rows of one model for as long as ``turn`` is called, several times a second.

    As long as there are some, the database's clock is read again and again. What had expired by a reading is put back
    once the database has answered promptly for a renewal interval after it. Meanwhile the living renew, and a renewed
    lease ends after the reading. So a silence charges no row of a living worker: not a silence of the database, nor
    one of this process, nor one that the last statement itself waits through.
    """

    def __init__(
        self,
        model: Any,
        using: str,
        every: timedelta | None = None,
        lease: Callable[[], timedelta] | None = None,
    ) -> None:
        """Look *every* so often; None follows the setting REAPER_INTERVAL.

        *lease* says how long the claims of this process last, from which the renewal interval follows; without it the
        model's policy does.
        """
        self.model, self.using, self._every = model, using, every
        self._lease = lease or (lambda: policy_for(model).lease)
        #: What the database's clock said, and for how many seconds there had been prompt answers by then.
        self._readings: deque[tuple[datetime, float]] = deque()
        #: Seconds of prompt answers since the first reading, and when the last answer came, by ``clock()``.
        self._prompt, self._answered = 0.0, 0.0
        self._due = self._next_look = 0.0

    def due_in(self) -> float:
        """Return the seconds until ``turn`` has something to do."""
        return max(0.0, self._due - clock())

    def start_over(self) -> None:
        """Wait for a whole renewal interval again, as after any error of the database."""
        self._readings.clear()

    def turn(self, limit: int | None = None, *, until_done: bool = False) -> int | None:
        """Do what is due and return how many rows were put back, at most *limit*; None if there was nothing to do.

        With *until_done*, a call that reached its limit is repeated by the next turn, at once.
        """
        if self.due_in():
            return None
        try:
            if not self._readings:
                self._look()
                return 0
            self._read()
            return self._put_back(limit, until_done=until_done)
        except BaseException:
            self._rest()
            raise

    def _look(self) -> None:
        """Find out whether anything has expired; only then is there anything to read, or to go on reading."""
        self._next_look = clock() + self._interval() * random.uniform(0.75, 1.0)
        if not self._rows().expired().exists():
            self._rest()
        elif not self._readings:
            self._prompt, self._answered = 0.0, clock()
            self._read()

    def _rest(self) -> None:
        self.start_over()
        self._due = self._next_look

    def _put_back(self, limit: int | None, *, until_done: bool) -> int:
        cutoff, prompt = self._readings[0]
        if self._prompt - prompt < self._renewal_interval():
            return 0
        released = release_expired(self._rows(), limit, cutoff)
        if released != limit:
            # More may have expired since that reading, and waits for one of its own.
            self._look()
        elif until_done:
            self._due = 0.0
        else:
            self._rest()
        return released

    def _read(self) -> None:
        """Read the database's clock once a renewal could be written, and forget all readings older than needed."""
        target = ClaimTarget.of(self.model, self.using)
        moment, renewal = target.dialect.writable_at(target.table), self._renewal_interval()
        since, self._answered = self._answered, clock()
        if self._readings:
            # One silence, however long, counts for no more than half of the time that the living need.
            self._prompt += min(self._answered - since, renewal / 2)
        self._readings.append((moment, self._prompt))
        while len(self._readings) > 1 and self._prompt - self._readings[1][1] >= renewal:
            self._readings.popleft()
        wait = min(renewal / READINGS, self._interval())
        missing = renewal - (self._prompt - self._readings[0][1])
        self._due = self._answered + (min(wait, missing) if missing > 0 else wait)

    def _interval(self) -> float:
        every = conf.duration("REAPER_INTERVAL") if self._every is None else self._every
        return every.total_seconds()

    def _rows(self) -> ClaimQuerySet[Any]:
        return without_refused(ClaimQuerySet(self.model, using=self.using))

    def _renewal_interval(self) -> float:
        return self._lease().total_seconds() / RENEWALS_PER_LEASE
