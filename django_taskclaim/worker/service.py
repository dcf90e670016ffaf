"""The service thread: keeps leases, reads the switch, reaps and reports, on a connection of its own.

It has a list of duties, and looks through it several times a second.
"""

import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import connections
from django.utils.module_loading import import_string

from django_taskclaim import conf, connecting, contention
from django_taskclaim.claim import clock, process_name
from django_taskclaim.db import DatabaseLater, DatabaseNow
from django_taskclaim.db.notify import calls_within, can_hear, listen
from django_taskclaim.handlers import Handler
from django_taskclaim.leases import forget
from django_taskclaim.limits import NO_REASON, stops_of
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.tables import SILENCE_KEPT, WorkerProcess
from django_taskclaim.throttling.throttles import Throttles
from django_taskclaim.worker import more_duties
from django_taskclaim.worker.counters import Counters
from django_taskclaim.worker.feeds import Feed
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.keeper import LeaseKeeper
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.records import logger, summary
from django_taskclaim.worker.threads import WorkerThread

#: Seconds between two reads of the switch, and until a new session listens after one that was lost.
READ_SWITCH_EVERY = 1.0
REPORT_EVERY = 5.0
#: Seconds between two times that what is old is deleted, and how long that takes at most, but for its last piece.
PRUNE_EVERY, PRUNE_FOR = 60.0, 0.2
TICK = 0.25


@dataclass(slots=True)
class Duty:
    """A job on the service's connection; an error is logged and stops nothing.

    It must not wait for a row that somebody has locked: the leases of the process depend on the thread going on.
    """

    #: As in "… failed".
    name: str
    job: Callable[[], object]
    #: Seconds until the next time; 0 for each round.
    every: float = 0.0
    #: Whether it is done once more when the process ends.
    at_end: bool = False
    #: By ``clock()``.
    due: float = 0.0


