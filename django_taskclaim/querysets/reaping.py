"""When expired rows are put back again and again: only after the living could have renewed them."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django_taskclaim import conf
from django_taskclaim.policy import RENEWALS_PER_LEASE, policy_for
from django_taskclaim.querysets.claims import ClaimQuerySet
from django_taskclaim.querysets.operating import release_expired
from django_taskclaim.querysets.refusals import without_refused
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.tokens import clock

#: How often the database is asked in a renewal interval whether it answers.
PROBES = 8


class Reaper:
    """Puts back the expired rows of one model for as long as ``turn`` is called, several times a second.

    A look that finds some reads the database's clock: the cutoff. What had expired by then is put back once the
    database has answered promptly for a renewal interval. Meanwhile the living renew, and a renewed lease ends after
    the cutoff. So a silence charges no row of a living worker: not a silence of the database, nor one of this
    process, nor one that the last statement itself waits through.
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
        self._cutoff: datetime | None = None
        #: Seconds of prompt answers since the cutoff was read, and when the last answer came, by ``clock()``.
        self._prompt, self._answered = 0.0, 0.0
        self._due = self._next_look = 0.0

    def due_in(self) -> float:
        """Return the seconds until ``turn`` has something to do."""
        return max(0.0, self._due - clock())

    def start_over(self) -> None:
        """Wait for a whole renewal interval again, as after any error of the database."""
        self._cutoff = None

    def turn(self, limit: int | None = None, *, until_done: bool = False) -> int | None:
        """Do what is due and return how many rows were put back, at most *limit*; None if there was nothing to do.

        With *until_done*, a call that reached its limit is repeated by the next turn.
        """
        if self.due_in():
            return None
        try:
            if self._cutoff is None:
                self._look()
                return 0
            return self._go_on(self._cutoff, limit, until_done=until_done)
        except BaseException:
            self.start_over()
            self._due = self._next_look
            raise

    def _look(self) -> None:
        every = conf.duration("REAPER_INTERVAL") if self._every is None else self._every
        self._due = self._next_look = clock() + every.total_seconds() * random.uniform(0.75, 1.0)
        if self._rows().expired().exists():
            self._cutoff, self._prompt = self._probe(), 0.0
            self._note_answer()

    def _go_on(self, cutoff: datetime, limit: int | None, *, until_done: bool) -> int:
        since = self._answered
        self._probe()
        self._note_answer()
        # One silence, however long, counts for no more than half of the time that the living need.
        self._prompt += min(self._answered - since, self._renewal_interval() / 2)
        if self._prompt < self._renewal_interval():
            return 0
        released = release_expired(self._rows(), limit, cutoff)
        if not until_done or released != limit:
            self._cutoff, self._due = None, self._next_look
        return released

    def _probe(self) -> datetime:
        """Return the database's clock, read once a renewal could be written."""
        desk = Desk.of(self.model, self.using)
        return desk.dialect.writable_at(desk.table)

    def _note_answer(self) -> None:
        self._answered = clock()
        self._due = self._answered + self._renewal_interval() / PROBES

    def _rows(self) -> ClaimQuerySet[Any]:
        return without_refused(ClaimQuerySet(self.model, using=self.using))

    def _renewal_interval(self) -> float:
        return self._lease().total_seconds() / RENEWALS_PER_LEASE
