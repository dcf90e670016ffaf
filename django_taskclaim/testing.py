"""For tests of projects: ``run_due`` does what a worker would do, here and now, on the test's own connection."""

import asyncio
import math
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.db import Error, connections, models, router, transaction

from django_taskclaim.claim import clock, new_holder
from django_taskclaim.querysets.claiming import ClaimCall, claim
from django_taskclaim.worker.batch import HeldRow, WorkItem, hold
from django_taskclaim.worker.counters import Counters
from django_taskclaim.worker.feeds import Feed
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.keeper import LeaseKeeper
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.running import Answer, Running, prepare
from django_taskclaim.worker.writer import Writer

__all__ = ["Ran", "arun_due", "run_due"]


@dataclass(slots=True)
class Ran:
    """What became of the rows that ``run_due`` ran; each is counted once."""

    completed: int = 0
    #: Ended in ``failed``.
    failed: int = 0
    #: Failed, and are to be tried again.
    retrying: int = 0
    #: Put back uncounted: by ``RetryLater``, a verb of the handler's own, or because their lease was nearly over.
    released: int = 0
    #: Belonged to somebody else by the time their result was written, so nothing was.
    lost: int = 0
    #: What handlers raised, or returned for a row that failed, in order.
    errors: list[BaseException | str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many rows were run."""
        return self.completed + self.failed + self.retrying + self.released + self.lost


def run_due(
    model: type[models.Model], *, limit: int | None = None, using: str | None = None
) -> Ran:
    """Run the handler of *model* on every row that is due now, *limit* at most, and return what became of them.

    Rows are claimed as a worker claims them, run one after the other in this thread on its own connections, and
    completed, failed or put back by the same fenced verbs under the same policy. So it works inside ``TestCase`` and
    with pytest-django's ``db``. A row that comes back is not run again by the same call, even if it is due at once.

    There is no renewal, and no ``timeout``. A paused model gives nothing to run. Raises
    LookupError for a model without a handler, and RuntimeError in a transaction that is not ``TestCase``'s.
    """
    alias = using or router.db_for_write(model)
    options = WorkerOptions(labels=(model._meta.label,), name="run_due", using=alias)
    (handler,) = options.handlers()
    if handler.is_async:
        handler = replace(handler, function=async_to_sync(handler.function))
    inflight, counters = InFlight(), Counters()
    running = _Inline(alias, inflight, cast(LeaseKeeper, _NO_KEEPER))
    writer = Writer(alias, inflight, counters, [Feed(handler, options)], _is_never_away)
    run: list[HeldRow] = []
    keys: list[Any] = []
    while size := min(handler.batch_size, math.inf if limit is None else limit - len(run)):
        # Each row once, even if it comes back due at once.
        rows = handler.rows(alias).exclude(pk__in=keys)
        holder = new_holder("run_due")
        call = ClaimCall(rows, int(size), holder, handler.lease, clock(), notes_start=True)
        claimed: list[Any] = claim(call)
        keys += [row.pk for row in claimed]
        if not (claimed := prepare(handler, claimed)):
            break
        run += (held := hold(handler, claimed))
        inflight.add(held)
        while (item := inflight.take(0, _NEVER, is_async=False)) is not None:
            running.run(item)
            inflight.settle(item)
        # As a worker does: the rows of one claim together.
        while (moment := inflight.write_at()) < math.inf:
            time.sleep(max(0.0, moment - clock()))
            writer.write()
    return _ran(run, counters)


def _ran(run: list[HeldRow], counters: Counters) -> Ran:
    """Return what became of the rows that were *run*, as the writer has counted it."""
    numbers = sum(counters.take().values(), Counter[str]())
    ran = Ran(completed=numbers["done"], failed=numbers["failed"], lost=numbers["lost"])
    ran.retrying = numbers["errors"] - ran.failed
    ran.released = len(run) - ran.total
    ran.errors = [held.error for held in run if held.error is not None]
    return ran


#: Does what ``run_due`` does, from a coroutine.
arun_due = sync_to_async(run_due)


_NEVER = threading.Event()


def _is_never_away(moment: float) -> bool:
    return False


#: What stands in for a worker's lease keeper: nothing is renewed, and the database is never away.
_NO_KEEPER = SimpleNamespace(was_away_since=_is_never_away, troubled_since=_is_never_away)


class _Inline(Running):
    """Runs items inside the transactions that the test has open, and keeps those usable by a savepoint in each.

    A worker's plain handler runs without a transaction, where a database error spoils nothing that comes after it.
    """

    def _call(self, item: WorkItem) -> Answer:
        answer = Answer()
        with ExitStack() as savepoints:
            within = [one for one in connections.all(initialized_only=True) if one.in_atomic_block]
            for connection in within:
                savepoint = transaction.atomic(connection.alias)
                # What must be outermost may be inside it, as in TestCase's own block.
                vars(savepoint)["_from_testcase"] = True
                # A database error that the handler has swallowed comes again as the savepoint ends.
                savepoints.enter_context(suppress(Error))
                savepoints.enter_context(savepoint)
            self.within = [one.alias for one in within]
            answer = super()._call(item)
            for connection in within:
                spoiled = connection.needs_rollback or isinstance(answer.error, Error)
                connection.set_rollback(spoiled)
        error = answer.error
        if error is None or isinstance(error, (Exception, SystemExit, asyncio.CancelledError)):
            return answer
        # It ends the test rather than the row: Ctrl-C, and what test runners have for failing and skipping.
        raise error
