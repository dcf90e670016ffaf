"""Claims whose lease has ended: which these are, what becomes of their rows, and when they are looked for again."""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import models
from django.db.models import Q

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import QUARANTINED, is_quarantine_mark, is_unstarted_mark
from django_taskclaim.formatting import counted
from django_taskclaim.policy import RENEWALS_PER_LEASE, policy_for
from django_taskclaim.querysets import scope
from django_taskclaim.querysets.isolating import without_refused
from django_taskclaim.querysets.operating import BulkVerb, LockedRow, in_chunks, write_locked
from django_taskclaim.querysets.scope import ClaimTarget, Columns, Rows
from django_taskclaim.signals import after_commit, rows_expired, send_after_commit
from django_taskclaim.states import WORKER_MARK

logger = logging.getLogger("django_taskclaim")

_WORKER_DIED = (
    "The lease ran out on the last try: the worker died, hung or was cut off while this row ran."
)
#: What the log and a history say of rows whose lease has ended, and what is written to them, by outcome.
OUTCOMES: dict[str, tuple[str, Columns]] = {
    "uncharged": ("put back, no try counted", scope.OPEN_AGAIN),
    "charged": ("put back, one try counted", {**scope.OPEN_AGAIN, "attempts": scope.ONE_MORE}),
    "quarantined": (
        "put back for the last try, to be claimed alone",
        {**scope.OPEN_AGAIN, "not_before": QUARANTINED},
    ),
    "failed": (
        "failed, no try is left",
        {
            **scope.FAILED,
            "attempts": scope.ONE_MORE,
            "error_class": "LeaseExpired",
            "last_error": _WORKER_DIED,
        },
    ),
}


@dataclass(frozen=True)
class ReleaseExpired(BulkVerb):
    """Puts back, or fails, rows whose lease has ended, by the *cutoff* if there is one."""

    cutoff: datetime | None = None

    def condition(self, target: ClaimTarget) -> Q:
        return scope.is_expired(target.columns, self.cutoff)

    def outcome(self, target: ClaimTarget, row: LockedRow) -> str:
        """Say what an expired claim makes of its row: ``uncharged``, ``charged``, ``quarantined`` or ``failed``."""
        if WORKER_MARK not in (row.claimed_by or "") or is_unstarted_mark(row.not_before):
            return "uncharged"
        if row.tried + 1 < policy_for(target.model).max_attempts:
            return "charged"
        if target.columns.not_before is None or is_quarantine_mark(row.not_before):
            return "failed"
        return "quarantined"

    def write(self, target: ClaimTarget, rows: list[LockedRow], outcome: str) -> int:
        keys, (words, sets) = [row.key for row in rows], OUTCOMES[outcome]
        written = write_locked(target, keys, scope.is_expired(target.columns), sets)
        if not written:
            return 0
        holders, label = [row.claimed_by for row in rows], target.model._meta.label
        facts: dict[str, object] = {"keys": keys, "outcome": outcome, "holders": holders}
        send_after_commit(rows_expired, target.model, target.alias, **facts)
        level = logging.ERROR if outcome == "failed" else logging.WARNING
        what = counted(written, "row"), label, words
        extra = {"event": "expired", "outcome": outcome, "model": label, "rows": written}
        extra["keys"] = [str(key) for key in keys]
        log = partial(logger.log, level, "%s of %s expired: %s", *what, extra=extra)
        after_commit(target.alias, log)
        return written


# Looking again and again

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
        #: What the database's clock said, and for how many seconds there have been prompt answers since.
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
            if not rows.filter(scope.is_expired(claim_columns(self.model))).exists():
                self.start_over()
                return 0
            # Only now the clock is read.
            self._read(interval)
            cutoff, prompt = self._readings[0]
            if prompt < self._renewal_interval():
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
        more = min(self._answered - since, renewal / 2)
        self._readings = [
            *((seen, prompt + more) for seen, prompt in self._readings),
            (moment, 0.0),
        ]
        # Of those that are old enough the last one counts.
        while len(self._readings) > 1 and self._readings[1][1] >= renewal:
            del self._readings[0]
        wait, missing = min(renewal / READINGS, longest_wait), renewal - self._readings[0][1]
        self._due = self._answered + (min(wait, missing) if missing > 0 else wait)

    def _renewal_interval(self) -> float:
        return self._lease().total_seconds() / RENEWALS_PER_LEASE
