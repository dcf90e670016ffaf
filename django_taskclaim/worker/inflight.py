"""The rows that one process holds: waiting for a handler, running in one, or waiting to be written.

The claimer puts items in at one end, executors run them, and the writer takes the results out at the other.
A row is held, and its lease renewed, until its result has been written. A row that goes back has a result, too.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from django.db.models import Model

from django_taskclaim.claim import Ended, clock
from django_taskclaim.handlers import Handler
from django_taskclaim.worker.batch import NOT_STARTED, HeldRow, Notes, Outcome, PutBack, WorkItem


@dataclass(slots=True)
class InFlight:
    """Thread-safe; items of one model are run in the order of their claim, several models take turns."""

    notes: Notes = field(default_factory=Notes)
    _waiting: dict[type[Model], deque[WorkItem]] = field(default_factory=dict)
    _running: list[WorkItem] = field(default_factory=list)
    _unwritten: dict[HeldRow, None] = field(default_factory=dict)
    #: A quarantined item that runs, while which nothing else begins.
    _alone: WorkItem | None = None
    closed: bool = False
    #: A take that leaves fewer items of a model than this tells those who wait, for more may be claimed.
    low: int = 1
    #: So many results tell those who wait, for it is worth while to write them.
    enough: int = 1
    _lock: threading.RLock = field(default_factory=threading.RLock)
    #: For those who wait for items. Each row passes here twice, so nobody is woken who would find nothing to do.
    _arrived: threading.Condition = field(init=False)
    #: For those who wait for room, or for results.
    _changed: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        self._arrived = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)

    # In at one end

    def add(self, items: Sequence[WorkItem]) -> bool:
        """Note and queue the *items* of one claim; False, and nothing queued, once the worker is stopping."""
        first = items[0].rows[0]
        keys = [held.claim.pk for item in items for held in item.rows]
        label, holder = first.handler.model._meta.label, first.claim.token.holder
        self.notes.add(first.batch, label, holder, keys)
        with self._lock:
            if self.closed:
                return False
            self._waiting.setdefault(first.handler.model, deque()).extend(items)
            self._arrived.notify_all()
            return True

    def take(self, timeout: float, leaving: threading.Event, *, is_async: bool) -> WorkItem | None:
        """Start the next item of a coroutine function, or of a plain one, that may start now.

        None after *timeout* seconds or when *leaving* is set.
        """
        with self._lock:
            if timeout:
                self._arrived.wait_for(
                    lambda: leaving.is_set() or self._next(is_async=is_async) is not None, timeout
                )
            model = None if leaving.is_set() else self._next(is_async=is_async)
            if model is None:
                return None
            items = self._waiting.pop(model)
            item = items.popleft()
            if items:
                # Last in line now, so that the other models get their turn.
                self._waiting[model] = items
            item.thread = threading.get_ident()
            item.begin(item.rows)
            for held in item.rows:
                held.batch.started[held.number] = 1
            self._running.append(item)
            if item.quarantined:
                self._alone = item
            if len(items) < self.low:
                self._changed.notify_all()
            return item

    def _next(self, *, is_async: bool) -> type[Model] | None:
        """Return the model whose first item may start, if any."""
        if self._alone is not None:
            return None
        for model, items in self._waiting.items():
            first = items[0]
            if first.handler.is_async != is_async or (is_async and self._is_full(first.handler)):
                continue
            # A crash of the process would end the claims of rows that run, or wait to be written.
            if not (first.quarantined and (self._running or self._unwritten)):
                return model
        return None

    def _is_full(self, handler: Handler) -> bool:
        return sum(item.handler is handler for item in self._running) >= handler.concurrency

    def holds_quarantined(self) -> bool:
        """Say whether the process holds a row that runs alone: nothing else may be claimed before it has ended."""
        with self._lock:
            # Nothing is claimed behind one, so it is the last of its model, or the first.
            waiting = self._waiting.values()
            is_waiting = any(one[0].quarantined or one[-1].quarantined for one in waiting)
            return is_waiting or self._alone is not None

    # Out at the other

    def judge(
        self, item: WorkItem, outcomes: Iterable[tuple[HeldRow, Outcome]], ran: float = 0.0
    ) -> None:
        """Note what is to become of rows of an item that runs; nothing of one that was abandoned before."""
        with self._lock:
            if item in self._running:
                now = clock()
                for held, outcome in outcomes:
                    held.outcome, held.ran, held.came = outcome, ran, now

    def settle(self, item: WorkItem) -> bool:
        """Take the results of an item that ran; False, and nothing taken, if it was abandoned before."""
        with self._lock:
            if item is self._alone:
                self._alone = None
            if item not in self._running:
                return False
            model, before = item.handler.model, len(self._unwritten)
            self._running.remove(item)
            self._unwritten |= dict.fromkeys(one for one in item.rows if one.outcome is not None)
            if self._waiting:
                # A coroutine that has ended makes room for another.
                self._arrived.notify_all()
            if not before or len(self._unwritten) >= self.enough or model not in self._waiting:
                self._changed.notify_all()
            return True

    def abandon(self, item: WorkItem, outcome: Outcome, ran: float = 0.0) -> None:
        """Wait no more for an item whose thread goes on: *outcome* is that of the call under way.

        Rows that have an outcome keep it, and those that were not called go back.
        """
        with self._lock:
            if item not in self._running:
                return
            self._running.remove(item)
            self._unwritten |= dict.fromkeys(item.rows)
            for held in item.open_rows():
                held.ran, held.thread = ran, item.thread
                self.give_back([held], outcome if held in item.called else NOT_STARTED)
            self.wake()

    def put_back(
        self, which: Callable[[HeldRow], bool] = lambda held: True, *, recall: str = ""
    ) -> int:
        """Have those waiting rows released that *which* accepts, and return how many there were.

        Where *recall* says why, those that run are asked to stop at their next resting place.
        """
        with self._lock:
            if recall:
                for item in self._running:
                    if which(item.rows[0]):
                        item.ask_back(recall)
            taken: list[HeldRow] = []
            for items in self._waiting.values():
                for item in items:
                    rows, item.rows = item.rows, []
                    for held in rows:
                        # Asked once: another thread may find the row lost in between.
                        (taken if which(held) else item.rows).append(held)
            kept = {
                model: deque(u for u in items if u.rows) for model, items in self._waiting.items()
            }
            self._waiting = {model: items for model, items in kept.items() if items}
            self.give_back(taken)
            return len(taken)

    def give_back(self, rows: Iterable[HeldRow], outcome: Outcome = NOT_STARTED) -> None:
        """Have rows released that neither wait for a handler nor run; their leases are not renewed meanwhile."""
        with self._lock:
            for held in rows:
                held.abandoned = held.locked = True
                held.outcome, held.came = outcome, clock()
                self._unwritten[held] = None
            self.wake()

    def close(self) -> int:
        """Let nothing more in, put back every waiting row, and ask for those that run."""
        with self._lock:
            self.closed = True
            return self.put_back(recall="the worker stops")

    def give_up_results(self) -> None:
        """Have rows released whose results could not be written until now."""
        with self._lock:
            for result in self._unwritten:
                result.came = clock()
                if not isinstance(result.outcome, (PutBack, Ended)):
                    result.outcome = PutBack("its result could not be written")
            self.wake()

    def unwritten(self) -> list[HeldRow]:
        """Return what may be written now, the oldest first; what has met a lock comes last."""
        with self._lock:
            fresh, locked = self._fresh_and_locked()
            now = clock()
            again = [result for result in locked if result.came <= now]
            return [*fresh, *sorted(again, key=lambda result: result.came)]

    def _fresh_and_locked(self) -> tuple[list[HeldRow], list[HeldRow]]:
        results = list(self._unwritten)
        locked = [result for result in results if result.locked]
        return [result for result in results if not result.locked] if locked else results, locked

    def written(self, results: Iterable[HeldRow]) -> None:
        """Let go of these rows."""
        with self._lock:
            for result in results:
                self._unwritten.pop(result, None)
            self._changed.notify_all()
            if self._waiting:
                # A quarantined row waits for that.
                self._arrived.notify_all()

    def postpone(self, results: Iterable[HeldRow], seconds: float) -> None:
        """Postpone these results by so many seconds; others are written before them."""
        with self._lock:
            for result in results:
                result.came, result.locked = clock() + seconds, True

    def write_at(self, linger: float, *, more_to_come: bool = False) -> float:
        """Return when, by ``clock()``, there is something to be written; infinity where there is nothing.

        At once where enough has come, or nothing runs nor is *more_to_come*; else when the oldest result has waited for
        *linger* seconds, or a row that somebody had locked is to be tried again.
        """
        if not self._unwritten:
            return math.inf
        with self._lock:
            fresh, locked = self._fresh_and_locked()
            is_last = not more_to_come and self.runs_dry()
            if fresh and (is_last or len(fresh) >= self.enough):
                return 0.0
            moments = [result.came for result in locked]
            moments += [fresh[0].came + linger] if fresh else []
            return min(moments, default=math.inf)

    # Looking

    def held(self) -> list[HeldRow]:
        """Return all rows: those that run, those that wait, and those whose result is not yet written."""
        with self._lock:
            running = [held for item in self._running for held in item.rows]
            waiting = [held for items in self._waiting.values() for u in items for held in u.rows]
            return [*running, *waiting, *self._unwritten]

    def running(self) -> list[WorkItem]:
        """Return the items that executors have taken, without the abandoned ones."""
        with self._lock:
            return list(self._running)

    def running_of(self, model: type[Model]) -> int:
        """Return how many items of *model* executors have taken."""
        return sum(item.handler.model is model for item in self.running())

    def waiting(self, model: type[Model]) -> int:
        """Return how many items of *model* no executor has taken yet."""
        return len(self._waiting.get(model, ()))

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
            self._arrived.notify_all()
