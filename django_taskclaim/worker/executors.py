"""Executors: take a unit, run its handler, hand on what came of it. One row's failure stops no other row."""

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
from django_taskclaim.worker.batch import Done, Failed, Unit
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.records import Limited, broken, logger, named
from django_taskclaim.worker.running import Running
from django_taskclaim.worker.service import Service

#: Seconds between two looks whether the worker is leaving.
LOOK = 5.0


class Executor(threading.Thread):
    """Runs handlers until told to leave."""

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

    def _settle(self, unit: Unit) -> None:
        if not self.inflight.settle(unit):
            logger.warning(
                "%s came back after its time was over; its result is not written",
                named(unit.tasks[0].row),
            )
        elif self.throttles.has_breaker(unit.handler.model):
            self._inform_breaker(unit)

    def _inform_breaker(self, unit: Unit) -> None:
        """Count what says something of the surroundings: a bad row, and one put back, say nothing."""
        outcomes = [task.outcome for task in unit.tasks]
        good = sum(
            isinstance(one, Done) or (isinstance(one, Ended) and one.completed) for one in outcomes
        )
        bad = sum(
            not isinstance(one.error, Permanent)
            if isinstance(one, Failed)
            else isinstance(one, Ended) and one.failure is not None and not one.permanent
            for one in outcomes
        )
        model = unit.handler.model
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
            while (unit := self._take()) is not None:
                self._work(unit)
        finally:
            close_all()

    def _take(self) -> Unit | None:
        """Wait for a unit; None once the thread is to leave."""
        while (unit := self.inflight.take(LOOK, self.leaving, is_async=False)) is None:
            if self.leaving.is_set():
                break
            self._tidy_up(idle=True)
        return unit

    def _work(self, unit: Unit) -> None:
        try:
            # Leases may have changed, and rows that were claimed before keep theirs. Those of a unit are of one claim.
            self._prepare_for(self._idle_beside(unit.tasks[0].claim.lease))
            with self.throttles.working_on(unit.handler.model):
                self.running.run(unit)
        except BaseException as error:
            # The thread goes on; without a result the rows are left to their leases.
            broken(f"{named(unit.tasks[0].row)} could not be run", error)
            drop_broken(self.options.using)
        finally:
            self._settle(unit)
            if has_opened(threading.get_ident()):
                self._tidy_up()


class LoopThread(Executor):
    """One event loop for coroutine functions. Their use of Django's ORM shares one more thread and connection."""

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        timer = StepTimer(
            lambda: [unit for unit in self.inflight.running() if unit.handler.is_async]
        )
        asyncio.get_running_loop().set_task_factory(timer.task_factory)
        await self._follow_leases()
        self.running.orm_thread = await sync_to_async(threading.get_ident)()
        self.started.set()
        working: set[asyncio.Task[None]] = set()
        while not self.leaving.is_set():
            # What waits already needs no other thread to wait for it.
            unit = self.inflight.take(0, self.leaving, is_async=True) or await asyncio.to_thread(
                self.inflight.take, LOOK, self.leaving, is_async=True
            )
            if unit is None:
                await sync_to_async(self._tidy_up)(idle=True)
                continue
            unit.thread = threading.get_ident()
            working.add(task := timer.start(unit, self._work(unit)))
            task.add_done_callback(working.discard)
        await sync_to_async(close_all)()

    async def _follow_leases(self) -> None:
        if (idle := self._idle_beside()) != self.running.idle:
            await sync_to_async(self._prepare_for)(idle)

    async def _work(self, unit: Unit) -> None:
        try:
            await self._follow_leases()
            with self.throttles.working_on(unit.handler.model):
                await self.running.arun(unit)
        except BaseException as error:
            broken(f"{named(unit.tasks[0].row)} could not be run", error)
        finally:
            self._settle(unit)
            if has_opened(self.running.orm_thread):
                await sync_to_async(self._tidy_up)()


#: Seconds from which on a step of one coroutine is taken off the time of the others.
BLOCKS = 0.1

_unit: ContextVar[Unit] = ContextVar("taskclaim_unit")


class StepTimer:
    """Times the steps of all tasks that the units of one loop start; *units* returns those it runs now."""

    def __init__(self, units: Callable[[], Iterable[Unit]]) -> None:
        self._units = units
        #: Whose step is under way, and since when by ``clock()``; read by other threads.
        self._step: tuple[Unit, float] | None = None

    def start(self, unit: Unit, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run *work* as a task of *unit*; the tasks that it starts are the unit's, too."""
        unit.blocked_now = partial(self._blocked_now, unit)
        context = copy_context()
        context.run(_unit.set, unit)
        return asyncio.get_running_loop().create_task(work, context=context)

    def task_factory(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> "asyncio.Task[Any]":
        """Make a task of the loop, timed if a unit has started it."""
        context: Context | None = options.get("context")
        unit = _unit.get(None) if context is None else context.get(_unit)
        timed = coroutine if unit is None else self._timed(unit, coroutine)
        return asyncio.Task(timed, loop=loop, **options)

    async def _timed(self, unit: Unit, coroutine: object) -> object:
        return await self._steps(unit, coroutine)

    @types.coroutine
    def _steps(self, unit: Unit, coroutine: Any) -> Generator[Any, Any, Any]:
        step = partial(coroutine.send, None)
        while True:
            self._step = unit, (began := clock())
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
        for unit in self._units():
            if (seconds := self._blocked_now(unit)) > 0:
                unit.excuse(seconds)

    def _blocked_now(self, unit: Unit) -> float:
        """Return for how long the step of another unit has kept this one waiting."""
        step = self._step
        if step is None or step[0] is unit or unit.started is None:
            return 0.0
        seconds = clock() - max(step[1], unit.started)
        return seconds if seconds >= BLOCKS else 0.0
