"""Looking for rows whose lease has ended again and again, without charging a row whose worker still lives."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta

from django.db import models

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.policy import RENEWALS_PER_LEASE, policy_for
from django_taskclaim.querysets.isolating import without_refused
from django_taskclaim.querysets.operating import ReleaseExpired, in_chunks
from django_taskclaim.querysets.scope import ClaimTarget, Rows, is_expired

#: The database's clock is read at least so often in a renewal interval.
READINGS = 8


class Reaper:
    """Puts back the expired rows of one model; its caller calls ``turn`` several times a second.

    While there are expired rows, it reads the database's clock again and again. Rows that had expired by a reading are
    put back once the database has answered promptly for a renewal interval since. In that time every worker that lives
    renews its leases, and a renewed lease ends after the reading. So no silence, of the database or of this process,
    charges a row of a worker that lives.
    """

    def __init__(
        self, model: type[models.Model], using: str, lease: Callable[[], timedelta] | None = None
    ) -> None:
        """*lease* says how long the claims of this process last, from which the renewal interval follows.

        Without it the model's policy does.
        """
        self.model, self.using = model, using
        self._lease = lease or (lambda: policy_for(model).lease)
        #: For how many seconds there have been prompt answers, and what the database's clock said at which of them.
        self._prompt = 0.0
        self._readings: list[tuple[datetime, float]] = []
        #: By ``clock()``, when the last answer came, and when there is something to do.
        self._answered = self._due = 0.0

    def due_in(self) -> float:
        """Return the seconds until ``turn`` has something to do."""
        return max(0.0, self._due - clock())

    def start_over(self) -> None:
        """Wait for a whole renewal interval again, as after any error of the database."""
        self._readings.clear()

    def turn(self, limit: int | None = None) -> int | None:
        """Do what is due and return how many rows were put back, at most *limit*; None if there was nothing to do.

        After a turn that reached its limit the next one is due at once.
        """
        if self.due_in():
            return None
        rows: Rows = without_refused(models.QuerySet(self.model, using=self.using))
        interval = conf.duration("REAPER_INTERVAL").total_seconds()
        self._due = later = clock() + interval * random.uniform(0.75, 1.0)
        try:
            if not rows.filter(is_expired(claim_columns(self.model))).exists():
                self.start_over()
                return 0
            # Only now the clock is read.
            self._read(interval)
            cutoff, since = self._readings[0]
            if self._prompt - since < self._renewal_interval():
                return 0
            released = in_chunks(rows, ReleaseExpired(cutoff), limit)
        except BaseException:
            self.start_over()
            self._due = later
            raise
        if released == limit:
            self._due = 0.0
        return released

    def _read(self, longest_wait: float) -> None:
        """Read the database's clock once a renewal could be written, and forget all readings older than needed.

        The next one follows soon, and at the latest when rows that had expired by the first can be put back.
        """
        target = ClaimTarget.of(self.model, self.using)
        target.dialect.wait_to_write(target.table)
        moment, renewal = target.dialect.current_time(), self._renewal_interval()
        since, self._answered = self._answered, clock()
        # One long silence counts for at most half of the time in which living workers renew.
        self._prompt += min(self._answered - since, renewal / 2)
        self._readings.append((moment, self._prompt))
        # Of those that are old enough the last one counts.
        while len(self._readings) > 1 and self._prompt - self._readings[1][1] >= renewal:
            del self._readings[0]
        missing = self._readings[0][1] + renewal - self._prompt
        wait = min(renewal / READINGS, longest_wait)
        self._due = self._answered + (min(wait, missing) if missing > 0 else wait)

    def _renewal_interval(self) -> float:
        return self._lease().total_seconds() / RENEWALS_PER_LEASE
