"""What feeds a worker: of each model the rows that it takes, the ranges that it plans, and what is left of both."""

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q

from django_taskclaim import conf
from django_taskclaim.claim import carried_claim, clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.completion import Clear
from django_taskclaim.db.notify import QUIET, SILENCE
from django_taskclaim.handlers import Handler
from django_taskclaim.limits import LimitReached, Stops
from django_taskclaim.limits.key_limits import limits_over
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.cursor import Cursor
from django_taskclaim.querysets.instances import claimed_by
from django_taskclaim.querysets.isolating import refusals, without_refused
from django_taskclaim.querysets.reaper import Reaper
from django_taskclaim.querysets.scope import in_state, is_due
from django_taskclaim.ranges import end_of_source, open_more
from django_taskclaim.states import Status
from django_taskclaim.worker.batch import Batch, HeldRow, PutBack
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions

#: Seconds that the rows of a claim take together, if no size is given: a process that dies holds back no more.
TARGET = 1.0
#: Seconds of work that wait while the next rows are claimed, which takes about as long.
AHEAD = 0.01
#: The most rows of a claim if no size is given.
LARGEST = 500
#: Seconds between two looks for rows on which nobody works; fewer for short leases.
ORPHANED_EVERY = 1.0
#: What was known before has the weight of so many new rows.
REMEMBERED = 50


@dataclass(eq=False, frozen=True, slots=True)
class OrphanedClaim:
    """A claim on whose rows nobody works: it ended in an error, or the process before this one had not started them."""

    why: str
    #: The only rows of the claim that are meant, and where they are noted; None for all that are found.
    keys: list[object] | None = None
    batch: Batch = field(default_factory=Batch)
    #: By ``clock()``: after that its COMMIT can arrive no more.
    until: float = 0.0


