"""How an item is run: one call of a handler, and what its answer means. Where a batch raises, its halves are run again.

That is decided here once, for functions and for coroutines.
"""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections, models, transaction

from django_taskclaim import connecting, contention
from django_taskclaim.awaitables import refuse_not_run
from django_taskclaim.claim import clock, standing_claim
from django_taskclaim.columns import claim_columns
from django_taskclaim.companions import hand_out, lacks_source, load_sources
from django_taskclaim.db import dialect_for
from django_taskclaim.error_text import describe
from django_taskclaim.exceptions import RetryLater, SourceGone, TaskClaimError
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets.completing import complete, files_among, store_files
from django_taskclaim.querysets.scope import ClaimTarget, unbroken_transaction
from django_taskclaim.querysets.writes import fail_unreadable, note_start
from django_taskclaim.ranges.walking import end_walks, refuse_unfinished
from django_taskclaim.worker.answers import RowErrors, row_errors_in, values_before, warn_of_unsaved
from django_taskclaim.worker.batch import DONE, Failed, HeldRow, Outcome, PutBack, WorkItem
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.keeper import LeaseKeeper, outlived
from django_taskclaim.worker.records import broken, logger, named

SWALLOWED = (
    "The handler swallowed a database error, or ended its transaction, so nothing it wrote was kept"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call of a handler came to."""

    #: Of a batch handler, unless all rows are done.
    row_errors: RowErrors | None = None
    error: BaseException | None = None
    #: The call has completed the rows, too: what it did is committed, or its error is one of the COMMIT or of a hook.
    completed: bool = False


#: An outage charges no row.
AWAY = PutBack("the database was away", timedelta(seconds=1))

#: For so many seconds after a call began its connection is taken to be there still, and not asked.
USED_LATELY = 0.25


def prepare(handler: Handler, rows: Sequence[object]) -> list[Any]:
    """Load what the function needs beside the claimed *rows*, and return those that it can be called with.

    That is the sources of companions, all in one query; a row whose source cannot be read fails with the error.
    """
    unreadable = load_sources(rows) if handler.needs_source else []
    fail_unreadable(unreadable)
    failed = {id(row) for row, _ in unreadable}
    return [row for row in rows if id(row) not in failed]


class Running:
    """Runs items and says what became of their rows; all but an atomic handler's completion is written later."""

    #: Aliases on which transactions of a caller's are open, and stay so.
    within: Sequence[str] = ()

    def __init__(self, using: str, inflight: InFlight, keeper: LeaseKeeper) -> None:
        self.using = using
        self.inflight = inflight
        self.keeper = keeper
        #: By ``clock()``, when this thread's connections were last looked at.
        self._looked = clock()
        #: Where Django's own async methods have their connections, for coroutines.
        self.orm_thread = 0

    def run(self, item: WorkItem, *, with_next: bool = False) -> None:
        """Run *item* in this thread, and note the results there.

        *with_next* lets it take the next rows of the claim as well, as long as there is nothing to say of any of them.
        """
        if called := self._begin(item):
            item.begin(called)
            runs_on = with_next and self._may_run_on(item)
            answer = self._run_on(item) if runs_on else self._call(item)
            self._judge(item, self._look_back(item, answer))

    def _may_run_on(self, item: WorkItem) -> bool:
        """Say whether the rows need nothing but calls of the function, which uses no database."""
        handler = item.handler
        needs_more = handler.batch or handler.atomic or handler.needs_source or handler.has_ranges
        files = files_among(handler.model, handler.update_fields)
        has_opened = connecting.has_opened(threading.get_ident())
        return not (needs_more or files or item.before or has_opened)

    def _run_on(self, item: WorkItem) -> Answer:
        """Call the function with row after row until more is to be said of one than that it is done.

        Returns the answer about that row, which is the item's now.
        """
        function, thread, held = item.handler.function, threading.get_ident(), item.rows[0]
        has_opened = connecting.has_opened
        try:
            connecting.begin_handler(self.using, atomic=False)
            # This loop runs for each row of each claim.
            while True:
                if (answer := function(held.row)) is not None:
                    refuse_not_run(answer, function)
                is_untouched = standing_claim(held.row) is held.claim and not has_opened(thread)
                if not is_untouched or (following := self.inflight.take_next(item)) is None:
                    return Answer()
                held = following
        except BaseException as error:
            return Answer(error=error)

    async def arun(self, item: WorkItem) -> None:
        """Run *item* on the event loop of this thread, and note the results there."""
        if item.rows[0].claim.quarantined:
            called = await sync_to_async(self._begin)(item)
        else:
            called = self._begin(item)
        if not called:
            return
        item.begin(called)
        answer = await self._acall(item)
        if answer.error is None and files_among(item.handler.model, item.handler.update_fields):
            answer = await sync_to_async(_with_files)(item, answer)
        if item.before or connecting.has_opened(self.orm_thread):
            answer = await sync_to_async(self._look_back)(item, answer)
        if answer.error is None and answer.row_errors is None:
            self._judge(item, answer)
        else:
            # It may have to wait for news of the database, and must not keep the event loop from turning.
            judge_apart = sync_to_async(connecting.call_and_close, thread_sensitive=False)
            await judge_apart(self._judge, item, answer)

    def _begin(self, item: WorkItem) -> list[HeldRow]:
        """Return the rows that the handler can be called with; what becomes of the others is noted."""
        now, rows = clock(), item.rows
        others = {held: came for held in rows if (came := self._before_call(held, now))}
        if others:
            self.inflight.judge(item, others)
        called = [held for held in rows if held not in others]
        item.before = values_before(item.handler, [held.row for held in called])
        return called

    def _before_call(self, held: HeldRow, now: float) -> Outcome | None:
        """Return what becomes of a row that cannot be called with; None for others, noted as started if quarantined."""
        if (outcome := held.unstarted_outcome(now)) is not None:
            return outcome
        if held.handler.needs_source and lacks_source(held.row):
            return held.judge(SourceGone([held.row]))
        if held.claim.quarantined:
            try:
                self._look_at_connections()
                # If its worker ends from here on, the row has killed it. Before, the row has not started.
                note_start(held.row)
            except Exception as error:
                return PutBack(f"it could not be started: {describe(error)}")
        return None

    # What the answers mean

    def _judge(self, item: WorkItem, answer: Answer) -> None:
        """Note what became of the rows of a call, or have it made again with halves of them."""
        now, called, error = clock(), item.rows, answer.error
        errors = list(zip(called, answer.row_errors or [error] * len(called), strict=True))
        completed = answer.completed
        outcomes = {held: self._outcome(item, held, one, completed) for held, one in errors}
        # One error may be that of many rows.
        late = {
            id(one): (held, one) for held, one in errors if one is not None and held.claim.ended
        }
        for held, one in late.values():
            broken(f"{named(held.row)}: its handler or a hook raised after its claim ended", one)
        # A RetryLater that the handler itself raises is about all rows.
        may_be_of_one = error is not None and not isinstance(error, RetryLater)
        has_failed = may_be_of_one and any(
            isinstance(one, Failed)
            or (isinstance(one, PutBack) and one.raised is not None and not one.everyone)
            for one in outcomes.values()
        )
        is_undone = has_failed or (item.handler.atomic and error is None)
        if is_undone and not completed and len(called) > 1:
            # An atomic call is done as a whole or not at all, and an error may be that of one row.
            why = "an outcome that is not done" if error is None else type(error).__name__
            logger.warning(
                "%d rows of %s came to %s together; they are run in halves",
                *(len(called), item.handler.model._meta.label, why),
                extra={"event": "halved", "rows": len(called)},
            )
            self.inflight.halve(item)
            return
        # Each row's share, so that they add up to what the call took.
        ran = (now - item.started) / len(called)
        self.inflight.judge(item, outcomes, ran)

    def _outcome(
        self, item: WorkItem, held: HeldRow, error: BaseException | str | None, completed: bool
    ) -> Outcome:
        """Return what becomes of a row that the handler was called with.

        Where the call has *completed* the row before an error, the outcome counts only if its COMMIT has not arrived.
        """
        if error is None and standing_claim(held.row) is held.claim and not held.remade:
            # Nearly all.
            return DONE
        if (ended := held.claim.how_ended()) is not None:
            # By a verb of the handler's, as it deleted the row, or in the transaction of an atomic handler. An error is
            # one of a hook then.
            return ended
        if completed and isinstance(error, BaseException):
            held.commit_error, held.claim.unanswered = error, True
        held.carrier()
        if error is None and (error := held.without_results()) is None:
            return DONE
        if held.fenced:
            return PutBack("its claim could not be renewed in time")
        if isinstance(error, BaseException) and self._was_an_outage(item, error):
            return AWAY
        outcome = held.judge(error)
        can_be_alone = claim_columns(held.handler.model).not_before is not None
        if completed and len(item.rows) > 1 and isinstance(outcome, Failed) and can_be_alone:
            return PutBack("the COMMIT of its batch failed", quarantined=True)
        return outcome

    def _was_an_outage(self, item: WorkItem, error: BaseException) -> bool:
        """Say whether the handler failed because the database was away, or takes no writes: not the fault of the row.

        If the service's connection has lived on since the call began, the server has cut off this one session, and
        a row that brings that about each time must end in ``failed``.
        """
        if not contention.may_be_an_outage(error):
            return False
        is_server = contention.meaning_of(error) is contention.Meaning.SERVER
        # The handler may write to another database, or in a transaction that only reads.
        if is_server and not ClaimTarget.of(item.handler.model, self.using).is_writable():
            return True
        if not is_server and dialect_for(connections[self.using]).has_one_writer:
            return False
        if item.was_away is None:
            # It waits for news of the database, so it is asked once for all rows.
            item.was_away = self.keeper.was_away_since(item.started)
        return item.was_away

    # The calls

    def _look_at_connections(self) -> None:
        """Replace what the server has ended of this thread's connections since the last call; no row is to blame."""
        looked, self._looked = self._looked, clock()
        if self.keeper.troubled_since(looked):
            connecting.ensure_all_usable()
        elif self._looked - looked >= USED_LATELY:
            connecting.ensure_usable(self.using)

    def _call(self, item: WorkItem) -> Answer:
        try:
            connecting.begin_handler(self.using, atomic=item.handler.atomic)
            self._look_at_connections()
            if item.handler.atomic:
                return self._call_atomically(item)
            return _with_files(item, Answer(call(item.handler, [held.row for held in item.rows])))
        except BaseException as error:
            # SystemExit and KeyboardInterrupt included: one row's end is not the worker's.
            return Answer(error=error)

    def _call_atomically(self, item: WorkItem) -> Answer:
        """Call the function and complete the rows in one transaction on their database, or leave all as it was."""
        using, called, completed = self.using, item.rows, False
        try:
            with dialect_for(connections[using]).own_transaction(durable=True):
                # From here on the handler's time runs: where there is one writer, that may have been a long wait.
                item.begin(called)
                with unbroken_transaction(using, SWALLOWED):
                    errors = call(item.handler, [held.row for held in called])
                if errors and any(one is not None for one in errors):
                    # All or nothing: what was written for the other rows goes, too.
                    transaction.set_rollback(True, using)
                    return Answer(errors)
                _complete(item.handler, called)
                completed = True
        except BaseException as error:
            for held in called:
                held.ending = completed
            return Answer(error=error, completed=completed)
        return Answer(completed=True)

    async def _acall(self, item: WorkItem) -> Answer:
        handler = item.handler
        timeout = None if handler.timeout is None else handler.timeout.total_seconds()
        limit = asyncio.timeout(timeout)
        try:
            looked = self._looked
            is_due = clock() - looked >= USED_LATELY or self.keeper.troubled_since(looked)
            if is_due and connecting.has_opened(self.orm_thread):
                await sync_to_async(self._look_at_connections)()
                # From here on the handler's time runs.
                item.begin(item.rows)
            async with limit:
                rows = [held.row for held in item.rows]
                return Answer(_row_errors(handler, rows, await _answer(handler, rows)))
        except BaseException as error:
            late = limit.expired() and isinstance(error, TimeoutError)
            return Answer(error=TaskClaimError(outlived(handler)) if late else error)

    def _look_back(self, item: WorkItem, answer: Answer) -> Answer:
        """Look, in the thread that has the connections of a call, at what it left there; return the answer that counts.

        A handler that leaves a transaction open has failed, for nothing it wrote there would be committed. What an
        atomic handler has committed on the rows' own database stays committed all the same.
        """
        unclean = connecting.left_open(but_for=self.within)
        if answer.error is not None:
            return answer
        if unclean:
            error = TaskClaimError(f"The handler left a transaction open on {', '.join(unclean)}.")
            if not answer.completed or self.using in unclean:
                return Answer(error=error)
            broken("An atomic handler has committed", error)
        if item.before and (answer.completed or not item.handler.atomic):
            warn_of_unsaved(item.handler, item.before)
        return answer


def _with_files(item: WorkItem, answer: Answer) -> Answer:
    """Store the files among the results of a call: in the writer they would hold up every other result."""
    files = files_among(item.handler.model, item.handler.update_fields)
    if not files:
        return answer
    given = answer.row_errors or [None] * len(item.rows)
    errors = [
        one or store_files(held.row, files) for one, held in zip(given, item.rows, strict=True)
    ]
    return Answer(errors if any(errors) else None)


def _complete(handler: Handler, called: list[HeldRow]) -> None:
    """Complete the rows whose claims an atomic handler has not ended itself; ClaimLost rolls everything back."""
    rows = []
    for held in called:
        if not held.claim.ended:
            if (error := held.without_results()) is not None:
                raise error
            held.ending = True
            rows.append(held.row)
    complete(handler.model, rows, handler.update_fields, savepoint=False)


def call(handler: Handler, rows: Sequence[models.Model]) -> RowErrors | None:
    """Call the function with its row, or as a batch handler with all of *rows*; return what ``row_errors_in`` does.

    TypeError where the answer is work which nobody has run, such as the coroutine of a function that is not async.
    """
    try:
        answer = _answer(handler, rows)
    finally:
        if handler.has_ranges:
            end_walks()
    return _row_errors(handler, rows, answer)


def _answer(handler: Handler, rows: Sequence[models.Model]) -> Any:
    given = [hand_out(row) for row in rows] if handler.gets_sources else list(rows)
    return handler.function(given if handler.batch else given[0])


def _row_errors(handler: Handler, rows: Sequence[models.Model], answer: object) -> RowErrors | None:
    if answer is not None:
        refuse_not_run(answer, handler.function, may_yield=handler.batch)
    if handler.has_ranges:
        refuse_unfinished(rows[0])
    # What is yielded is part of the call, and of its transaction.
    return row_errors_in(rows, answer) if handler.batch and answer is not None else None
