"""Finishing rows well, each in the way that the policy of its model names; the worker comes here like any caller."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

from django.db import connections, models, router, transaction

from django_taskclaim.awaitables import refuse_not_run
from django_taskclaim.columns import claim_columns
from django_taskclaim.completion import Archive, Call, Clear, Completion, Delete, Mark, Save
from django_taskclaim.contention import contention_code, server_code
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.guard import show, show_written, told_apart
from django_taskclaim.policy import policy_for, refuse_faulty
from django_taskclaim.querysets.assignments import (
    clear_assignments,
    complete_assignments,
    write_inherited,
)
from django_taskclaim.querysets.fencing import (
    Also,
    Write,
    by_database,
    end,
    held_write,
    keys_of,
    send_held,
    write_held,
    write_standing,
)
from django_taskclaim.querysets.removing import deleting, moving
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.querysets.telling import tell
from django_taskclaim.signals import rows_completed
from django_taskclaim.states import Status
from django_taskclaim.tokens import COMPLETED, carried_claim

Rows = Sequence[Any]
Names = Sequence[str]


class CallRaised(Exception):
    """A function of the user's that belongs to the completion raised *error*; nothing was written."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def complete(rows: Rows, names: Names, also: Also | None = None) -> list[Any]:
    """Finish rows well, writing the columns *names*, and return those whose claims stood.

    *also* runs in the same transaction, with the rows just written, before anything is done with them.

    CallRaised where the policy is a function that raised. A database error inside it passes as it is if it says
    something of the database: contention, or a session that broke.
    """
    written: list[Any] = []
    for completion, same in _by_completion(rows):
        for part in by_database(same):
            done = _WAYS[type(completion)](completion, part, names, also)
            end(done, COMPLETED)
            tell(rows_completed, done)
            written += done
    return written


def _by_completion(rows: Rows) -> Iterable[tuple[Completion, list[Any]]]:
    """Group rows by their policy and, but for those that are marked, by their class."""
    if len(kinds := set(map(type, rows))) == 1:
        return [(_completion_of(kinds.pop()), list(rows))]
    groups: dict[Any, tuple[Completion, list[Any]]] = {}
    for model, same in _by_class(rows).items():
        completion = _completion_of(model)
        place = Mark if isinstance(completion, Mark) else model
        groups.setdefault(place, (completion, []))[1].extend(same)
    return groups.values()


def _both(first: Also | None, second: Also | None) -> Also | None:
    steps = [step for step in (first, second) if step is not None]

    def do(desk: Desk, rows: list[Any]) -> None:
        for step in steps:
            step(desk, rows)

    return do if steps else None


