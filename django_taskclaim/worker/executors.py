"""Executors: take an item, run its handler, hand on what came of it. One row's failure stops no other row."""

import asyncio
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context, ContextVar, copy_context
from datetime import timedelta
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from django_taskclaim.claim import Ended, clock
from django_taskclaim.connecting import (
    close_all,
    drop_broken,
    guard_connections,
    has_opened,
    tidy_up,
)
from django_taskclaim.exceptions import Permanent
from django_taskclaim.worker.batch import Done, Failed, WorkItem
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.records import Limited, broken, logger, named
from django_taskclaim.worker.running import Running
from django_taskclaim.worker.service import Service

#: Seconds between two looks whether the worker is leaving.
LOOK = 5.0


class Executor(threading.Thread):
    """Runs handlers until it is to leave."""

    def __init__(
        self, options: WorkerOptions, inflight: InFlight, service: Service, name: str
    ) -> None:
        super().__init__(name=f"taskclaim-{name}", daemon=True)
        self.options = options
        self.inflight = inflight
        self.service = service
        self.throttles = service.throttles
        self.running = Running(options.using, inflight, service.keeper, None)
        #: Set once this thread is at work.
        self.started = threading.Event()
        self.leaving = threading.Event()
        self._limited = Limited()

    def leave(self) -> None:
        """Take nothing more."""
        self.leaving.set()
        self.inflight.wake()

    def _settle(self, item: WorkItem) -> None:
        if not self.inflight.settle(item):
            logger.warning(
                "%s came back after its time was over; its result is not written",
                named(item.called[0].row),
            )
        elif self.throttles.has_breaker(item.handler.model):
            self._inform_breaker(item)

    def _inform_breaker(self, item: WorkItem) -> None:
        """Count what says something of the surroundings: a bad row, and one put back, say nothing."""
        outcomes = [task.outcome for task in item.rows]
        good = sum(
            isinstance(one, Done) or (isinstance(one, Ended) and one.completed) for one in outcomes
        )
        bad = sum(
            not isinstance(one.error, Permanent)
            if isinstance(one, Failed)
            else isinstance(one, Ended) and one.failure is not None and not one.permanent
            for one in outcomes
        )
        model = item.handler.model
        self.throttles.heard(model, good=good, bad=bad)
        if bad and self.throttles.gives_back(model):
            # At once: by the service's next round the rest of a quick handler's batch would have failed, too.
            self.service.keeper.withdraw(model)

    def _idle_beside(self, lease: timedelta = timedelta()) -> timedelta:
        """Return how long the server lets a transaction be idle: twice the *lease* of the rows worked on in it.

        That is what a frozen process may block others for; a handler's own transaction has that long.
        """
        return 2 * max(lease, self.service.keeper.longest_lease)

    def _prepare_for(self, idle: timedelta) -> None:
        """Have the server end transactions of this thread that were idle for so long."""
        if idle != self.running.idle:
            self.running.idle = idle
            guard_connections(idle, ours_alone=False)

    def _tidy_up(self, *, idle: bool = False) -> None:
        try:
            tidy_up(idle=idle)
        except Exception as error:
            self._limited.warn(f"{self.options.name}: tidying up", error)
            drop_broken(self.options.using)


class HandlerThread(Executor):
    """One thread for plain functions, with a database connection of its own if they ask for one."""

    def run(self) -> None:
        self._prepare_for(self._idle_beside())
        self.started.set()
        try:
            while (item := self._take()) is not None:
                self._work(item)
        finally:
            close_all()

    def _take(self) -> WorkItem | None:
        """Wait for an item; None once the thread is to leave."""
        while (item := self.inflight.take(LOOK, self.leaving, is_async=False)) is None:
            if self.leaving.is_set():
                break
            self._tidy_up(idle=True)
        return item

    def _work(self, item: WorkItem) -> None:
        try:
            # Leases may have changed, and rows that were claimed before keep theirs. Those of an item are of one claim.
            self._prepare_for(self._idle_beside(item.rows[0].claim.lease))
            with self.throttles.working_on(item.handler.model):
                self.running.run(item)
        except BaseException as error:
            # The thread goes on; without a result the rows are left to their leases.
            broken(f"{named(item.rows[0].row)} could not be run", error)
            drop_broken(self.options.using)
        finally:
            self._settle(item)
            if has_opened(threading.get_ident()):
                self._tidy_up()


