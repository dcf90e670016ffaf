"""The rows that one process holds: waiting for a handler, running in one, or waiting to be written.

The claimer puts claims in at one end, executors run their rows, and the writer takes the results out at the other.
A row is held, and its lease renewed, until its result has been written. A row that goes back has a result, too.
"""

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models import Model

from django_taskclaim.claim import Ended, clock
from django_taskclaim.handlers import Handler
from django_taskclaim.worker.batch import (
    DONE,
    NOT_STARTED,
    Ambiguous,
    HeldRow,
    Notes,
    Outcome,
    PutBack,
    Result,
    WorkItem,
)

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
    #: Rows that have ended, and what they came to.
    _unwritten: dict[HeldRow, Result] = field(default_factory=dict)
    #: By handler, what its rows that are done share until the writer asks for them.
    _done: dict[Handler, Result] = field(default_factory=dict)
    #: A quarantined item that runs, while which nothing else begins.
    _alone: WorkItem | None = None
    closed: bool = False
    #: A take that leaves fewer calls of a model than this tells those who wait, for more may be claimed.
    low: int = 1
    _lock: threading.RLock = field(default_factory=threading.RLock)
    #: For executors that wait for rows, and for the claimer that waits for room or for results.
    _changed: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        self._changed = threading.Condition(self._lock)

    # In at one end

    def add(self, rows: Sequence[HeldRow]) -> None:
        """Note and queue the rows of one claim; they go back once the worker is stopping."""
        first, keys = rows[0], [held.claim.pk for held in rows]
        model = first.handler.model
        self.notes.add(first.batch, model._meta.label, first.claim.token.holder, keys)
        with self._lock:
            self._waiting.setdefault(model, deque()).append(deque(rows))
            self._offer_waiting()

    def take(self, timeout: float, leaving: threading.Event, *, is_async: bool) -> WorkItem | None:
        """Start the next call of a coroutine function, or of a plain one, that may start now.

        None after *timeout* seconds or when *leaving* is set.
        """
        with self._lock:
            self._changed.wait_for(
                lambda: leaving.is_set() or self._next(is_async=is_async) is not None, timeout
            )
            waiting = None if leaving.is_set() else self._next(is_async=is_async)
            return None if waiting is None else self._start(waiting)

    def take_next(self, item: WorkItem) -> HeldRow | None:
        """Note the row of an item as done, and start the next one of its claim as part of the same item.

        None, and nothing noted, where that row is the last of the claim, may not start, or other models are next.
        """
        with self._lock:
            left, now = len(item.rest), clock()
            if left <= 1 or len(self._waiting) > 1 or item not in self._running:
                return None
            if not item.rest[0].may_start(now):
                return None
            if left == self.low:
                self._changed.notify_all()
            item.rows[0].ran = now - item.started
            self._add_done(item.rows, now)
            held = item.rest.popleft()
            held.batch.started[held.number] = 1
            item.begin([held], now)
            return held

    def _start(self, waiting: deque[HeldRow]) -> WorkItem:
        handler = waiting[0].handler
        model = handler.model
        rows = [waiting.popleft() for _ in range(len(waiting) if handler.batch else 1)]
        for held in rows:
            held.batch.started[held.number] = 1
        if not waiting:
            self._waiting[model].popleft()
        if not self._waiting[model]:
            del self._waiting[model]
        elif len(self._waiting) > 1:
            # Last in line now, so that the other models get their turn.
            self._waiting[model] = self._waiting.pop(model)
        item = WorkItem(handler, rows, waiting)
        self._running.append(item)
        if rows[0].batch.quarantined:
            self._alone = item
        if len(waiting) < self.low and self.waiting(model) < self.low:
            self._changed.notify_all()
        return item

    def _next(self, *, is_async: bool) -> deque[HeldRow] | None:
        """Return the rows of which one, or for a batch handler all, may start now, if any."""
        if self._alone is not None:
            return None
        for waiting, *_ in self._waiting.values():
            handler = waiting[0].handler
            if handler.is_async != is_async or (is_async and self._is_full(handler)):
                continue
            # A crash of the process would end the claims of rows that run, or wait to be written.
            if not (waiting[0].batch.quarantined and (self._running or self._unwritten)):
                return waiting
        return None

    def _is_full(self, handler: Handler) -> bool:
        return sum(item.handler is handler for item in self._running) >= handler.concurrency

    def holds_quarantined(self) -> bool:
        """Say whether the process holds a row that runs alone: nothing else may be claimed before it has ended."""
        with self._lock:
            waiting = [held for claims in self._waiting.values() for held, *_ in claims]
            return self._alone is not None or any(held.batch.quarantined for held in waiting)

    # Out at the other

    def judge(
        self, item: WorkItem, outcomes: Iterable[tuple[HeldRow, Outcome]], ran: float = 0.0
    ) -> None:
        """Have what became of rows of an item that runs written; nothing of one that was abandoned before."""
        with self._lock:
            if item not in self._running:
                return
            now, judged, done = clock(), set[HeldRow](), list[HeldRow]()
            for held, outcome in outcomes:
                judged.add(held)
                item.outcomes.append(outcome)
                held.ran = ran
                if outcome is DONE:
                    done.append(held)
                else:
                    held.error = getattr(outcome, "error", None)
                    # The transaction that was to commit it may have it locked.
                    locked = isinstance(outcome, Ambiguous)
                    self._add([held], Result(outcome, now, locked))
            if done:
                self._add_done(done, now)
            if rest := [held for held in item.rows if held not in judged]:
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

    def _add(self, rows: Sequence[HeldRow], result: Result) -> None:
        """Have what rows came to written."""
        self._unwritten |= dict.fromkeys(rows, result)
        if len(self._unwritten) == len(rows) or len(self._unwritten) >= ENOUGH:
            self._changed.notify_all()

    def _add_done(self, rows: list[HeldRow], now: float) -> None:
        """Have rows that are done completed, with others of their handler if the writer has not taken these yet."""
        handler = rows[0].handler
        if (result := self._done.get(handler)) is None:
            self._done[handler] = result = Result(DONE, now)
        self._add(rows, result)

    def settle(self, item: WorkItem) -> bool:
        """Let go of an item that ran; False if it was abandoned before."""
        with self._lock:
            if item in self._running:
                self._let_go(item)
            return not item.abandoned

    def _let_go(self, item: WorkItem) -> None:
        self._running.remove(item)
        was_alone = item is self._alone
        if was_alone:
            self._alone = None
        # A coroutine that has ended makes room for another.
        if was_alone or item.handler.is_async or item.handler.model not in self._waiting:
            self._changed.notify_all()

    def abandon(
        self,
        item: WorkItem,
        outcome: Outcome,
        ran: float = 0.0,
        rows: Sequence[HeldRow] | None = None,
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
                held.ran = ran
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
            for model, claims in list(self._waiting.items()):
                taken: list[HeldRow] = []
                for waiting in claims:
                    for _ in range(len(waiting)):
                        held = waiting.popleft()
                        # Asked once: another thread may find the row lost in between.
                        (taken if which(held) else waiting).append(held)
                self._waiting[model] = deque(filter(None, claims))
                if not self._waiting[model]:
                    del self._waiting[model]
                self.give_back(taken)
            self.wake()

    def give_back(
        self, rows: Iterable[HeldRow], outcome: Outcome = NOT_STARTED, thread: int | None = None
    ) -> None:
        """Have rows of one handler released that neither wait for it nor run; their leases are not renewed meanwhile.

        Where *thread* may still be at work on them, its session is ended if it has them locked.
        """
        given = list(rows)
        for held in given:
            held.abandoned = True
        if given:
            with self._lock:
                self._add(given, Result(outcome, locked=True, thread=thread))
                self.wake()

    def close(self) -> None:
        """Let nothing more in, put back every waiting row, and ask for those that run."""
        with self._lock:
            self.closed = True
            self.put_back(recall="the worker stops")

    def release_unwritten(self) -> None:
        """Have rows released whose results could not be written until now."""
        with self._lock:
            self._done.clear()
            for result in self._unwritten.values():
                result.came = clock()
                if not isinstance(result.outcome, (PutBack, Ended)):
                    result.outcome = PutBack("its result could not be written")
            self.wake()

    def unwritten(self) -> list[tuple[Result, list[HeldRow]]]:
        """Return what may be written now, the oldest first, with the rows; what has met a lock comes last."""
        with self._lock:
            self._done.clear()
            now, due = clock(), dict[Result, list[HeldRow]]()
            for held, result in self._unwritten.items():
                if not result.locked or result.came <= now:
                    due.setdefault(result, []).append(held)
            return sorted(due.items(), key=lambda one: one[0].locked and one[0].came)

    def change(self, result: Result, rows: Sequence[HeldRow], **changes: Any) -> Result:
        """Let some rows of a result have one of their own, with these *changes*, and return it."""
        with self._lock:
            changed = replace(result, **changes)
            self._unwritten |= dict.fromkeys(rows, changed)
            return changed

    def written(self, rows: Sequence[HeldRow]) -> None:
        """Let go of rows whose results are written."""
        with self._lock:
            for held in rows:
                del self._unwritten[held]
            self._changed.notify_all()

    def write_at(self, *, more_to_come: bool = False) -> float:
        """Return when, by ``clock()``, there is something to be written; infinity where there is nothing.

        At once where enough has come, or nothing runs nor is *more_to_come* from rows not claimed yet; else when the
        oldest result has waited long enough, or a row that somebody had locked is to be tried again.
        """
        with self._lock:
            fresh, moment = 0, math.inf
            for result, rows in Counter(self._unwritten.values()).items():
                fresh += 0 if result.locked else rows
                moment = min(moment, result.came + (0.0 if result.locked else LINGER))
            is_last = not more_to_come and self.runs_dry()
            return 0.0 if fresh and (is_last or fresh >= ENOUGH) else moment

    # Looking

    def held(self) -> list[HeldRow]:
        """Return all rows: those that run, those that wait, and those whose result is not yet written."""
        with self._lock:
            running = [held for item in self._running for held in item.rows]
            waiting = [held for claims in self._waiting.values() for one in claims for held in one]
            return [*running, *waiting, *self._unwritten]

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
            return self.runs_dry() and not self._unwritten

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
