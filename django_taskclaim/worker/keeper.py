"""The lease keeper: renews what a process holds, gives up in time what it cannot renew, and gives rows back.

All but ``fence`` and the questions runs in the service thread, and waits for no row that somebody has locked: so one
stuck handler cannot cost the others their leases.
"""

import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any

from django_taskclaim.claim import clock
from django_taskclaim.connecting import end_session_of
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import RENEWALS_PER_LEASE, SELF_FENCE
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.candidates import Request
from django_taskclaim.querysets.holdings import claimed_by
from django_taskclaim.querysets.isolating import RefusedRows, is_refused
from django_taskclaim.querysets.renewing import renew
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import Given, lock_free
from django_taskclaim.tables import Switch
from django_taskclaim.throttling.throttles import Throttles
from django_taskclaim.worker.calls import WakeEvent
from django_taskclaim.worker.counters import Counters
from django_taskclaim.worker.inflight import InFlight, Task, Unit
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.overruns import Overrun, abandon, overran, will_overrun
from django_taskclaim.worker.records import changed, lost

#: Seconds until a renewal that failed, or passed over locked rows, is tried again; sooner for short leases.
RENEW_AGAIN = 1.0
#: Seconds for which this connection must live on before a broken session is the row's own fault.
SETTLING = 0.5
#: How long, in seconds, the last rows are tried to be given back, and the pause between two tries.
LAST_TRIES, LAST_PAUSE = 1.5, 0.05
#: Seconds between two looks for rows of claims whose COMMIT was not answered; fewer for short leases.
LOOK_EVERY = 1.0


@dataclass(slots=True)
class Return:
    """Rows to be released, and the thread, if any, whose session must be ended first."""

    tasks: list[Task]
    reason: str
    thread: int | None = None


@dataclass(frozen=True, slots=True)
class AmbiguousClaim:
    """A claim that ended in an error: nobody knows whether it was made, and nobody works on its rows."""

    handler: Handler
    request: Request
    #: By ``clock()``: after that its COMMIT can arrive no more.
    until: float


