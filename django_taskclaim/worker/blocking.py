"""Whose turn it is on an event loop: a coroutine that blocks it overruns, and its neighbours do not."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any

from django_taskclaim.claim import clock
from django_taskclaim.worker.inflight import Unit

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
