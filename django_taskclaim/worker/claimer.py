"""The claimer: one thread a process that feeds the executors, takes no more than they can use, and writes results."""

import math
import random
import threading
import time
from typing import Any

from django_taskclaim import connecting, contention
from django_taskclaim.claim import clock, new_holder
from django_taskclaim.monitoring.overview import seconds_due
from django_taskclaim.querysets.claiming import ClaimCall, claim
from django_taskclaim.querysets.cursor import FULL_SCAN_SHARE
from django_taskclaim.throttling.throttles import working_on
from django_taskclaim.worker.batch import hold
from django_taskclaim.worker.feeds import Feed, OrphanedClaim
from django_taskclaim.worker.records import changed, log_rarely, logger
from django_taskclaim.worker.running import prepare
from django_taskclaim.worker.service import Service
from django_taskclaim.worker.threads import WorkerThread
from django_taskclaim.worker.writer import Writer

#: The longest wait, in seconds, between two tries to claim from a database that is away.
LONGEST_WAIT = 5.0

#: The wait in a process that ends: it has little time left in which its rows can go back.
LAST_WAIT = 0.25

#: For so many seconds after a statement its connection is taken to be there still, and not asked.
USED_LATELY = 5.0

#: For so many seconds a quarantined row waits for the rows of the process that run, or wait for a lock, while nothing
#: is claimed. Then it goes back, and for a while others may take it.
QUARANTINE_WAIT = 5.0

#: How soon to try again where nobody could look yet; that asks the database nothing.
NOT_YET = 0.25

#: As in "… failed".
WORK = "claiming and writing"


