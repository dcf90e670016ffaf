"""Executors: take an item, run its handler, hand on what came of it. One row's failure stops no other row."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from asgiref.sync import sync_to_async

from django_taskclaim import connecting
from django_taskclaim.claim import Ended
from django_taskclaim.exceptions import Permanent
from django_taskclaim.policy import policy_for
from django_taskclaim.throttling.throttles import CircuitBreaker, working_on
from django_taskclaim.worker.batch import Done, Failed, WorkItem
from django_taskclaim.worker.records import broken, logger, named
from django_taskclaim.worker.running import Running
from django_taskclaim.worker.service import Service
from django_taskclaim.worker.threads import WorkerThread

#: Seconds between two looks whether the worker is leaving.
TAKE_FOR = 5.0


class Executor(WorkerThread):
    """Runs handlers until it is to leave."""

    def __init__(self, service: Service, name: str) -> None:
        super().__init__(service.options, service.inflight, name)
        self.service = service
        self.running = Running(self.options.using, self.inflight, service.keeper)

    @contextmanager
    def _working_on(self, item: WorkItem) -> Iterator[None]:
        """Let go of the item after the block. An error leaves its rows to their leases, and the thread goes on."""
        try:
            with working_on(item.handler.model):
                yield
        except BaseException as error:
            broken(f"{named(item.rows[0].row)} could not be run", error)
        if not self.inflight.settle(item):
            text = "%s came back after its time was over; its result is not written"
            logger.warning(text, named(item.rows[0].row))
        elif breaker := self.service.throttles.breakers.get(item.handler.model):
            self._inform(breaker, item)

    def _inform(self, breaker: CircuitBreaker, item: WorkItem) -> None:
        """Count what says something of the surroundings: a bad row, and one put back, say nothing."""
        good, bad = 0, 0
        for outcome in item.outcomes:
            match outcome:
                case Done() | Ended(completed=True):
                    good += 1
                case Failed(error):
                    bad += policy_for(item.handler.model).rule(error) is not Permanent
                case Ended(failure=(_, _), permanent=False):
                    bad += 1
        breaker.heard(good=good, bad=bad)
        if breaker.rests():
            # At once, or the rest of a quick handler's batch would fail, too.
            self.service.keeper.withdraw(item.handler.model)

    def _bound_transactions(self, lease: timedelta = timedelta()) -> None:
        """Have the server end transactions of this thread that were idle for twice the longest lease.

        That is what a frozen process may block others for; a handler's own transaction has that long. Leases may have
        changed, and rows that were claimed before keep their *lease*.
        """
        longest = max(lease, self.service.keeper.longest_lease)
        connecting.guard_connections(2 * longest, ours_alone=False)

    def _tidy_up(self, *, idle: bool = False) -> None:
        self.attempt("tidying up", partial(connecting.tidy_up, idle=idle))


class HandlerThread(Executor):
    """One thread for plain functions, with a database connection of its own if they ask for one."""

    def work(self) -> None:
        self._bound_transactions()
        while not self.leaving.is_set():
            item = self.inflight.take(TAKE_FOR, self.leaving, is_async=False)
            if item is None:
                self._tidy_up(idle=True)
            else:
                self._run(item)

    def _run(self, item: WorkItem) -> None:
        with self._working_on(item):
            self._bound_transactions(item.rows[0].claim.lease)
            is_unheard = item.handler.model not in self.service.throttles.breakers
            self.running.run(item, with_next=is_unheard)
        if connecting.has_opened(threading.get_ident()):
            self._tidy_up()


class LoopThread(Executor):
    """One event loop for coroutine functions. Their use of Django's ORM shares one more thread and connection."""

    #: The longest lease when transactions were last bounded by it.
    _longest = timedelta()

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        await self._follow_leases()
        self.running.orm_thread = await sync_to_async(threading.get_ident)()
        working: set[asyncio.Task[None]] = set()
        while not self.leaving.is_set():
            # What waits already needs no other thread to wait for it.
            item = self.inflight.take(0, self.leaving, is_async=True) or await asyncio.to_thread(
                self.inflight.take, TAKE_FOR, self.leaving, is_async=True
            )
            if item is None:
                await sync_to_async(self._tidy_up)(idle=True)
                continue
            working.add(task := asyncio.create_task(self._run(item)))
            task.add_done_callback(working.discard)
        await sync_to_async(connecting.close_all)()

    async def _follow_leases(self) -> None:
        if (longest := self.service.keeper.longest_lease) != self._longest:
            self._longest = longest
            await sync_to_async(self._bound_transactions)()

    async def _run(self, item: WorkItem) -> None:
        with self._working_on(item):
            await self._follow_leases()
            await self.running.arun(item)
        if connecting.has_opened(self.running.orm_thread):
            await sync_to_async(self._tidy_up)()