class LoopThread(Executor):
    """One event loop for coroutine functions. Their use of Django's ORM shares one more thread and connection."""

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        timer = StepTimer(
            lambda: [item for item in self.inflight.running() if item.handler.is_async]
        )
        asyncio.get_running_loop().set_task_factory(timer.task_factory)
        await self._follow_leases()
        self.running.orm_thread = await sync_to_async(threading.get_ident)()
        self.started.set()
        working: set[asyncio.Task[None]] = set()
        while not self.leaving.is_set():
            # What waits already needs no other thread to wait for it.
            item = self.inflight.take(0, self.leaving, is_async=True) or await asyncio.to_thread(
                self.inflight.take, LOOK, self.leaving, is_async=True
            )
            if item is None:
                await sync_to_async(self._tidy_up)(idle=True)
                continue
            item.thread = threading.get_ident()
            working.add(task := timer.start(item, self._work(item)))
            task.add_done_callback(working.discard)
        await sync_to_async(close_all)()

    async def _follow_leases(self) -> None:
        if (idle := self._idle_beside()) != self.running.idle:
            await sync_to_async(self._prepare_for)(idle)

    async def _work(self, item: WorkItem) -> None:
        try:
            await self._follow_leases()
            with self.throttles.working_on(item.handler.model):
                await self.running.arun(item)
        except BaseException as error:
            broken(f"{named(item.rows[0].row)} could not be run", error)
        finally:
            self._settle(item)
            if has_opened(self.running.orm_thread):
                await sync_to_async(self._tidy_up)()


#: Seconds from which on a step of one coroutine is taken off the time of the others.
BLOCKS = 0.1

_item: ContextVar[WorkItem] = ContextVar("taskclaim_item")


class StepTimer:
    """Times the steps of all tasks that the items of one loop start; *items* returns those it runs now."""

    def __init__(self, items: Callable[[], Iterable[WorkItem]]) -> None:
        self._items = items
        #: Whose step is under way, and since when by ``clock()``; read by other threads.
        self._step: tuple[WorkItem, float] | None = None

    def start(self, item: WorkItem, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run *work* as a task of *item*; the tasks that it starts are the item's, too."""
        item.blocked_now = partial(self._blocked_now, item)
        context = copy_context()
        context.run(_item.set, item)
        return asyncio.get_running_loop().create_task(work, context=context)

    def task_factory(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> "asyncio.Task[Any]":
        """Make a task of the loop, timed if an item has started it."""
        context: Context | None = options.get("context")
        item = _item.get(None) if context is None else context.get(_item)
        timed = coroutine if item is None else self._timed(item, coroutine)
        return asyncio.Task(timed, loop=loop, **options)

    async def _timed(self, item: WorkItem, coroutine: object) -> object:
        return await self._steps(item, coroutine)

    @types.coroutine
    def _steps(self, item: WorkItem, coroutine: Any) -> Generator[Any, Any, Any]:
        step = partial(coroutine.send, None)
        while True:
            self._step = item, (began := clock())
            try:
                awaited = step()
            except StopIteration as end:
                return end.value
            finally:
                if clock() - began >= BLOCKS:
                    self._excuse_others()
                # Last: another thread that looks meanwhile counts a block twice rather than not at all.
                self._step = None
            try:
                step = partial(coroutine.send, (yield awaited))
            except BaseException as error:
                # Cancelled, or closed: that is the coroutine's to deal with.
                step = partial(coroutine.throw, error)

    def _excuse_others(self) -> None:
        for item in self._items():
            if (seconds := self._blocked_now(item)) > 0:
                item.excuse(seconds)

    def _blocked_now(self, item: WorkItem) -> float:
        """Return for how long the step of another item has kept this one waiting."""
        step = self._step
        if step is None or step[0] is item or item.started is None:
            return 0.0
        seconds = clock() - max(step[1], item.started)
        return seconds if seconds >= BLOCKS else 0.0
