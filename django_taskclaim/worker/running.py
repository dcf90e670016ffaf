"""How a unit is run: one call for a row, for a batch one call and, where that raises, halves of it.

What to call next, and what the answers mean, is decided here once, for functions and for coroutines.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connections

from django_taskclaim.claim import Ended, clock, standing_claim
from django_taskclaim.columns import claim_columns
from django_taskclaim.companions import lacks_source
from django_taskclaim.connecting import (
    TROUBLE,
    begin_handler,
    drop_broken,
    ensure_all_usable,
    ensure_usable,
    has_opened,
    is_contention,
    is_refusal,
    left_open,
)
from django_taskclaim.contention import server_code
from django_taskclaim.db import dialect_for
from django_taskclaim.error_text import describe
from django_taskclaim.exceptions import ClaimLost, SourceGone, TaskClaimError
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets.failing import note_start
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.worker.batch import (
    DONE,
    NOT_STARTED,
    Ambiguous,
    Outcome,
    PutBack,
    Task,
    Unit,
    may_start,
)
from django_taskclaim.worker.calling import (
    Answer,
    acall,
    call,
    call_atomically,
    judged,
    of_answer,
    outlived,
)
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.keeper import LeaseKeeper
from django_taskclaim.worker.records import broken, logger, lost, named

#: What nearly all calls come to.
NOTHING_SAID = Answer()

#: An outage charges no row.
AWAY = PutBack("the database was away", timedelta(seconds=1))


#: For so many seconds after a COMMIT a connection is taken to be there still, and not asked.
USED_LATELY = 1.0


class Running:
    """Runs units and says what became of their rows; all but an atomic handler's completion is written later."""

    #: Whether a judgement may have to wait for news of the database, and so must not keep an event loop from turning.
    judging_waits = True

    def __init__(
        self, using: str, inflight: InFlight, keeper: LeaseKeeper, idle: timedelta | None
    ) -> None:
        self.using = using
        self.inflight = inflight
        self.keeper = keeper
        #: How long an atomic handler's transaction may be idle; None for as long as the server has it.
        self.idle = idle
        self._looked = clock()
        #: By ``clock()``, when an atomic handler was last committed.
        self._used = 0.0
        #: Where Django's own async methods have their connections, for coroutines.
        self.orm_thread = 0

    def run(self, unit: Unit) -> None:
        """Run *unit* in this thread, and note the results there."""
        if unit.quarantined:
            self._note_start(unit)
        todo = [unit.open_tasks()]
        while tasks := self._next(unit, todo):
            self._judge(unit, tasks, self._call(unit, tasks), todo)

    async def arun(self, unit: Unit) -> None:
        """Run *unit* on the event loop of this thread, and note the results there."""
        if unit.quarantined:
            await sync_to_async(self._note_start)(unit)
        todo = [unit.open_tasks()]
        while tasks := self._next(unit, todo):
            answer = await self._acall(unit, tasks)
            if answer.error is None and not unit.handler.batch:
                self._judge(unit, tasks, answer, todo)
            else:
                # It may have to wait for news of the database.
                judge = sync_to_async(self._judge, thread_sensitive=not self.judging_waits)
                await judge(unit, tasks, answer, todo)

    def _note_start(self, unit: Unit) -> None:
        """Write down that a row which may kill its worker starts, right before it does; it gets an outcome if not.

        If its worker ends from here on, the row has failed. Otherwise it was not started, and has killed nobody.
        """
        (task,) = unit.tasks
        if task.claim.lost or task.abandoned or task.is_overdue():
            # It will not be called, so it must not seem to have started.
            return
        try:
            ensure_usable(self.using)
            note_start(task.row)
        except ClaimLost:
            lost(task.row, "before it could begin")
            self.inflight.judge(unit, [(task, Ended())])
        except Exception as error:
            drop_broken(self.using)
            why = f"it could not be started: {describe(error)}"
            self.inflight.judge(unit, [(task, PutBack(why))])

    # What to call with

    def _next(self, unit: Unit, todo: list[list[Task]]) -> list[Task]:
        """Begin the next call of what is *todo*, and return its rows; none where nothing is left."""
        while todo:
            tasks = self._callable(unit, todo.pop())
            if tasks and self.inflight.closed and len(unit.open_tasks()) < len(unit.tasks):
                # The worker stops between two halves: the rest has not been started.
                self.inflight.judge(unit, [(task, NOT_STARTED) for task in tasks])
            elif tasks:
                unit.begin(tasks)
                return tasks
        return []

    def _judge(self, unit: Unit, tasks: list[Task], answer: Answer, todo: list[list[Task]]) -> None:
        """Note what became of the rows of a call, or have it made again with halves of them."""
        now = clock()
        outcomes = self._outcomes(tasks, answer, since=unit.started or 0.0)
        if outcomes is None:
            for task in tasks:
                task.carrier()
            half = (len(tasks) + 1) // 2
            todo += [tasks[half:], tasks[:half]]
            return
        # Each row's share, so that they add up to what the call took.
        ran = (now - (unit.started or now)) / len(tasks)
        self.inflight.judge(unit, zip(tasks, outcomes, strict=True), ran)

    def _callable(self, unit: Unit, given: list[Task]) -> list[Task]:
        """Return the rows that the handler can be called with, and note what becomes of the others, if anything."""
        tasks = given
        if not may_start(given):
            # Between two halves: the handler may have ended some claims itself.
            ended = [task for task in given if task.claim.ended]
            late = [task for task in given if task.claim.lost or task.is_overdue()]
            self.inflight.judge(unit, [(task, NOT_STARTED) for task in late])
            self.inflight.judge(unit, [(task, task.claim.how_ended() or Ended()) for task in ended])
            tasks = [task for task in given if task not in ended and task not in late]
            tasks = [task for task in tasks if not task.abandoned]
        if tasks and tasks[0].handler.needs_source:
            gone = [task for task in tasks if lacks_source(task.row)]
            self.inflight.judge(unit, [(task, _without_source(task)) for task in gone])
            tasks = [task for task in tasks if task not in gone]
        return tasks

    # What the answers mean

    def _outcomes(self, tasks: list[Task], answer: Answer, since: float) -> list[Outcome] | None:
        """Return the outcome of each row; None where the batch must be run in halves to find the row that raises."""
        if answer.committed:
            return [task.claim.how_ended() or Ended(completed=task.ending) for task in tasks]
        if answer.error is not None and answer.at_commit:
            return self._after_commit(tasks, answer.error, since)
        if answer is NOTHING_SAID:
            return [
                DONE
                if not task.remade and standing_claim(task.row) is not None
                else task.claim.how_ended() or _done(task)
                for task in tasks
            ]
        said, error = _read(tasks, answer)
        together = len(tasks) > 1 and (error is not None or tasks[0].handler.atomic)
        if together and not (error and self._says_nothing_of_the_rows(tasks, error, since)):
            why = type(error).__name__ if error else "an outcome that is not done"
            logger.warning(
                "%d rows of %s came to %s together; they are run in halves",
                len(tasks),
                tasks[0].handler.model._meta.label,
                why,
                extra={"event": "halved", "rows": len(tasks)},
            )
            return None
        return [self._outcome(task, one, since) for task, one in zip(tasks, said, strict=True)]

    def _after_commit(self, tasks: list[Task], error: BaseException, since: float) -> list[Outcome]:
        """Judge an error that came from the COMMIT, or from a hook that ran after it."""
        if all(task.claim.ended for task in tasks):
            broken(f"{named(tasks[0].row)}: a hook raised after its COMMIT", error)
            return [task.claim.how_ended() or Ended(completed=task.ending) for task in tasks]
        otherwise: PutBack | None = None
        if self._was_an_outage(tasks[0].handler, error, since):
            otherwise = AWAY
        elif len(tasks) > 1 and claim_columns(tasks[0].handler.model).not_before is not None:
            otherwise = PutBack("the COMMIT of its batch failed", quarantined=True)
        return [Ambiguous(error, otherwise or judged(task.carrier(), error)) for task in tasks]

    def _says_nothing_of_the_rows(
        self, tasks: list[Task], error: BaseException, since: float
    ) -> bool:
        row = next((task.carrier() for task in tasks if not task.claim.ended), None)
        if row is not None and isinstance(judged(row, error), PutBack):
            return True
        return self._was_an_outage(tasks[0].handler, error, since)

    def _outcome(self, task: Task, error: BaseException | str | None, since: float) -> Outcome:
        if (ended := task.claim.how_ended()) is not None:
            # The handler called a verb itself, or deleted the row.
            if error is not None:
                broken(f"{named(task.row)}: its handler ended the claim and then raised", error)
            return ended
        if error is None:
            return _done(task)
        row = task.carrier()
        if task.fenced:
            return PutBack("its claim could not be renewed in time")
        if isinstance(error, BaseException) and self._was_an_outage(task.handler, error, since):
            return AWAY
        return judged(row, error)

    def _was_an_outage(self, handler: Handler, error: BaseException, since: float) -> bool:
        """Say whether the handler failed because the database was away, or takes no writes: not the fault of the row.

        If the service's connection has lived on since the call began, the server has cut off this one session, and
        a row that brings that about each time must end in ``failed``.
        """
        # Any error but Django's is about a file of the handler's.
        if isinstance(error, TROUBLE) and server_code(error) is not None:
            # The handler may write to another database, or in a transaction that only reads.
            is_ours = not ClaimTarget.of(handler.model, self.using).is_writable()
            return is_ours or self.keeper.was_away_since(since)
        if not isinstance(error, (OperationalError, InterfaceError)) or (
            is_refusal(error) or is_contention(error)
        ):
            return False
        if dialect_for(connections[self.using]).has_one_writer:
            return False
        return self.keeper.was_away_since(since)

    # The calls

    def _replace_broken_connections(self) -> None:
        """Look at this thread's connections, for the database was away since the last look; no row is to blame."""
        self._looked = clock()
        ensure_all_usable()

    def _call(self, unit: Unit, tasks: list[Task]) -> Answer:
        handler = unit.handler
        if handler.atomic:
            idle = timedelta.max if self.idle is None else self.idle
            used_lately = clock() - self._used < min(USED_LATELY, idle.total_seconds() / 4)
            answer = call_atomically(unit, tasks, self.using, used_lately=used_lately)
            self._used = clock() if answer.committed else 0.0
            return self._unless_left_open(answer, self.using)
        try:
            if self.keeper.troubled_since(self._looked):
                self._replace_broken_connections()
            begin_handler(self.using, atomic=False)
            value = call(handler, [task.row for task in tasks])
            answer = NOTHING_SAID if value is None else Answer(value)
        except BaseException as error:
            # SystemExit and KeyboardInterrupt included: one row's end is not the worker's.
            answer = Answer(error=error)
        return self._unless_left_open(answer)

    async def _acall(self, unit: Unit, tasks: list[Task]) -> Answer:
        handler = unit.handler
        timeout = None if handler.timeout is None else handler.timeout.total_seconds()
        limit = asyncio.timeout(timeout)
        try:
            if self.keeper.troubled_since(self._looked):
                await sync_to_async(self._replace_broken_connections)()
            async with limit:
                unit.limit = limit
                answer = Answer(await acall(handler, [task.row for task in tasks]))
        except BaseException as error:
            late = limit.expired() and isinstance(error, TimeoutError)
            answer = Answer(error=TaskClaimError(outlived(handler)) if late else error)
        finally:
            unit.limit = None
        if self.orm_thread and not has_opened(self.orm_thread):
            return answer
        # Where Django's own async methods have their connections.
        return await sync_to_async(self._unless_left_open)(answer)

    def _unless_left_open(self, answer: Answer, using: str | None = None) -> Answer:
        """A handler that leaves a transaction open has failed, for nothing it wrote there would be committed.

        What an atomic handler has committed on the rows' own database, *using*, stays committed all the same.
        """
        if not (unclean := self._left_open()):
            return answer
        error = TaskClaimError(f"The handler left a transaction open on {', '.join(unclean)}.")
        if answer.committed and using not in unclean:
            broken("An atomic handler has committed", error)
            return answer
        return replace(answer, committed=False, error=answer.error or error)

    def _left_open(self) -> list[str]:
        return left_open()


def _done(task: Task) -> Outcome:
    """Return what is to become of a row that its handler is done with."""
    error = task.without_results()
    return DONE if error is None else judged(task.carrier(), error)


def _without_source(task: Task) -> Outcome:
    """Say what becomes of a companion whose source is gone: its handler cannot be called."""
    if task.handler.missing_source == "complete":
        return DONE
    return judged(task.row, SourceGone([task.row]))


def _read(
    tasks: list[Task], answer: Answer
) -> tuple[list[BaseException | str | None], BaseException | None]:
    """Return what the answer says of each row, and the error that is one of all rows together."""
    error = answer.error
    if answer.by_row is not None:
        return answer.by_row, None
    if error is None and tasks[0].handler.batch:
        try:
            return of_answer([task.row for task in tasks], answer.value), None
        except Exception as refused:
            error = refused
    return [error] * len(tasks), error