class Feed:
    """One model that is claimed from, and what its last claims have taught. Its methods raise the database's errors."""

    def __init__(self, handler: Handler, options: WorkerOptions) -> None:
        self.handler, self.model = handler, handler.model
        self.options, self.using = options, options.using
        self.label = self.model._meta.label
        #: The name by which it is called where there are new rows.
        self.table = claim_columns(self.model).owner._meta.db_table
        self.cursor = Cursor()
        self.reaper = Reaper(self.model, self.using, self.lease)
        #: What is stored for the model: what stops everybody's claims, and the ``batch_size`` and ``lease`` that the
        #: next claims follow. None until it has been read; until then no rows are claimed.
        self.stops: Stops | None = None
        #: Why no rows were claimed when the switch was last read, empty where they were; None before.
        self.stop: str | None = None
        #: The limit of the whole fleet that kept its last claim from taking more.
        self.reached: LimitReached | None = None
        #: By ``clock()``, when to look for rows again, and when the last look began.
        self.next_look = self.look_began = 0.0
        #: By ``clock()``, when the last call came.
        self.called = -math.inf
        #: Rows that are worked on side by side.
        self._abreast = handler.concurrency if handler.is_async else options.threads
        #: The next claim comes when fewer calls than this wait for the executors, so that these do not run dry.
        self.refill_below = 1 if handler.batch else self._abreast
        #: Seconds that one row takes; 0 before the first.
        self._each = 0.0
        #: By holder.
        self.orphaned: dict[str, OrphanedClaim] = {}
        #: By ``clock()``, when to look for their rows.
        self.orphaned_at = 0.0
        #: Of a drain: when it began, by the database's clock, and the key beyond which it plans no ranges.
        self._began: datetime | None = None
        self._end: object = None

    def lease(self) -> timedelta:
        """Return how long the next claims last unless renewed."""
        stored = None if self.stops is None else self.stops.own.lease
        return stored or self.handler.lease

    def look_at(self) -> float:
        """Return when to look for rows, by ``clock()``: after a pause, or because of calls.

        At once after a call, and at the end of the silence that follows it; calls in quick succession are one.
        """
        if self.look_began <= self.called:
            return min(self.next_look, self.look_began + QUIET)
        silence_ends = self.called + SILENCE
        is_silent = self.look_began < silence_ends
        return min(self.next_look, silence_ends) if is_silent else self.next_look

    def makes_room(self) -> bool:
        """Say whether the next claim may take more once a row has ended."""
        return self.reached.wait is None if self.reached else bool(limits_over(self.model))

    def rows(self) -> Any:
        """Return what claims start from; of rows that open again when they are done, a drain takes each once."""
        rows = self.handler.rows(self.using)
        columns = claim_columns(self.model)
        is_repeated = self.options.drain and isinstance(self.handler.completion, Clear)
        # Without a waiting time nothing tells them apart.
        if not is_repeated or columns.not_before is None:
            return rows
        self._began = self._began or database_time(self.using)
        # Those due then, new ones, and those that failed since.
        has_failed = Q() if columns.attempts is None else Q(**{f"{columns.attempts.name}__gt": 0})
        return rows.filter(is_due(columns, self._began) | has_failed)

    def open_more(self) -> bool:
        """Where no range is open, see to one, and say whether that could be done."""
        if not self.handler.has_ranges:
            return False
        if self.options.drain and self._end is None:
            # A source may grow faster than it is drained.
            self._end = end_of_source(self.model, self.using)
        # A worker that takes some ranges only would never see those done that it plans for others.
        takes_all = not self.handler.rows(self.using).query.where
        return open_more(self.model, self.using, plans=takes_all, until=self._end)

    # How many rows a claim asks for

    def note(self, rows: int, seconds: float) -> None:
        """Note that so many rows were done in so many seconds, all together."""
        new = seconds / rows
        each = self._each or new
        self._each = each + (new - each) * rows / (rows + REMEMBERED)
        if not self.handler.has_ranges:
            ahead = min(int(AHEAD * self._abreast / self._each), self.most())
            calls = 1 + (ahead == self.most()) if self.handler.batch else self._abreast + ahead
            self.refill_below = calls

    def most(self) -> int:
        """Return how many rows to ask for, at least one.

        A size given by an override, the command line, the handler or the settings is the most, for rows of any
        duration. Elsewhere the first claim asks for the default, and later ones for what TARGET suffices for. What a
        batch handler takes says little of one row, so its size stays what it is.
        """
        handler = self.handler
        stored = None if self.stops is None else self.stops.own.batch_size
        size = stored or handler.batch_size
        if not self._each or handler.batch:
            return size
        per_second = self._abreast / self._each
        is_given = bool(stored or handler.own_batch_size) or conf.is_given("BATCH_SIZE")
        if not is_given and not handler.has_ranges:
            size = min(LARGEST, int(TARGET * per_second))
        return max(1, min(size, int(self.lease().total_seconds() / 3 * per_second)))

    # Giving back

    def release_orphaned(self, inflight: InFlight) -> None:
        """Have rows of orphaned claims given back before an expiry charges them a try that nobody made."""
        # There is another look, because a part of a claim may be found later than the rest. It comes before that of a
        # reaper, which waits for a quarter of the lease.
        self.orphaned_at = clock() + min(ORPHANED_EVERY, self.lease().total_seconds() / 16)
        known = {(held.claim.token, held.claim.pk) for held in inflight.held()}
        rows: Any = ClaimQuerySet(self.model, using=self.using).only("pk")
        for row in claimed_by(rows, list(self.orphaned)):
            claim = carried_claim(row)
            orphan = self.orphaned[claim.token.holder]
            is_meant = orphan.keys is None or claim.pk in orphan.keys
            if is_meant and (claim.token, claim.pk) not in known:
                inflight.give_back([HeldRow(row, self.handler, orphan.batch)], PutBack(orphan.why))
        self.orphaned = {
            holder: one for holder, one in self.orphaned.items() if clock() < one.until
        }

    # What is left

    def is_unfinished(self) -> bool:
        """Say whether there are rows to be done, by anyone; ranges that are still to be planned are planned."""
        # In this order: what somebody plans in between is open then.
        return self.open_more() or bool(self._unfinished().exists())

    def is_refused(self) -> bool:
        """Say whether all rows that are left are such as the database lets nobody write."""
        is_refused = bool(refusals(self.model, self.using))
        return is_refused and not without_refused(self._unfinished()).exists()

    def is_kept_back(self) -> bool:
        """Say whether all rows that are left wait behind a failed or paused row of their key; see ``serial_by``."""
        if policy_for(self.model).serial_by is None:
            return False
        # Without the filter of this worker: a row that another one takes is in nobody's way for long.
        why = ClaimQuerySet[Any](self.model, using=self.using).why_empty("")
        return why.kept_back > 0 and not (why.held or why.waiting or why.ready)

    def _unfinished(self) -> Any:
        is_unfinished = in_state(claim_columns(self.model), Status.OPEN, Status.PROCESSING)
        return self.rows().filter(is_unfinished)
