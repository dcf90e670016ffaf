"""The rows that one process holds: waiting for a handler, running in one, or waiting to be written.

The claimer puts claims in at one end, executors run their rows, and the writer takes the results out at the other.
A row is held, and its lease renewed, until its result has been written. A row that goes back has a result, too.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from django.db.models import Model

from django_taskclaim.claim import clock
from django_taskclaim.handlers import Handler
from django_taskclaim.worker.batch import NOT_STARTED, HeldRow, Notes, Outcome, WorkItem

#: Seconds that a result waits for others to be written with, while more are to come.
LINGER = 0.05
#: Results that are enough not to wait for more: one statement's worth.
ENOUGH = 500


@dataclass(slots=True)
class InFlight:
    """Thread-safe; rows of one model are run in the order of their claim, several models take turns."""

    notes: Notes = field(default_factory=Notes)
    #: Rows of one claim that wait, in its order: all, or those of a batch that is to be run again.
    _waiting: dict[type[Model], deque[deque[HeldRow]]] = field(default_factory=dict)
    _running: list[WorkItem] = field(default_factory=list)
    #: Rows that have ended, the oldest first; by ``clock()``, when that was.
    _ended: dict[HeldRow, float] = field(default_factory=dict)
    #: Rows that have ended and may be locked by somebody; by ``clock()``, when to try to write them around locks.
    _blocked: dict[HeldRow, float] = field(default_factory=dict)
    closed: bool = False
    #: A take that leaves fewer calls of a model than this tells those who wait, for more may be claimed.
    refill_below: int = 1
    _lock: threading.RLock = field(default_factory=threading.RLock)
    #: For executors that wait for rows, and for the claimer that waits for room or for results.
    _changed: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        self._changed = threading.Condition(self._lock)

    # In at one end

    def add(self, rows: Sequence[HeldRow]) -> None:
        """Note and queue the rows of one claim; they go back once the worker is stopping."""
        self.notes.add(rows)
        with self._lock:
            self._waiting.setdefault(rows[0].handler.model, deque()).append(deque(rows))
            self._offer_waiting()

    def take(self, timeout: float, leaving: threading.Event, *, is_async: bool) -> WorkItem | None:
        """Start the next call of a coroutine function, or of a plain one, that may start now.

        None after *timeout* seconds or when *leaving* is set.
        """
        with self._lock:
            found = self._changed.wait_for(
                lambda: leaving.is_set() or self._next(is_async=is_async), timeout
            )
            return self._start(found) if isinstance(found, deque) else None

    def take_next(self, item: WorkItem) -> HeldRow | None:
        """Note the row of an item as done, and start the next one of its claim as part of the same item.

        None, and nothing noted, where that row is the last of the claim, may not start, or other models are next.
        """
        with self._lock:
            left, now = len(item.rest), clock()
            if left <= 1 or len(self._waiting) > 1 or item not in self._running:
                return None
            if item.rest[0].unstarted_outcome(now) is not None:
                return None
            if left == self.refill_below:
                self._changed.notify_all()
            item.rows[0].ran = now - item.started
            self._add(item.rows, now)
            held = item.rest.popleft()
            held.batch.started[held.number] = 1
            item.begin([held], now)
            return held

    def _start(self, waiting: deque[HeldRow]) -> WorkItem:
        handler = waiting[0].handler
        rows = [waiting.popleft() for _ in range(len(waiting) if handler.batch else 1)]
        for held in rows:
            held.batch.started[held.number] = 1
        claims = self._waiting.pop(handler.model)
        if not waiting:
            claims.popleft()
        if claims:
            # Last in line now, so that the other models get their turn.
            self._waiting[handler.model] = claims
        item = WorkItem(handler, rows, waiting)
        self._running.append(item)
        if len(waiting) < self.refill_below and self.waiting(handler.model) < self.refill_below:
            self._changed.notify_all()
        return item

    def _next(self, *, is_async: bool) -> deque[HeldRow] | None:
        """Return the rows of which one, or for a batch handler all, may start now, if any."""
        if self._runs_alone():
            return None
        for waiting, *_ in self._waiting.values():
            handler = waiting[0].handler
            if handler.is_async != is_async or (is_async and self._is_full(handler)):
                continue
            # A crash of the process would end the claims of rows that run, or wait to be written.
            is_alone = waiting[0].claim.quarantined
            if not (is_alone and (self._running or self._ended or self._blocked)):
                return waiting
        return None

    def _is_full(self, handler: Handler) -> bool:
        return sum(item.handler is handler for item in self._running) >= handler.concurrency

    def holds_quarantined(self) -> bool:
        """Say whether the process holds a row that runs alone: nothing else may be claimed before it has ended."""
        with self._lock:
            first = [one[0] for claims in self._waiting.values() for one in claims]
            return self._runs_alone() or any(held.claim.quarantined for held in first)

    def give_back_quarantined(self) -> bool:
        """Have quarantined rows released that wait for others to end, and say whether there was any."""
        with self._lock:
            found = not self._runs_alone() and self.holds_quarantined()
            if found:
                self.put_back(lambda held: held.claim.quarantined)
            return found

    def _runs_alone(self) -> bool:
        """Say whether a quarantined row runs, while which nothing else begins."""
        return bool(self._running) and self._running[0].rows[0].claim.quarantined

    # Out at the other

    def judge(self, item: WorkItem, outcomes: Mapping[HeldRow, Outcome], ran: float = 0.0) -> None:
        """Have what became of rows of an item that runs written; nothing of one that was abandoned before."""
        with self._lock:
            if item not in self._running:
                return
            for held, outcome in outcomes.items():
                held.outcome, held.ran = outcome, ran
            # What a COMMIT that was not answered well came to is not known yet.
            item.outcomes += [one for held, one in outcomes.items() if held.commit_error is None]
            self._add(outcomes, clock())
            if rest := [held for held in item.rows if held not in outcomes]:
                item.rows = rest
            else:
                self._let_go(item)

    def halve(self, item: WorkItem) -> None:
        """Have the rows of a batch that came to an error together run again in two halves, before those that wait."""
        with self._lock:
            if item not in self._running:
                return
            self._let_go(item)
            for held in item.rows:
                # If the process ends now, none of them was running.
                held.batch.started[held.number] = 0
            middle = (len(item.rows) + 1) // 2
            waiting = self._waiting.setdefault(item.handler.model, deque())
            waiting.extendleft([deque(item.rows[middle:]), deque(item.rows[:middle])])
            self._offer_waiting()

    def _add(self, rows: Iterable[HeldRow], now: float) -> None:
        """Have what rows came to written; their handler, or a COMMIT under way, may still have some of them locked."""
        is_first = not self._ended
        for held in rows:
            # The token of a row whose COMMIT was not answered well is read back before anything is said of it.
            is_blocked = held.abandoned or (held.ending and held.claim.unanswered)
            (self._blocked if is_blocked else self._ended)[held] = now
        if is_first or self._blocked or len(self._ended) >= ENOUGH:
            self._changed.notify_all()

    def settle(self, item: WorkItem) -> bool:
        """Let go of an item that ran; False if it was abandoned before."""
        with self._lock:
            if item in self._running:
                self._let_go(item)
            return not item.abandoned

    def _let_go(self, item: WorkItem) -> None:
        self._running.remove(item)
        # A coroutine that has ended makes room for another.
        makes_room = item.handler.is_async or item.rows[0].claim.quarantined
        if makes_room or item.handler.model not in self._waiting:
            self._changed.notify_all()

    def abandon(
        self, item: WorkItem, outcome: Outcome, rows: Sequence[HeldRow] | None = None
    ) -> None:
        """Wait no more for an item whose thread goes on: *outcome* is that of its rows.

        Nothing is done where it is no longer the call with these *rows*.
        """
        with self._lock:
            if item not in self._running or (rows is not None and item.rows is not rows):
                return
            self._let_go(item)
            item.abandoned = True
            for held in item.rows:
                held.ran = item.ran()
            self.give_back(item.rows, outcome, item.thread)

    def _offer_waiting(self) -> None:
        """Let rows that wait now be taken, or release them where the worker stops."""
        if self.closed:
            self.put_back()
        self._changed.notify_all()

    def put_back(
        self, which: Callable[[HeldRow], bool] = lambda held: True, *, recall: str = ""
    ) -> None:
        """Have those waiting rows released that *which* accepts.

        Where *recall* says why, those that run are asked to stop at their next resting place.
        """
        with self._lock:
            if recall:
                for item in self._running:
                    if which(item.rows[0]):
                        item.request_cancel(recall)
            taken: list[HeldRow] = []
            waiting, self._waiting = self._waiting, {}
            for model, claims in waiting.items():
                for rows in claims:
                    for _ in range(len(rows)):
                        held = rows.popleft()
                        # Asked once: another thread may find the row lost in between.
                        (taken if which(held) else rows).append(held)
                if left := deque(filter(None, claims)):
                    self._waiting[model] = left
            self.give_back(taken)
            self.wake()

    def give_back(
        self, rows: Sequence[HeldRow], outcome: Outcome = NOT_STARTED, thread: int | None = None
    ) -> None:
        """Have rows released that neither wait for a handler nor run; their leases are not renewed meanwhile.

        Where *thread* may still be at work on them, its session is ended if it has them locked.
        """
        with self._lock:
            for held in rows:
                held.abandoned, held.outcome, held.thread = True, outcome, thread
            self._add(rows, clock())

    def close(self) -> None:
        """Let nothing more in, put back every waiting row, and ask for those that run."""
        with self._lock:
            self.closed = True
            self.put_back(recall="the worker stops")

    def release_unwritten(self) -> None:
        """Have rows released whose results could not be written until now."""
        with self._lock:
            self._blocked = dict.fromkeys(self._blocked, 0.0)
            for held in (*self._ended, *self._blocked):
                held.give_up_result()
            self.wake()

    def unwritten(self) -> tuple[list[HeldRow], list[HeldRow]]:
        """Return the rows to be written, and those to be written around locks, the oldest first."""
        with self._lock:
            now = clock()
            return list(self._ended), [one for one, at in self._blocked.items() if at <= now]

    def postpone(self, rows: Sequence[HeldRow], seconds: float = 0.0) -> None:
        """Let rows that have met a lock wait for so long, and be renewed meanwhile."""
        with self._lock:
            self.written(rows)
            for held in rows:
                held.ending = held.claim.unanswered
                self._blocked[held] = clock() + seconds

    def written(self, rows: Sequence[HeldRow]) -> None:
        """Let go of rows whose results are written."""
        with self._lock:
            for unwritten in filter(None, (self._ended, self._blocked)):
                for held in rows:
                    unwritten.pop(held, None)
            self._changed.notify_all()

    def write_at(self, *, more_to_come: bool = False) -> float:
        """Return when, by ``clock()``, there is something to be written; infinity where there is nothing.

        At once where enough has come, or nothing runs nor is *more_to_come* from rows not claimed yet; else when the
        oldest result has waited long enough, or a row that somebody had locked is to be tried again.
        """
        with self._lock:
            moment = min(self._blocked.values(), default=math.inf)
            if not self._ended:
                return moment
            is_last = not more_to_come and self.runs_dry()
            is_enough = is_last or len(self._ended) >= ENOUGH
            return 0.0 if is_enough else min(moment, next(iter(self._ended.values())) + LINGER)

    # Looking

    def held(self) -> list[HeldRow]:
        """Return all rows: those that run, those that wait, and those whose result is not yet written."""
        with self._lock:
            running = [held for item in self._running for held in item.rows]
            waiting = [held for claims in self._waiting.values() for one in claims for held in one]
            return [*running, *waiting, *self._ended, *self._blocked]

    def running(self) -> list[WorkItem]:
        """Return the items that executors have taken, without the abandoned ones."""
        with self._lock:
            return list(self._running)

    def running_of(self, model: type[Model], since: float = 0.0) -> int:
        """Return how many items of *model* executors have taken, but for those that began before *since*."""
        return sum(i.handler.model is model and i.started >= since for i in self.running())

    def waiting(self, model: type[Model]) -> int:
        """Return how many calls of the handler of *model* no executor has taken yet."""
        with self._lock:
            claims = self._waiting.get(model, ())
            return sum(1 if one[0].handler.batch else len(one) for one in claims)

    def is_empty(self) -> bool:
        """Say whether the process holds nothing."""
        with self._lock:
            return self.runs_dry() and not self._ended and not self._blocked

    def runs_dry(self) -> bool:
        """Say whether nothing waits and nothing runs: no more results are to come."""
        with self._lock:
            return not self._waiting and not self._running

    def wait_until(self, moment: Callable[[], float]) -> None:
        """Wait until the *moment*, by ``clock()``, which is asked again after each change."""
        with self._lock:
            while (left := moment() - clock()) > 0:
                self._changed.wait(left)

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._lock:
            self._changed.notify_all()