class Service(WorkerThread):
    """One for each process."""

    def __init__(self, options: WorkerOptions, handlers: list[Handler], inflight: InFlight) -> None:
        super().__init__(options, inflight, "service")
        #: The name under which this process reports and that its holders' names begin with.
        self.process = process_name(options.name)
        self.feeds = [Feed(handler, options) for handler in handlers]
        self.counters = Counters()
        #: What stops claims by itself: health checks, asked here, and failures, heard from the executors.
        checks = {handler.model: handler.health_checks for handler in handlers}
        self.throttles = Throttles(options.using, checks)
        #: Set from outside: claim nothing more and leave once all is done.
        self.drain_asked = threading.Event()
        hears = can_hear(connections[options.using])
        #: Those that are looked at once when the database calls, instead of at the next poll.
        self._called = [feed for feed in self.feeds if hears and feed.handler.wake_up]
        #: The session of this thread that listens; at first no session is.
        self._listening: Any = object()
        self.keeper = LeaseKeeper(options.using, self.feeds, inflight)
        #: What people see of this process.
        self.own_row = WorkerProcess.objects.using(options.using).filter(name=self.process)
        #: Rows done, failed and held, as last logged.
        self._logged = (0, 0, 0)
        added = (duty for path in sorted(more_duties) for duty in import_string(path)(self))
        self._duties = [
            # What is there under this name was left by a dead process that had it before.
            Duty("signing off", self.own_row.delete, math.inf, at_end=True),
            Duty("renewing leases", self.keeper.renew_when_due),
            Duty("reading the switch", self._read_switch_when_it_matters, READ_SWITCH_EVERY),
            Duty("listening for calls", self._listen, READ_SWITCH_EVERY),
            Duty("asking health checks", self.throttles.ask),
            Duty("ending overrun rows", self.keeper.end_overrun),
            # Each by itself: a table that cannot be read keeps no other model's rows from coming back.
            *(Duty(f"reaping {feed.label}", partial(self._reap, feed)) for feed in self.feeds),
            Duty("reporting", self._report, REPORT_EVERY),
            *added,
            Duty("deleting what is old", partial(in_pieces, prune, options.using), PRUNE_EVERY),
            Duty("hearing calls", self._hear),
        ]

    # The thread

    def work(self) -> None:
        connecting.use_own_connection(self.options.using)
        while not self.leaving.is_set():
            self._round()
        for duty in self._duties:
            if duty.at_end:
                self._guarded(duty.name, duty.job)

    def _note_answer(self, execute: Callable[..., Any], *statement: object) -> Any:
        answer = execute(*statement)
        self.keeper.answered_at = clock()
        return answer

    def _round(self) -> None:
        connecting.guard_connections(self.keeper.longest_lease, ours_alone=True)
        # An error may have replaced the connection.
        wrappers = connections[self.options.using].execute_wrappers
        if self._note_answer not in wrappers:
            wrappers.append(self._note_answer)
        for duty in self._duties:
            began = clock()
            if began < duty.due:
                continue
            self._guarded(duty.name, duty.job)
            duty.due = clock() + duty.every * random.uniform(0.75, 1.0)
            if clock() - began > 2 * TICK:
                # The database was silent for a while: leases first.
                self._guarded("renewing leases", self.keeper.renew_when_due)

    def _guarded(self, what: str, job: Callable[[], object]) -> None:
        """Do one duty; trouble with the database spoils no other duty and is remembered."""
        self.looks = 0
        # The leases of this process depend on this thread going on.
        error = self.attempt(what, job)
        if error and contention.may_be_an_outage(error):
            self.keeper.away_at = clock()
            for feed in self.feeds:
                feed.reaper.start_over()

    # Calls from the database, on this connection, so that they cost no further one; polling goes on as without them

    def _listen(self) -> None:
        """See to it that this thread's session listens."""
        if self._called and not self._is_listening():
            self._listening = listen(connections[self.options.using])
            # What came in before is for the next poll, unless somebody looks now.
            for feed in self._called:
                self._look_now(feed)

    def _hear(self) -> None:
        """Take the calls that come within a TICK; where none can come, wait so long, or until it is time to leave."""
        if not self._is_listening():
            self.leaving.wait(TICK)
            return
        for table in calls_within(TICK, connections[self.options.using]):
            for feed in self._called:
                if feed.table == table:
                    self._look_now(feed)

    def _is_listening(self) -> bool:
        return connections[self.options.using].connection is self._listening

    def _look_now(self, feed: Feed) -> None:
        feed.called = clock()
        self.inflight.wake()

    # The switch

    def stop_of(self, feed: Feed) -> str:
        """Return why rows of a model are not claimed now, empty while they may be; asks no database."""
        stops = feed.stops
        if stops is None:
            return "not known yet"
        if stops.pauses:
            return f"paused: {stops.pauses[0].reason or NO_REASON}"
        why = stops.throttled or self.throttles.reason_for(feed.model)
        return f"throttled: {why}" if why else ""

    def _read_switch_when_it_matters(self) -> None:
        is_stopped = any(map(self.stop_of, self.feeds))
        # An idle process asks, too, to know that it could renew.
        is_silent = clock() - self.keeper.answered_at >= self.keeper.renewal_interval()
        if is_stopped or is_silent or self.inflight.held():
            self.read_switch()

    def read_switch(self) -> None:
        """Look which models are stopped, by a person or for everybody, and note the overrides.

        What has not started of a model that is stopped goes back. Each claim finds a stop out for itself; this is for
        not asking in vain, and for people to read.
        """
        for feed in self.feeds:
            feed.stops = stops = stops_of(feed.model, using=self.options.using)
            if stops.pauses or stops.throttled:
                self.keeper.withdraw(feed.model)
            before, feed.stop = feed.stop, self.stop_of(feed)
            if bool(before) != bool(feed.stop):
                event = "stopped" if feed.stop else "resumed"
                facts = {"event": event, "model": feed.label, "reason": feed.stop or before}
                logger.warning("%s is %s", feed.label, feed.stop or "claimed again", extra=facts)
            if before != "" and not feed.stop:
                # What stopped its claims is over: look at once, also during a pause.
                self._look_now(feed)
        self.keeper.longest_lease = max(feed.lease() for feed in self.feeds)

    # The rest

    def _reap(self, feed: Feed) -> None:
        if put_back := feed.reaper.turn(int(conf.setting("CHUNK_SIZE"))):
            self.counters.count(feed.model, expired=put_back)

    def _report(self) -> None:
        """Log the counts where they have changed, and write the row of the process."""
        counters, held = self.counters, len(self.inflight.held())
        now = (counters.done, counters.failed, held)
        if now != self._logged:
            self._logged = now
            summary(self.options.name, counters, held)
        if not held:
            # Nobody else has looked, and the report says what is paused.
            self.read_switch()
        refused = refusals(None, self.options.using)
        facts: dict[str, Any] = {
            "seen_at": DatabaseNow(),
            "rows_held": held,
            "rows_done": counters.done,
            "rows_failed": counters.failed,
            "throttles": self.throttles.report(),
            # People see it as long as there is a row that nobody can write.
            "last_error": str(refused[-1])[:500] if refused else counters.last_error,
        }
        if not self.own_row.update(**facts):
            facts |= {"labels": self.options.labels, "started_at": DatabaseNow()}
            self.own_row.create(name=self.process, **facts)


def in_pieces(prune: Callable[[str], bool], using: str) -> None:
    """Have *prune* delete what is old piece after piece, for a moment only: leases have to be renewed."""
    end, is_done = clock() + PRUNE_FOR, False
    while not is_done and clock() < end:
        is_done = prune(using)


def prune(using: str) -> bool:
    """Delete workers that fell silent a day ago, and some lease names unused since; say if that was all.

    Among those names are, on MySQL, the queues of holders nobody has asked for.
    """
    chunk = int(conf.setting("CHUNK_SIZE"))
    WorkerProcess.objects.using(using).filter(seen_at__lt=DatabaseLater(-SILENCE_KEPT)).delete()
    return forget(using, SILENCE_KEPT, chunk) < chunk