class LeaseKeeper:
    """One for each process; what it is asked for by other threads is done by the service thread."""

    def __init__(
        self,
        options: WorkerOptions,
        handlers: list[Handler],
        inflight: InFlight,
        counters: Counters,
        throttles: Throttles,
        wake_event: WakeEvent,
    ) -> None:
        self.using = options.using
        self.handlers = handlers
        self.inflight = inflight
        self.counters = counters
        self.throttles = throttles
        self.wake_event = wake_event
        #: The switch of each model, whose ``batch_size`` and ``lease`` the next claims follow. A model is missing until
        #: its switch has been read; until then its rows are not claimed.
        self.switches: dict[Any, Switch] = {}
        #: What transactions that stay open are measured by, in every thread.
        self.longest_lease = max(map(self.lease_of, handlers))
        #: A handler has overrun, so the process is to be replaced: a thread cannot be killed.
        self.has_overrun = False
        #: By ``clock()``, when the database last answered the service thread, and when it last was in trouble.
        self._answered, self._last_trouble = clock(), float("-inf")
        #: By ``clock()``, when leases were last renewed, and when that must be tried again at the latest.
        self._renewed, self._renew_by = float("-inf"), float("inf")
        self._returned: deque[Return] = deque()
        self._overruns: list[Overrun] = []
        self._ambiguous: list[AmbiguousClaim] = []
        self._next_look = 0.0

    # How long leases last

    def lease_of(self, handler: Handler) -> timedelta:
        """Return how long the next claims for *handler* last unless renewed."""
        switch = self.switches.get(handler.model)
        return handler.lease if switch is None or switch.lease is None else switch.lease

    def follow(self, model: Any, switch: Switch) -> None:
        """Let the next claims of *model* follow the overrides, and measure open transactions by the new leases."""
        self.switches[model] = switch
        self.longest_lease = max(map(self.lease_of, self.handlers))

    def renewal_interval(self) -> float:
        """Return the seconds between two renewals of the shortest lease: of those held, and of the next claims."""
        leases = [
            *map(self.lease_of, self.handlers),
            *(task.claim.lease for task in self.inflight.held()),
        ]
        return min(leases).total_seconds() / RENEWALS_PER_LEASE

    # Whether the database is there

    def note_answer(self) -> None:
        """Note that the database has answered the service thread."""
        self._answered = clock()

    def note_trouble(self) -> None:
        """Note that the database was away."""
        self._last_trouble = clock()

    def is_silent(self) -> bool:
        """Say whether the database has not been asked for a renewal interval: so that it is known to be there."""
        return clock() - self._answered >= self.renewal_interval()

    def healthy(self, lease: timedelta) -> bool:
        """Say whether leases of this length can be kept: no claim is taken that could not be renewed."""
        return clock() - self._answered < lease.total_seconds() * SELF_FENCE

    def troubled_since(self, moment: float) -> bool:
        """Say whether the database was away, as the service thread saw it, at any time since *moment*."""
        return self._last_trouble >= moment

    def was_away_since(self, moment: float) -> bool:
        """Say whether the database was away at any time since *moment*; waits until it has been asked again.

        No answer means that it still is. If it was not, the server has cut off one session, and has its reason in what
        was sent there.
        """
        # A server that goes down ends its sessions one after the other.
        settled = self._is_settled_since(clock() + SETTLING, timeout=10)
        return not settled or self.troubled_since(moment)

    def _is_settled_since(self, moment: float, timeout: float) -> bool:
        """Wait until the service thread has had an answer, good or bad, from the database after *moment*."""
        end = clock() + timeout
        while clock() < end:
            if max(self._answered, self._last_trouble) > moment:
                return True
            self.wake_event.set()
            time.sleep(0.05)
        return False

    # What other threads ask for

    def give_back(self, tasks: Iterable[Task], reason: str = "not started") -> None:
        """Release rows that nobody works on, uncounted; soon, in the service thread."""
        self._take_back(Return(list(tasks), reason))

    def withdraw(self, model: object) -> None:
        """Give back the rows of *model* that have not started, and ask for those that run."""
        for unit in self.inflight.running():
            if unit.handler.model is model:
                unit.ask_back("claims of its model are stopped")
        self.give_back(self.inflight.withdraw(lambda task: task.handler.model is model))

    def cut_short(self, units: Iterable[Unit]) -> None:
        """End the database sessions of units that still run, and release their rows, uncounted."""
        for unit in units:
            rows = [task for task in unit.tasks if not task.abandoned]
            for task in rows:
                task.abandoned = True
            self._take_back(Return(rows, "cut short", unit.thread))

    def note_ambiguous(self, handler: Handler, request: Request) -> None:
        """Have the rows given back that a claim which ended in an error may have taken; its holder is its alone."""
        # The COMMIT may be on its way for as long as the server lets the transaction stand.
        until = clock() + 2 * request.lease.total_seconds()
        self._ambiguous.append(AmbiguousClaim(handler, request, until))

    def has_to_give_back(self) -> bool:
        return bool(self._returned or self._overruns)

    def fence(self) -> None:
        """Take claims for lost before they expire when they could not be renewed in time; asks no database.

        The main thread calls it too: the service thread may hang in a statement.
        """
        for task in self.inflight.held():
            if task.is_overdue() and not task.claim.lost:
                # A running one is renewed again as soon as that works, for the second run would be beside the first.
                task.claim.lost = task.fenced = True
                lost(task.row, "could not be renewed in time")
        self.give_back(self.inflight.withdraw(lambda task: task.claim.lost))

    def _take_back(self, given: Return) -> None:
        if given.tasks:
            self._returned.append(given)
            self.wake_event.set()

    # Renewing

    def renew_when_due(self) -> bool:
        """Renew the leases that stand, often enough for the shortest of them; True if the database has answered."""
        held = self.inflight.held()
        if not held or clock() < self._next_renewal(held):
            return False
        renewable = {id(task.carrier()): task for task in held if _is_renewable(task)}
        self._renewed = began = clock()
        # Unless all goes well, again soon: an outage that is over must not cost the rest of a long lease.
        self._renew_by = again = began + min(RENEW_AGAIN, self.renewal_interval() / 4)
        outcome = renew(Given([task.row for task in renewable.values()]))
        # Of many rows that are refused, a few are found each time.
        self._renew_by = again if outcome.skipped or outcome.refused else float("inf")
        for row in outcome.skipped:
            # Locked, perhaps by its own handler, and seen to stand: no loss until the next look, a second away.
            task = renewable[id(row)]
            task.claim.extend(began, task.claim.lease * (1 - SELF_FENCE) + timedelta(seconds=2))
        # A handler may have ended its claim by itself while the statement was under way.
        gone = [
            task
            for row in outcome.lost
            if not ((task := renewable[id(row)]).ending or task.claim.ended)
        ]
        self.inflight.withdraw(lambda task: task in gone)
        for task in gone:
            lost(task.row, "the renewal found another token")
        return True

    def _next_renewal(self, held: list[Task]) -> float:
        """Return when to renew: by the shortest lease held now, which may be shorter than any at the last renewal."""
        shortest = min(task.claim.lease for task in held).total_seconds()
        pause = random.uniform(0.75, 1.0) * shortest / RENEWALS_PER_LEASE
        return min(self._renewed + pause, self._renew_by)

    # Giving back

    def find_ambiguous(self, *, now: bool = False) -> bool:
        """Have rows of ambiguous claims given back before an expiry charges them a try that nobody made.

        Looks once a second at most, or *now*, until the last COMMIT can arrive no more: a part of what a claim takes
        may have been committed before. A row is found again until it has been given back.
        """
        if not self._ambiguous or (clock() < self._next_look and not now):
            return False
        noted = sorted(self._ambiguous, key=lambda one: id(one.handler))
        # Found before a reaper finds them, which waits for a quarter of the lease.
        shortest = min(one.request.lease.total_seconds() for one in noted)
        self._next_look = clock() + min(LOOK_EVERY, shortest / 16)
        for handler, same in groupby(noted, lambda one: one.handler):
            rows: Any = ClaimQuerySet(handler.model, using=self.using)
            held = claimed_by(rows, [one.request.holder for one in same])
            found = [Task(row, handler) for row in held]
            self.give_back(found, "the claim's COMMIT was not answered")
        for one in noted:
            if clock() >= one.until:
                # One by one: a new list would lack what the other thread notes meanwhile.
                self._ambiguous.remove(one)
        return True

    def find_unstarted(self) -> None:
        """Have given back what the process before this one had claimed and not started when it died."""
        unstarted = self.inflight.notes.unstarted
        for one in list(unstarted):
            for handler in self.handlers:
                if handler.model._meta.label == one.label:
                    rows: Any = ClaimQuerySet(handler.model, using=self.using)
                    held = claimed_by(rows.filter(pk__in=one.keys), [one.holder])
                    tasks = [Task(row, handler, one.batch) for row in held]
                    self.give_back(tasks, "the process before it had not started it")
            unstarted.remove(one)

    def release_returned(self) -> bool:
        """Release what was given back; True if the database has answered."""
        done = False
        for _ in range(len(self._returned)):
            given = self._returned.popleft()
            try:
                self._release(given)
            except BaseException:
                self._returned.append(given)
                raise
            done = True
        return done

    def release_the_last(self) -> None:
        """Write all that is left; what a session that is being ended has locked, as soon as it lets go."""
        end = clock() + LAST_TRIES
        while self.has_to_give_back():
            self.release_returned()
            self._write_overruns()
            if clock() >= end:
                return
            time.sleep(LAST_PAUSE)

    def _release(self, given: Return) -> None:
        """Release what nobody has locked; a locked row comes round again, and keeps no other waiting."""
        if given.thread is not None and end_session_of(given.thread, self.using):
            given.thread = None
        by_model: dict[Any, list[Task]] = {}
        for task in given.tasks:
            by_model.setdefault(type(task.row), []).append(task)
        for model, same in by_model.items():
            began = clock()
            target = ClaimTarget.of(model, self.using)
            # A row that is refused stays held until its lease ends.
            search = RefusedRows[Task](target, lambda task: task.claim.pk)
            for free, busy in search.send(same, partial(_release_unlocked, target)):
                if free:
                    changed("released", free, clock() - began, why=given.reason)
                locked = {id(row) for row in busy}
                rest = [task for task in same if id(task.row) in locked]
                if rest:
                    self._returned.append(Return(rest, given.reason))
            if search.left:
                self._returned.append(Return([*search.left], given.reason, given.thread))

    # Overrun handlers

    def end_overrun(self) -> bool:
        """Wait no more for calls whose time is over; True if there were any."""
        running = [unit for unit in self.inflight.running() if unit.handler.timeout is not None]
        for unit in running:
            if will_overrun(unit):
                unit.ask_back("its timeout is near", too_long=True)
        late = [unit for unit in running if unit.awaited and overran(unit)]
        for unit in late:
            self.has_overrun = True
            self._overruns += abandon(unit)
            self.throttles.heard(unit.handler.model, bad=len(unit.called))
            self.give_back(task for task in unit.tasks if task not in unit.called)
        self._write_overruns()
        return bool(late)

    def _write_overruns(self) -> None:
        """Try each once: what could not be written comes round again, and leases are renewed in between."""
        for one in list(self._overruns):
            if one.write(self.using, self.counters):
                self._overruns.remove(one)


def _release_unlocked(target: ClaimTarget, tasks: Sequence[Task]) -> tuple[list[Any], list[Any]]:
    """Release what nobody has locked, and return the rows released and the rows that are locked."""
    with target.dialect.own_transaction():
        free, busy = lock_free([task.carrier() for task in tasks])
        if free:
            ClaimQuerySet(target.model).release(free)
    return free, busy


def _is_renewable(task: Task) -> bool:
    claim = task.claim
    gone = claim.lost and not task.fenced
    if task.abandoned or gone or claim.ended:
        return False
    return not is_refused(type(task.row), claim.alias, claim.pk)