def _mark(completion: Mark, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    written = write_standing(rows, _marking(names, also) if names or also else _MARKING)
    show_state(written, Status.COMPLETE, "completed_at")
    return written


def _marking(names: Names = (), also: Also | None = None) -> Write:
    return held_write(
        complete_assignments(names),
        per_row=2 * len(names),
        also=_both(write_inherited(names), also),
        finished=(Status.COMPLETE,),
    )


#: What nearly all completions are.
_MARKING = _marking()


def _delete(completion: Delete, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    written = send_held(rows, deleting(cascade=completion.cascade), also=also)
    show_state(written, Status.COMPLETE)
    return written


def _archive(completion: Archive, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    written = write_held(
        rows,
        complete_assignments(names),
        per_row=2 * len(names),
        also=_both(
            _both(write_inherited(names), also),
            moving(completion.model, cascade=completion.cascade),
        ),
    )
    show_state(written, Status.COMPLETE)
    return written


def _clear(completion: Clear, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    written = write_held(
        rows,
        clear_assignments(names, completion.pause),
        per_row=2 * len(names),
        also=_both(write_inherited(names), also),
    )
    new = ("iteration", "not_before", "completed_at", "attempts", "last_error", "error_class")
    show_state(written, Status.OPEN, *new)
    return written


def _call(completion: Call, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    def call(desk: Desk, done: list[Any]) -> None:
        # To the function they are ordinary rows that are complete.
        end(done, COMPLETED)
        show_state(done, Status.COMPLETE, "completed_at")
        try:
            _called(completion.function, desk.alias, done)
        except BaseException:
            show_state(done, Status.PROCESSING, "completed_at", "expires_at")
            raise

    return _mark(Mark(), rows, names, _both(also, call))


def _save(completion: Save, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    # The claims are checked, and the rows locked, by the statement before.
    return _call(Call(partial(_save_each, names)), rows, (), also)


def _save_each(names: Names, rows: Rows) -> None:
    """Call ``save()`` of rows of one database; where one raises, all instances are what they were before."""
    before = [dict(row.__dict__) for row in rows]
    _show_completed_at(rows)
    try:
        for row in rows:
            options: dict[str, Any] = {"update_fields": names} if names else {}
            alias = carried_claim(row).alias
            if router.db_for_write(type(row), instance=row) != alias:
                options["using"] = alias
            row.save(**options)
    except BaseException:
        for row, own in zip(rows, before, strict=True):
            row.__dict__.clear()
            row.__dict__.update(own)
        raise


def _show_completed_at(rows: Rows) -> None:
    """Let instances show when they were completed: ``save()`` would leave out a column that it would have to read."""
    desk = Desk.of(type(rows[0]), carried_claim(rows[0]).alias)
    field = desk.columns.completed_at
    if field is not None:
        for part in desk.dialect.chunks(rows, desk.table):
            moments = dict(desk.rows.filter(pk__in=keys_of(part)).values_list("pk", field.name))
            for row in part:
                show([row], {field: moments[carried_claim(row).pk]})


def _called(function: Callable[[list[Any]], Any], alias: str, rows: list[Any]) -> None:
    """Call *function* in a savepoint, which is missing in the end if it has lost the transaction and told nobody."""
    returned = False
    try:
        with transaction.atomic(using=alias):
            refuse_not_run(function(list(rows)), function)
            returned = True
    except BaseException as error:
        # SystemExit included: in a worker it would end the thread that writes for all rows.
        if contention_code(error) is not None or server_code(error) is not None:
            raise
        if returned:
            raise CallRaised(_nothing_was_kept(error)) from error
        if connections[alias].is_usable():
            raise CallRaised(error) from error
        raise


def _nothing_was_kept(error: BaseException) -> TaskClaimError:
    return TaskClaimError(
        "The function of the completion swallowed a database error, or ended its transaction, so nothing was kept:"
        f" {error}"
    )


_WAYS: dict[type, Callable[[Any, Rows, Names, Also | None], list[Any]]] = {
    Mark: _mark,
    Delete: _delete,
    Archive: _archive,
    Clear: _clear,
    Call: _call,
    Save: _save,
}


def _completion_of(model: type[models.Model]) -> Completion:
    refuse_faulty(model)
    return policy_for(model).completion


def _by_class(rows: Rows) -> dict[type[models.Model], list[Any]]:
    """Group rows by their class."""
    classes = dict.fromkeys(map(type, rows))
    if len(classes) == 1:
        return {model: list(rows) for model in classes}
    return {model: [row for row in rows if type(row) is model] for model in classes}


def show_state(rows: Sequence[Any], status: Status, *unknown: str) -> None:
    """Let instances show their new state; columns whose new value only the database knows are read when asked."""
    for model, same in _by_class(rows).items():
        show_written(same, *_values_in(model, status, unknown))


@cache
def _values_in(
    model: type[models.Model], status: Status, unknown: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    columns = claim_columns(model)
    values: dict[Any, Any] = {columns.status: status.value, columns.expires_at: None}
    if status == Status.OPEN:
        values |= {columns.claimed_by: None, columns.claimed_at: None}
    return told_apart(values | {getattr(columns, role): models.DEFERRED for role in unknown})
