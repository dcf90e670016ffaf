"""How an item is run: one call of a handler, and what its answer means. Where a batch raises, its halves are run again.

That is decided here once, for functions and for coroutines.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any, TypeAlias

from asgiref.sync import sync_to_async
from django.db import connections, models, transaction

from django_taskclaim.awaitables import refuse_not_run
from django_taskclaim.claim import Ended, clock, standing_claim
from django_taskclaim.columns import claim_columns
from django_taskclaim.companions import hand_out, lacks_source, load_sources
from django_taskclaim.connecting import (
    begin_handler,
    drop_broken,
    ensure_all_usable,
    ensure_usable,
    has_opened,
    left_open,
)
from django_taskclaim.contention import TROUBLE, Meaning, is_contention, is_refusal, meaning_of
from django_taskclaim.db import dialect_for
from django_taskclaim.error_text import describe
from django_taskclaim.exceptions import ClaimLost, SourceGone, TaskClaimError
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets.completing import complete
from django_taskclaim.querysets.scope import ClaimTarget, unbroken_transaction
from django_taskclaim.querysets.writes import fail_unreadable, note_start
from django_taskclaim.ranges.walking import end_walks, refuse_unfinished
from django_taskclaim.worker.answers import Said, of_answer, unsaved_columns
from django_taskclaim.worker.batch import (
    DONE,
    NOT_STARTED,
    Ambiguous,
    HeldRow,
    Outcome,
    PutBack,
    WorkItem,
    judged,
)
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.keeper import LeaseKeeper, outlived
from django_taskclaim.worker.records import broken, logger, lost, named

SWALLOWED = (
    "The handler swallowed a database error, or ended its transaction, so nothing it wrote was kept"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call of a handler came to."""

    #: Of a batch handler, unless all rows are done.
    said: Said | None = None
    error: BaseException | None = None
    #: The call has completed the rows, too: what it did is committed, or its error is one of the COMMIT or of a hook.
    completed: bool = False


#: Says whether the database was away since a call began.
Asked: TypeAlias = Callable[[], bool]

#: What nearly all calls come to.
NOTHING_SAID = Answer()

#: An outage charges no row.
AWAY = PutBack("the database was away", timedelta(seconds=1))

#: For so many seconds after a COMMIT a connection is taken to be there still, and not asked.
USED_LATELY = 0.25


def prepare(handler: Handler, rows: Sequence[object]) -> list[Any]:
    """Load what the function needs beside the claimed *rows*, and return those that it can be called with.

    That is the sources of companions, all in one query; a row whose source cannot be read fails with the error.
    """
    unreadable = load_sources(rows) if handler.needs_source else []
    if unreadable:
        fail_unreadable(unreadable)
    failed = {id(row) for row, _ in unreadable}
    return [row for row in rows if id(row) not in failed]