class Claimer(WorkerThread):
    """One for each process: it claims what the executors have room for, and writes what came of it."""

    def __init__(self, service: Service) -> None:
        options, inflight = service.options, service.inflight
        super().__init__(options, inflight, "claimer")
        self.service = service
        self.keeper = service.keeper
        self.feeds = service.feeds
        by_label = {feed.label: feed for feed in self.feeds}
        for label, holder, keys, batch in inflight.notes.unstarted():
            why = "the process before it had not started it"
            by_label[label].orphaned[holder] = OrphanedClaim(why, keys, batch)
        #: Whether a drain ended before the work did.
        self.leaves_work = False
        self.writer = Writer(
            options.using, inflight, service.counters, self.feeds, self.keeper.was_away_since
        )
        #: Set by this thread, after its last claim: drained, told to, or the limits of rows or time are reached.
        self.finished = threading.Event()
        #: How many rows it may still claim.
        self.left = options.max_rows
        #: By ``clock()``, until when the connection is taken to be there still.
        self._usable_until = 0.0
        #: By ``clock()``, until when a quarantined row may wait for the others to end.
        self._quarantine_wait_ends = math.inf

    def work(self) -> None:
        connecting.use_own_connection(self.options.using)
        connecting.guard_connections(self.keeper.longest_lease, ours_alone=True)
        failures = 0
        while not self._is_over():
            error = self.attempt(WORK, self._turn)
            failures = 0 if error is None else failures + 1
            if failures:
                self._rest(failures)
        self.attempt(WORK, self._end)

    def _end(self) -> None:
        """Give back rows on which nobody works, before there is nobody left to do it."""
        for feed in self.feeds:
            feed.release_orphaned(self.inflight)
        self.writer.write()

    def _is_over(self) -> bool:
        return self.leaving.is_set() and self.inflight.is_empty()

    def _rest(self, failures: int) -> None:
        """Wait after a failure, longer after each one; an order to leave ends the wait."""
        seconds = random.uniform(0.5, 1.0) * min(LONGEST_WAIT, 0.1 * 2 ** min(failures, 10))
        if self.leaving.wait(seconds):
            time.sleep(LAST_WAIT)

    def _turn(self) -> None:
        """Wait until there is something to do, and do it."""
        self.inflight.refill_below = max(feed.refill_below for feed in self.feeds)
        self.inflight.wait_until(self._next_turn)
        connecting.guard_connections(self.keeper.longest_lease, ours_alone=True)
        for feed in self.feeds:
            if feed.orphaned and feed.orphaned_at <= clock():
                self._ensure_usable()
                feed.release_orphaned(self.inflight)
        if self._quarantine_wait_ends <= clock():
            self._quarantine_wait_ends = math.inf
            if self.inflight.give_back_quarantined():
                for feed in self.feeds:
                    feed.cursor.quarantined_at = clock() + QUARANTINE_WAIT / FULL_SCAN_SHARE
        if self._next_write(self._next_look()) <= clock():
            self._write()
        looked = False
        for feed in self.feeds:
            if self._look_at(feed) <= clock():
                self._look(feed)
                looked = True
        if looked and self._may_claim() and self._has_drained():
            self.finished.set()

    def _next_turn(self) -> float:
        """Return when, by ``clock()``, there is something to do."""
        # Asked again every few seconds while nothing is due for long, which is no hang.
        self.looks = 0
        if self._is_over():
            return 0.0
        next_look = self._next_look()
        moments = [clock() + LONGEST_WAIT, next_look, self._next_write(next_look)]
        moments.append(self._quarantine_wait_ends)
        moments += [feed.orphaned_at for feed in self.feeds if feed.orphaned]
        if self._may_claim():
            moments.append(self.options.ends_at)
        return min(moments)

    # Writing

    def _next_write(self, next_look: float) -> float:
        """Return when to write; what is about to be claimed brings more to write."""
        return self.inflight.write_at(more_to_come=next_look <= clock())

    def _write(self) -> None:
        self._ensure_usable()
        self.writer.write()
        for feed in self.feeds:
            if feed.makes_room():
                feed.next_look = 0.0

    def _ensure_usable(self) -> None:
        """See to it that the next statement has a connection; now and then look after others, too."""
        now, lease = clock(), self.keeper.longest_lease.total_seconds()
        if now >= self._usable_until:
            connecting.ensure_usable(self.options.using)
            connecting.tidy_up()
            # A server that ends idle sessions ends this one after a lease. What asks here may send no statement.
            self._usable_until = now + min(USED_LATELY, lease / 2)

    # Whether to claim

    def _may_claim(self) -> bool:
        """Say whether there may be another claim; where a limit is reached, that is noted."""
        is_spent = self.left <= 0 or clock() >= self.options.ends_at
        if is_spent or self.service.drain_asked.is_set():
            self.finished.set()
        return not self.leaving.is_set() and not self.finished.is_set()

    def _next_look(self) -> float:
        return min(map(self._look_at, self.feeds))

    def _look_at(self, feed: Feed) -> float:
        """Return when, by ``clock()``, to look for rows of this model again; infinity while it may have no more."""
        return feed.look_at() if self._may_claim() and self._has_room(feed) else math.inf

    def _has_room(self, feed: Feed) -> bool:
        """Say whether the executors are about to run dry of this model's rows, and may have more."""
        if self.inflight.holds_quarantined():
            return False
        enough = feed.refill_below
        if feed.handler.has_ranges:
            # Long work: what waits here could be done elsewhere.
            enough -= self.inflight.running_of(feed.model)
        if (since := self.service.throttles.trial_since(feed.model)) is not None:
            # One row alone is tried, beside those that have run since before the rest.
            enough = min(enough, 1 - self.inflight.running_of(feed.model, since))
        return self.inflight.waiting(feed.model) < enough

    # Claiming

    def _look(self, feed: Feed) -> None:
        """Claim once for a model; a full batch looks again as soon as there is room, else after the poll pause."""
        poll = self.options.poll.total_seconds() * random.uniform(0.75, 1.25)
        # Where it ends in an error, the reason for this look still holds.
        feed.reached, feed.next_look, feed.look_began = None, 0.0, clock()
        try:
            pause = self._claim(feed, poll)
        except Exception as error:
            if not contention.is_refusal(error):
                raise
            # Of this model alone: a column that is missing, a queryset that is wrong. The others go on.
            log_rarely(f"{self.options.name}: claiming from {feed.handler.name}", error)
            connecting.drop_broken(self.options.using)
            pause = max(poll, LONGEST_WAIT)
        if feed.reached is not None:
            wait = feed.reached.wait
            # As soon as that is worth while, and not only after the usual pause.
            pause = poll if wait is None else min(LONGEST_WAIT, wait * random.uniform(1.0, 1.1))
        feed.next_look = clock() + pause if pause else 0.0

    def _claim(self, feed: Feed, poll: float) -> float:
        """Claim a batch, and return in how many seconds to look again: at once after a full one, else after *poll*."""
        not_yet = min(NOT_YET, poll)
        if not self.keeper.healthy(feed.lease()):
            # A lease that cannot be renewed is not worth taking.
            return not_yet
        if self.service.stop_of(feed):
            # The service sees when that is over, and has this thread look at once.
            return poll
        most = feed.most()
        size = int(min(most, self.left, self.service.throttles.most(feed.model)))
        self._ensure_usable()
        if size == 0 or self.leaving.is_set():
            # Health checks have not answered yet, or the signal to stop has come.
            return not_yet
        rows = self._claimed(feed, size)
        if not rows:
            return 0.0 if feed.open_more() else poll
        held = hold(feed.handler, rows)
        self.inflight.add(held)
        if held[0].claim.quarantined:
            self._quarantine_wait_ends = clock() + QUARANTINE_WAIT
        return 0.0 if len(rows) == most or held[0].claim.quarantined else poll

    def _claimed(self, feed: Feed, size: int) -> list[Any]:
        """Claim so many rows, and load what the handler needs beside them."""
        handler, began, holder = feed.handler, clock(), new_holder(self.options.name)
        call = ClaimCall(
            feed.rows(), size, holder, feed.lease(), began, notes_start=True, cursor=feed.cursor
        )
        try:
            with working_on(feed.model):
                rows: list[Any] = claim(call)
            feed.reached = call.reached
        except BaseException:
            # Some may have been claimed: the COMMIT may be on its way for as long as the server lets the transaction
            # stand.
            until = clock() + 2 * call.lease.total_seconds()
            feed.orphaned[holder] = OrphanedClaim(
                "the claim's COMMIT was not answered", until=until
            )
            raise
        if not rows:
            return rows
        changed("claimed", rows, clock() - began)
        self.left -= len(rows)
        self.service.counters.count(feed.model, claimed=len(rows))
        if (seconds := seconds_due(rows[0])) is not None:
            self.service.counters.count_times(feed.model, "waited", [seconds])
        try:
            return prepare(handler, rows)
        except BaseException:
            self.inflight.give_back(hold(handler, rows))
            # The connection to another database may have broken.
            connecting.tidy_up()
            raise

    # Ending by itself

    def _has_drained(self) -> bool:
        """Say whether a drain is over: nothing that matches is open or processing by anyone, or all is stopped."""
        looks_at_once = any(feed.next_look <= 0.0 for feed in self.feeds)
        # What still runs may be what the circuit breaker waits for.
        if not self.options.drain or looks_at_once or not self.inflight.is_empty():
            return False
        if unfinished := [feed for feed in self.feeds if feed.is_unfinished()]:
            self.service.read_switch()
        stops = list(map(self._stop_of, unfinished))
        if stops and all(stops):
            self.leaves_work = True
            logger.warning("%s, so the drain ends with work left", "; ".join(stops))
        return all(stops)

    def _stop_of(self, feed: Feed) -> str:
        """Say what keeps a model's rows from being claimed; empty where nothing does, or may not for long."""
        if stop := self.service.stop_of(feed):
            return f"{feed.label} is {stop}"
        if feed.is_kept_back():
            return f"all that is left of {feed.label} waits behind failed or paused rows"
        text = f"the database refuses to have the last rows of {feed.label} written"
        return text if feed.is_refused() else ""
