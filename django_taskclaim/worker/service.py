"""The service thread: gives back, renews, reads the switch and reaps, on a connection of its own.

It never waits for a row that somebody has locked, so one stuck handler cannot cost the others their leases.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django_taskclaim.claim import clock
from django_taskclaim.columns import row_noun
from django_taskclaim.conf import setting
from django_taskclaim.fields import as_utc
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import RENEWALS_PER_LEASE, SELF_FENCE
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.expiry import Reaper
from django_taskclaim.querysets.holdings import claimed_by
from django_taskclaim.querysets.isolating import RefusedRows, is_refused
from django_taskclaim.querysets.renewing import renew
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import lock_free
from django_taskclaim.switch import Stops, stops_of
from django_taskclaim.tables import Switch
from django_taskclaim.throttling.records import EVERYONE, HOURS
from django_taskclaim.throttling.throttles import Throttles
from django_taskclaim.worker import heartbeat
from django_taskclaim.worker.attachments import attachments_of
from django_taskclaim.worker.calls import Calls
from django_taskclaim.worker.connections import (
    TROUBLE,
    close_all,
    drop_broken,
    end_session_of,
    guard_connections,
    is_contention,
    is_refusal,
    use_own_connection,
)
from django_taskclaim.worker.inflight import InFlight, Task, Unit
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.overruns import Overrun, abandon, overran, will_overrun
from django_taskclaim.worker.records import (
    Limited,
    changed,
    logger,
    lost,
    summary,
)
from django_taskclaim.worker.unanswered import UnansweredClaims

#: Seconds between two looks at the switch: while rows are held, and while claims are stopped, for then nobody asks for
#: rows, and somebody waits to see them flow again.
SWITCH_EVERY, RESUME_EVERY = 1.0, 0.5
THROTTLES_EVERY = 1.0
#: How soon a new session listens after the one before it was lost.
LISTEN_EVERY = 1.0
SUMMARY_EVERY = 10.0
#: How soon after its first report a process tells what it holds.
SECOND_REPORT = 1.0
PRUNE_EVERY = 3600.0
TICK = 0.25
#: Seconds until a renewal that failed, or passed over locked rows, is tried again; sooner for short leases.
RENEW_AGAIN = 1.0
#: Seconds for which this connection must live on before a broken session is the row's own fault.
SETTLING = 0.5
#: How long, in seconds, the last rows are tried to be given back.
LAST_TRIES = 1.5


@dataclass(slots=True)
class Return:
    """Rows to be released, and the thread, if any, whose session must be ended first."""

    tasks: list[Task]
    reason: str
    thread: int | None = None


class Service(threading.Thread):
    """One for each process."""

    def __init__(self, options: WorkerOptions, handlers: list[Handler], inflight: InFlight) -> None:
        super().__init__(name="taskclaim-service", daemon=True)
        self.options = options
        self.handlers = handlers
        #: What the rows of these models are called in the log.
        self.unit = row_noun(handler.model for handler in handlers)
        self.inflight = inflight
        #: Models whose claims a person has stopped, by what the last look said.
        self.paused: dict[Any, str] = {}
        #: Models whose rows the claimer looks for at once, however long its pause still is.
        self.to_look_for: set[Any] = set()
        #: A handler has overrun: the process must be replaced, because a thread cannot be killed.
        self.overrun = threading.Event()
        self.vitals = heartbeat.Vitals()
        #: What stops claims by itself: health checks, asked here, and failures, heard from the executors.
        self.throttles = Throttles(
            heartbeat.process_name(options),
            options.using,
            {handler.model: handler.health_checks for handler in handlers},
        )
        #: The switch of each model, whose ``batch_size`` and ``lease`` the next claims follow. A model is missing until
        #: its switch has been read; until then its rows are not claimed.
        self.switches: dict[Any, Switch] = {}
        #: Set by whoever may give orders: claim nothing more and leave once all is done, or stop as by a signal.
        self.told_to_drain, self.told_to_stop = threading.Event(), threading.Event()
        #: What transactions that stay open are measured by, in every thread.
        self.longest_lease = max(map(self.lease_of, handlers))
        #: By ``clock()``, when this thread last came to one of its duties.
        self.last_turn = clock()
        #: By ``clock()``, when leases were last renewed, and when that must be tried again at the latest.
        self._renewed, self._renew_by = float("-inf"), float("inf")
        self._last_good = clock()
        self._last_trouble = float("-inf")
        #: Claims of which nobody knows whether they were made; the claimer notes them.
        self.unanswered = UnansweredClaims(options.using)
        self._returned: deque[Return] = deque()
        self._overruns: list[Overrun] = []
        self._reapers = [
            Reaper(handler.model, options.using, lease=partial(self.lease_of, handler))
            for handler in handlers
        ]
        #: What this thread waits for between two rounds.
        self.calls = Calls(options, handlers, inflight.wake)
        #: Set once this thread is at work.
        self.begun = threading.Event()
        self._leave = threading.Event()
        self._due: dict[str, float] = {"summary": clock() + SUMMARY_EVERY}
        self._limited = Limited()
        self._attachments = attachments_of(self)

    # What the other threads ask of it

    def give_back(self, tasks: Iterable[Task], reason: str = "not started") -> None:
        """Release rows that nobody works on, uncounted; at once, in this thread."""
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

    def _take_back(self, given: "Return") -> None:
        if given.tasks:
            self._returned.append(given)
            self.calls.bell.ring()

    def healthy(self, lease: timedelta) -> bool:
        """Say whether leases of this length can be kept: no claim is taken that could not be renewed."""
        return clock() - self._last_good < lease.total_seconds() * SELF_FENCE

    def troubled_since(self, moment: float) -> bool:
        """Say whether the database was away, as this thread saw it, at any time since *moment*."""
        return self._last_trouble >= moment

    def settled_since(self, moment: float, timeout: float) -> bool:
        """Wait until this thread has had an answer, good or bad, from the database after *moment*."""
        end = clock() + timeout
        while clock() < end:
            if max(self._last_good, self._last_trouble) > moment:
                return True
            self.calls.bell.ring()
            self._leave.wait(0.05)
        return False

    def was_away_since(self, moment: float) -> bool:
        """Say whether the database was away at any time since *moment*; waits until this thread has asked it again.

        No answer means that it still is. If it was not, the server has cut off one session, and has its reason in what
        was sent there.
        """
        # A server that goes down ends its sessions one after the other.
        settled = self.settled_since(clock() + SETTLING, timeout=10)
        return not settled or self.troubled_since(moment)

    def lease_of(self, handler: Handler) -> timedelta:
        """Return how long the next claims for *handler* last unless renewed."""
        switch = self.switches.get(handler.model)
        return handler.lease if switch is None or switch.lease is None else switch.lease

    def let_claim(self, models: Iterable[object]) -> None:
        """Have the claimer look for rows of *models* now: what kept it from claiming is over."""
        self.to_look_for.update(models)
        self.inflight.wake()

    def has_to_give_back(self) -> bool:
        return bool(self._returned or self._overruns)

    def leave(self) -> None:
        """End after one last round."""
        self._leave.set()
        self.calls.bell.ring()

    # The thread

    def run(self) -> None:
        use_own_connection(self.options.using)
        guard_connections(self.longest_lease, ours_alone=True)
        self.begun.set()
        try:
            while not self._leave.is_set():
                self._round()
                self._guarded("hearing calls", partial(self.calls.wait, TICK))
            self._guarded("looking for unanswered claims", partial(self._find_unanswered, now=True))
            self._guarded("looking for rows never begun", self._find_unbegun)
            self._guarded("giving rows back", self._release_the_last)
            for one in self._attachments:
                self._guarded(f"ending {type(one).__name__}", one.leave)
            self._guarded("signing off", lambda: heartbeat.sign_off(self.options))
            self._guarded("signing off", self.throttles.sign_off)
        finally:
            self.calls.bell.close()
            close_all()

    def _round(self) -> None:
        guard_connections(self.longest_lease, ours_alone=True)
        self._guarded("looking for unanswered claims", self._find_unanswered)
        self._guarded("looking for rows never begun", self._find_unbegun)
        self._guarded("giving rows back", self._release_returned)
        self._guarded("renewing leases", self._renew_when_due)
        self.fence()
        self._guarded("reading the switch", self._read_switch_when_due)
        self._guarded("listening for calls", self._listen_when_due)
        self._guarded("asking health checks", self._throttle_when_due)
        self._guarded("ending overrun rows", self._end_overrun)
        for reaper in self._reapers:
            # Each by itself: a table that cannot be read keeps no other model's rows from coming back.
            what = f"looking for expired claims of {reaper.model._meta.label}"
            self._guarded(what, partial(self._reap, reaper))
        self._guarded("reporting", self._report_when_due)
        for one in self._attachments:
            busy = bool(self.inflight.held())
            self._guarded(f"taking a turn of {type(one).__name__}", partial(one.turn, busy=busy))
        self._guarded("forgetting what is old", self._prune_when_due)

    def _guarded(self, what: str, job: Callable[[], bool | None]) -> None:
        """Run one duty; trouble with the database spoils no other duty and is remembered.

        Leases are renewed as soon as a silence of the database is over, before the next duty.
        """
        self._run_guarded(what, job)
        if clock() - self.last_turn > self._shortest_renewal() / 2:
            self._run_guarded("renewing leases", self._renew_when_due)

    def _run_guarded(self, what: str, job: Callable[[], bool | None]) -> None:
        self.last_turn = clock()
        try:
            if job():
                self._last_good = clock()
        except TROUBLE as error:
            if not (is_contention(error) or is_refusal(error)):
                self._last_trouble = clock()
                for reaper in self._reapers:
                    reaper.start_over()
            self._limited.warn(f"{self.options.name}: {what}", error)
            drop_broken(self.options.using)
        except Exception as error:
            # Whatever it is, the leases of this process depend on this thread going on.
            self._limited.broken(f"{self.options.name}: {what}", error)
            drop_broken(self.options.using)

    def _is_due(self, duty: str, every: float) -> bool:
        now = clock()
        if now < self._due.get(duty, 0.0):
            return False
        self._due[duty] = now + every * random.uniform(0.75, 1.0)
        return True

    # Giving back

    def _release_returned(self) -> bool:
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

    def _find_unanswered(self, *, now: bool = False) -> bool:
        """Have the rows of such claims given back before an expiry charges them a try that nobody made."""
        found = self.unanswered.find(now=now)
        self._take_back(Return(found, "the claim's COMMIT was not answered"))
        return bool(found)

    def _find_unbegun(self) -> bool:
        """Have given back what the process before this one had claimed and not begun when it died."""
        unbegun = self.inflight.notes.unbegun
        for one in list(unbegun):
            for handler in self.handlers:
                if handler.model._meta.label == one.label:
                    rows: Any = ClaimQuerySet(handler.model, using=self.options.using)
                    held = claimed_by(rows.filter(pk__in=one.keys), [one.holder])
                    tasks = [Task(row, handler, one.batch) for row in held]
                    self._take_back(Return(tasks, "the process before it had not begun it"))
            unbegun.remove(one)
        return False

    def _release_the_last(self) -> None:
        """Write all that is left; what a session that is being ended has locked, as soon as it lets go."""
        end = clock() + LAST_TRIES
        while self.has_to_give_back():
            self._release_returned()
            self._write_overruns()
            if clock() >= end:
                return
            time.sleep(TICK / 5)

    def _release(self, given: "Return") -> None:
        """Release what nobody has locked; a locked row comes round again, and keeps no other waiting."""
        if given.thread is not None and end_session_of(given.thread, self.options.using):
            given.thread = None
        by_model: dict[Any, list[Task]] = {}
        for task in given.tasks:
            by_model.setdefault(type(task.row), []).append(task)
        for model, same in by_model.items():
            began = clock()
            target = ClaimTarget.of(model, self.options.using)
            # A row that is refused stays held until its lease ends.
            search = RefusedRows[Task](target, lambda task: task.claim.pk)
            for free, busy in search.send(same, partial(_release_unlocked, target)):
                if free:
                    changed("released", free, clock() - began, why=given.reason)
                locked = {id(row) for row in busy}
                rest = [task for task in same if id(task.row) in locked]
                if rest:
                    self._returned.append(Return(rest, given.reason))
            for part in search.left:
                self._returned.append(Return([*part], given.reason, given.thread))

    # Renewing

    def _renew_when_due(self) -> bool:
        held = self.inflight.held()
        if not held:
            # An idle worker asks too, unless another duty just did, so that it knows that it could renew.
            if clock() - self._last_good < self._shortest_renewal():
                return False
            self.read_switch()
            return True
        if clock() < self._next_renewal(held):
            return False
        renewable = {id(task.carrier()): task for task in held if _is_renewable(task)}
        self._renewed = began = clock()
        # Unless all goes well, again soon: an outage that is over must not cost the rest of a long lease.
        self._renew_by = again = began + min(RENEW_AGAIN, self._shortest_renewal() / 4)
        outcome = renew([task.row for task in renewable.values()], None)
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
        """Return when to renew: by the shortest lease held now, whatever was held at the last renewal."""
        shortest = min(task.claim.lease for task in held).total_seconds()
        pause = random.uniform(0.75, 1.0) * shortest / RENEWALS_PER_LEASE
        return min(self._renewed + pause, self._renew_by)

    def fence(self) -> None:
        """Take claims for lost before they expire when they could not be renewed in time; asks no database.

        The main thread calls it too: this one may hang in a statement.
        """
        for task in self.inflight.held():
            if task.is_overdue() and not task.claim.lost:
                # A running one is renewed again as soon as that works, for the second run would be beside the first.
                task.claim.lost = task.fenced = True
                lost(task.row, "could not be renewed in time")
        self.give_back(self.inflight.withdraw(lambda task: task.claim.lost))

    # The switch

    def _read_switch_when_due(self) -> bool:
        every = RESUME_EVERY if self.paused else SWITCH_EVERY
        is_stopped = self.paused or self.throttles.has_imposed
        matters = self.inflight.held() or is_stopped or len(self.switches) < len(self.handlers)
        if not self._is_due("switch", every) or not matters:
            return False
        self.read_switch()
        return True

    def read_switch(self) -> None:
        """Look which models are paused, and give back what has not started of those that are; note the overrides."""
        for handler in self.handlers:
            stops = stops_of(handler.model, using=self.options.using)
            self._follow(handler.model, stops.own)
            self._impose(handler.model, stops)
            if (pause := stops.pause) is None:
                if self.paused.pop(handler.model, None) is not None:
                    self.let_claim([handler.model])
                continue
            if handler.model not in self.paused:
                logger.info(
                    "%s is paused: %s", handler.model._meta.label, pause.reason or "no reason given"
                )
            self.paused[handler.model] = pause.reason
            self.withdraw(handler.model)

    def _impose(self, model: Any, stops: Stops) -> None:
        """Stop claims for as long as everyone is throttled, or until the hours begin.

        Each claim finds that out for itself; this is for not asking in vain, and for people to read.
        """
        found: dict[str, tuple[str, datetime]] = {}
        if stops.throttle is not None and stops.throttle.until is not None:
            found[EVERYONE] = stops.throttle.reason, as_utc(stops.throttle.until)
        if stops.closed is not None and stops.closed.until is not None:
            found[HOURS] = f"outside the hours {stops.closed.limits.hours}", stops.closed.until
        for source in (EVERYONE, HOURS):
            if source in found and stops.now is not None:
                self.throttles.impose(model, source, *found[source], stops.now)
            else:
                self.throttles.lift(model, source)

    def _follow(self, model: object, switch: Switch) -> None:
        """Let the next claims of *model* follow the overrides, and measure open transactions by the new leases."""
        is_first = model not in self.switches
        self.switches[model] = switch
        self.longest_lease = max(map(self.lease_of, self.handlers))
        if is_first:
            self.let_claim([model])

    # Calls

    def _listen_when_due(self) -> bool:
        return self._is_due("listen", LISTEN_EVERY) and self.calls.listen()

    # Overrun handlers

    def _end_overrun(self) -> bool:
        for unit in self.inflight.running():
            if will_overrun(unit):
                unit.ask_back("its timeout is near", too_long=True)
        late = [unit for unit in self.inflight.running() if unit.awaited and overran(unit)]
        for unit in late:
            self.overrun.set()
            self._overruns += abandon(unit)
            self.throttles.heard(unit.handler.model, bad=len(unit.called))
            self.give_back(task for task in unit.tasks if task not in unit.called)
        self._write_overruns()
        return bool(late)

    def _write_overruns(self) -> None:
        """Try each once: what could not be written comes round again, and leases are renewed in between."""
        for one in list(self._overruns):
            if one.write(self.options.using, self.vitals):
                self._overruns.remove(one)

    # The reaper

    def _reap(self, reaper: Reaper) -> bool:
        return reaper.turn(int(setting("CHUNK_SIZE"))) is not None

    def _shortest_renewal(self) -> float:
        return min(map(self.lease_of, self.handlers)).total_seconds() / RENEWALS_PER_LEASE

    # Throttles

    def _throttle_when_due(self) -> bool:
        for handler in self.handlers:
            if self.throttles.gives_back(handler.model):
                self.withdraw(handler.model)
        if self._is_due("throttles", THROTTLES_EVERY):
            self.throttles.update()
        # It may have asked nothing, so it is no sign that the database is there.
        return False

    # Reporting

    def _report_when_due(self) -> bool:
        held = len(self.inflight.held())
        if not self._is_due("report", heartbeat.EVERY if held else heartbeat.EVERY_IDLE):
            return False
        if not held:
            # Nobody else has looked, and what is paused is to be told as such.
            self.read_switch()
        begins = not self.vitals.introduced
        heartbeat.report(self.options, self.vitals, held=held, paused=bool(self.paused))
        if begins:
            # It has had no time to claim yet.
            self._due["report"] = clock() + SECOND_REPORT
        if self._is_due("summary", SUMMARY_EVERY):
            summary(self.options.name, self.vitals, held, self.unit)
        return True

    def _prune_when_due(self) -> bool:
        if not self._is_due("prune", PRUNE_EVERY):
            return False
        done = [heartbeat.prune(self.options.using), *(one.prune() for one in self._attachments)]
        if not all(done):
            # A piece each round, for leases are renewed in between.
            self._due["prune"] = 0.0
        return True


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