class Running:
    """Runs items and says what became of their rows; all but an atomic handler's completion is written later."""

    def __init__(self, using: str, inflight: InFlight, keeper: LeaseKeeper) -> None:
        self.using = using
        self.inflight = inflight
        self.keeper = keeper
        self._looked = clock()
        #: By ``clock()``, when an atomic handler was last committed.
        self._used = 0.0
        #: Where Django's own async methods have their connections, for coroutines.
        self.orm_thread = 0

    def run(self, item: WorkItem, *, with_next: bool = False) -> None:
        """Run *item* in this thread, and note the results there.

        *with_next* lets it take the next rows of the claim as well, as long as there is nothing to say of any of them.
        """
        if item.rows[0].batch.quarantined:
            if not self._note_start(item):
                return
        elif with_next and self._may_run_on(item.handler) and (answer := self._run_on(item)):
            self._judge(item, self._look_back(item, answer))
            return
        if self._begin(item):
            self._judge(item, self._call(item))

    def _may_run_on(self, handler: Handler) -> bool:
        """Say whether a row of this handler needs nothing but a call of its function, which uses no database."""
        needs_more = handler.batch or handler.atomic or handler.needs_source or handler.has_ranges
        return not (
            needs_more or unsaved_columns(handler).left or has_opened(threading.get_ident())
        )

    def _run_on(self, item: WorkItem) -> Answer | None:
        """Call the function with row after row until more is to be said of one than that it is done.

        Returns the answer about that row, which is the item's now; None where it has not been called.
        """
        function, thread, held = item.handler.function, threading.get_ident(), item.rows[0]
        item.begin(item.rows)
        try:
            begin_handler(self.using, atomic=False)
            # This loop runs for each row of each claim.
            while held.may_start(item.started):
                if (answer := function(held.row)) is not None:
                    refuse_not_run(answer, function)
                is_untouched = standing_claim(held.row) is held.claim and not has_opened(thread)
                if not is_untouched or (following := self.inflight.take_next(item)) is None:
                    return NOTHING_SAID
                held = following
        except BaseException as error:
            return Answer(error=error)
        return None

    async def arun(self, item: WorkItem) -> None:
        """Run *item* on the event loop of this thread, and note the results there."""
        is_quarantined = item.rows[0].batch.quarantined
        if is_quarantined and not await sync_to_async(self._note_start)(item):
            return
        if not self._begin(item):
            return
        answer = await self._acall(item)
        if answer.error is None and not item.handler.batch:
            self._judge(item, answer)
        else:
            # It may have to wait for news of the database, and must not keep the event loop from turning.
            await sync_to_async(self._judge, thread_sensitive=False)(item, answer)

    def _note_start(self, item: WorkItem) -> bool:
        """Write down that a row which may kill its worker starts, right before it does; False, and judged, if not.

        If its worker ends from here on, the row has failed. Otherwise it was not started, and has killed nobody.
        """
        (held,) = item.rows
        if not held.may_start(clock()):
            # It will not be called, so it must not seem to have started.
            return True
        try:
            ensure_usable(self.using)
            note_start(held.row)
        except ClaimLost:
            lost(held, "before it could begin")
            self.inflight.judge(item, [(held, Ended())])
        except Exception as error:
            drop_broken(self.using)
            why = f"it could not be started: {describe(error)}"
            self.inflight.judge(item, [(held, PutBack(why))])
        else:
            return True
        return False

    def _judge(self, item: WorkItem, answer: Answer) -> None:
        """Note what became of the rows of a call, or have it made again with halves of them."""
        now, called = clock(), item.rows
        # It waits for news of the database, so it is asked once for all rows.
        was_away = cache(partial(self.keeper.was_away_since, item.started))
        outcomes = self._outcomes(called, answer, was_away)
        if outcomes is None:
            for held in called:
                held.carrier()
            self.inflight.halve(item)
            return
        # Each row's share, so that they add up to what the call took.
        ran = (now - item.started) / len(called)
        self.inflight.judge(item, zip(called, outcomes, strict=True), ran)

    def _begin(self, item: WorkItem) -> bool:
        """Begin the call with the rows that the handler can be called with, if any; the others are judged."""
        now, called = clock(), list[HeldRow]()
        others: list[tuple[HeldRow, Outcome]] = []
        for held in item.rows:
            if not held.may_start(now):
                # One half of a batch may have ended the claims of the other.
                others.append((held, held.claim.how_ended() or NOT_STARTED))
            elif item.handler.needs_source and lacks_source(held.row):
                others.append((held, judged(held.row, SourceGone([held.row]))))
            else:
                called.append(held)
        if others:
            self.inflight.judge(item, others)
        if called:
            item.before = unsaved_columns(item.handler).before([held.row for held in called])
            item.begin(called)
        return bool(called)

    # What the answers mean

    def _outcomes(
        self, called: list[HeldRow], answer: Answer, was_away: Asked
    ) -> list[Outcome] | None:
        """Return the outcome of each row; None where the batch must be run in halves to find the row that raises."""
        error = answer.error
        if answer.completed:
            return self._after_commit(called, error, was_away)
        said = answer.said or [error] * len(called)
        together = len(called) > 1 and (error is not None or called[0].handler.atomic)
        if together and not (error and self._says_nothing_of_the_rows(called, error, was_away)):
            why = type(error).__name__ if error else "an outcome that is not done"
            logger.warning(
                "%d rows of %s came to %s together; they are run in halves",
                len(called),
                called[0].handler.model._meta.label,
                why,
                extra={"event": "halved", "rows": len(called)},
            )
            return None
        return [self._outcome(held, one, was_away) for held, one in zip(called, said, strict=True)]

    def _after_commit(
        self, called: list[HeldRow], error: BaseException | None, was_away: Asked
    ) -> list[Outcome]:
        """Judge rows that the call has completed; an error came from the COMMIT, or from a hook that ran after it."""
        if error is None or all(held.claim.ended for held in called):
            if error is not None:
                broken(f"{named(called[0].row)}: a hook raised after its COMMIT", error)
            return [held.claim.how_ended() or Ended(completed=held.ending) for held in called]
        for held in called:
            held.claim.unanswered = True
        otherwise: PutBack | None = None
        if self._was_an_outage(called[0].handler, error, was_away):
            otherwise = AWAY
        elif len(called) > 1 and claim_columns(called[0].handler.model).not_before is not None:
            otherwise = PutBack("the COMMIT of its batch failed", quarantined=True)
        return [Ambiguous(error, otherwise or judged(held.carrier(), error)) for held in called]

    def _says_nothing_of_the_rows(
        self, called: list[HeldRow], error: BaseException, was_away: Asked
    ) -> bool:
        row = next((held.carrier() for held in called if not held.claim.ended), None)
        if row is not None and isinstance(judged(row, error), PutBack):
            return True
        return self._was_an_outage(called[0].handler, error, was_away)

    def _outcome(
        self, held: HeldRow, error: BaseException | str | None, was_away: Asked
    ) -> Outcome:
        if error is None and standing_claim(held.row) is held.claim and not held.remade:
            return DONE
        if (ended := held.claim.how_ended()) is not None:
            # The handler called a verb itself, or deleted the row.
            if error is not None:
                broken(f"{named(held.row)}: its handler raised after the claim had ended", error)
            return ended
        row = held.carrier()
        if error is None:
            unknown = held.without_results()
            return DONE if unknown is None else judged(row, unknown)
        if held.fenced:
            return PutBack("its claim could not be renewed in time")
        if isinstance(error, BaseException) and self._was_an_outage(held.handler, error, was_away):
            return AWAY
        return judged(row, error)

    def _was_an_outage(self, handler: Handler, error: BaseException, was_away: Asked) -> bool:
        """Say whether the handler failed because the database was away, or takes no writes: not the fault of the row.

        If the service's connection has lived on since the call began, the server has cut off this one session, and
        a row that brings that about each time must end in ``failed``.
        """
        # Any error but Django's is about a file of the handler's.
        if isinstance(error, TROUBLE) and meaning_of(error) is Meaning.SERVER:
            # The handler may write to another database, or in a transaction that only reads.
            return not ClaimTarget.of(handler.model, self.using).is_writable() or was_away()
        if is_refusal(error) or is_contention(error):
            return False
        return not dialect_for(connections[self.using]).has_one_writer and was_away()

    # The calls

    def _replace_broken_connections(self) -> None:
        """Look at this thread's connections, for the database was away since the last look; no row is to blame."""
        self._looked = clock()
        ensure_all_usable()

    def _call(self, item: WorkItem) -> Answer:
        if item.handler.atomic:
            answer = self._call_atomically(item)
            self._used = clock() if answer.completed and answer.error is None else 0.0
            return self._look_back(item, answer)
        try:
            if self.keeper.troubled_since(self._looked):
                self._replace_broken_connections()
            begin_handler(self.using, atomic=False)
            said = call(item.handler, [held.row for held in item.rows])
            answer = NOTHING_SAID if said is None else Answer(said)
        except BaseException as error:
            # SystemExit and KeyboardInterrupt included: one row's end is not the worker's.
            answer = Answer(error=error)
        return self._look_back(item, answer)

    def _call_atomically(self, item: WorkItem) -> Answer:
        """Call the function and complete the rows in one transaction on their database, or leave all as it was."""
        using, called, completed = self.using, item.rows, False
        try:
            begin_handler(using, atomic=True)
            if clock() - self._used >= USED_LATELY:
                ensure_usable(using)
            with dialect_for(connections[using]).own_transaction(durable=True):
                # From here on the handler's time runs: where there is one writer, that may have been a long wait.
                item.begin(called)
                with unbroken_transaction(using, SWALLOWED):
                    said = call(item.handler, [held.row for held in called])
                if said and any(one is not None for one in said):
                    # All or nothing: what was written for the other rows goes, too.
                    transaction.set_rollback(True, using)
                    return Answer(said)
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
            if self.keeper.troubled_since(self._looked):
                await sync_to_async(self._replace_broken_connections)()
            async with limit:
                answer = Answer(await acall(handler, [held.row for held in item.rows]))
        except BaseException as error:
            late = limit.expired() and isinstance(error, TimeoutError)
            answer = Answer(error=TaskClaimError(outlived(handler)) if late else error)
        if self.orm_thread and not (item.before or has_opened(self.orm_thread)):
            return answer
        # Where Django's own async methods have their connections.
        return await sync_to_async(self._look_back)(item, answer)

    def _look_back(self, item: WorkItem, answer: Answer) -> Answer:
        """Look, in the thread that has the connections of a call, at what it left there; return the answer that counts.

        A handler that leaves a transaction open has failed, for nothing it wrote there would be committed. What an
        atomic handler has committed on the rows' own database stays committed all the same.
        """
        unclean = self._left_open()
        if answer.error is not None:
            return answer
        if unclean:
            error = TaskClaimError(f"The handler left a transaction open on {', '.join(unclean)}.")
            if not answer.completed or self.using in unclean:
                return Answer(error=error)
            broken("An atomic handler has committed", error)
        if item.before and (answer.completed or not item.handler.atomic):
            unsaved_columns(item.handler).warn(item.before)
        return answer

    def _left_open(self) -> list[str]:
        return left_open()


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


def call(handler: Handler, rows: Sequence[models.Model]) -> Said | None:
    """Call the function with its row, or as a batch handler with all of *rows*; return what ``of_answer`` does.

    TypeError where the answer is work which nobody has run, such as the coroutine of a function that is not async.
    """
    return _said(handler, rows, _answer(handler, rows))


async def acall(handler: Handler, rows: Sequence[models.Model]) -> Said | None:
    """Do what ``call`` does with a coroutine function."""
    return _said(handler, rows, await _answer(handler, rows))


def _answer(handler: Handler, rows: Sequence[models.Model]) -> Any:
    if handler.has_ranges:
        try:
            answer = handler.function(rows[0])
        finally:
            end_walks()
        refuse_not_run(answer, handler.function)
        refuse_unfinished(rows[0])
        return None
    given = [hand_out(row) for row in rows] if handler.gets_sources else list(rows)
    return handler.function(given if handler.batch else given[0])


def _said(handler: Handler, rows: Sequence[models.Model], answer: object) -> Said | None:
    if answer is None:
        return None
    refuse_not_run(answer, handler.function, may_yield=handler.batch)
    # What is yielded is part of the call, and of its transaction.
    return of_answer(rows, answer) if handler.batch else None
