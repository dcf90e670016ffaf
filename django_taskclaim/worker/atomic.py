"""Atomic handlers: the function and the fenced completion are one transaction on the rows' database."""

from datetime import timedelta
from typing import Any

from django.db import connections

from django_taskclaim.connecting import ensure_usable, limit_idle_session
from django_taskclaim.db import dialect_for
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets.transactions import unbroken_transaction
from django_taskclaim.worker.calling import call, complete
from django_taskclaim.worker.inflight import Task, Unit
from django_taskclaim.worker.outcomes import Answer, of_answer

SWALLOWED = (
    "The handler swallowed a database error, or ended its transaction, so nothing it wrote was kept"
)


class _NotAllDone(Exception):
    """Rolls back a transaction in which a row was not done."""

    def __init__(self, said: list[Any]) -> None:
        super().__init__(said)
        self.by_row = said


def call_atomically(
    unit: Unit, tasks: list[Task], using: str, idle: timedelta | None, *, used_lately: bool
) -> Answer:
    """Call an atomic handler with *tasks*, all or some of the unit's, and complete them, or leave all as it was.

    Once the transaction was *idle* for so long between two queries, the server ends it: a frozen process would block
    others. A connection that was *used lately* is taken to be there still.
    """
    handler = unit.handler
    at_commit = False
    try:
        limit_idle_session(using, idle)
        if not used_lately:
            ensure_usable(using)
        with dialect_for(connections[using]).own_transaction(durable=True):
            # From here on the handler's time runs: where there is one writer, that may have been a long wait.
            unit.begin(tasks)
            with unbroken_transaction(using, SWALLOWED):
                value = call(handler, [task.row for task in tasks])
            _refuse_what_is_not_done(handler, tasks, value)
            _complete(handler, tasks)
            at_commit = True
    except _NotAllDone as undone:
        return Answer(by_row=undone.by_row)
    except BaseException as error:
        for task in tasks:
            task.ending = False
        return Answer(error=error, at_commit=at_commit)
    return Answer(committed=True)


def _refuse_what_is_not_done(handler: Handler, tasks: list[Task], value: object) -> None:
    if not handler.batch:
        return
    said = of_answer([task.row for task in tasks], value)
    if any(one is not None for one in said):
        raise _NotAllDone(said)


def _complete(handler: Handler, tasks: list[Task]) -> None:
    """Complete the rows whose claims the handler has not ended itself; ClaimLost rolls everything back."""
    rows = []
    for task in tasks:
        if not task.claim.ended:
            if (error := task.without_results()) is not None:
                raise error
            task.ending = True
            rows.append(task.row)
    complete(handler, rows, savepoint=False)
