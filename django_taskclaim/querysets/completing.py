"""Finishing rows well, each in the way that the policy of its model names; the worker comes here like any caller."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from django.db import connections, models, router, transaction

from django_taskclaim.awaitables import refuse_not_run
from django_taskclaim.claim import COMPLETED, carried_claim, carried_claims, end_claims, standing
from django_taskclaim.columns import claim_columns
from django_taskclaim.completion import Archive, Call, Clear, Completion, Delete, Mark, Save
from django_taskclaim.contention import contention_code, server_code
from django_taskclaim.db.sql import Change
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.guard import show
from django_taskclaim.policy import policy_for, refuse_faulty
from django_taskclaim.querysets.assignments import (
    as_new,
    completed,
    done_now,
    due_later,
    open_again,
)
from django_taskclaim.querysets.losses import raise_unless_all
from django_taskclaim.querysets.removing import deleting, links_of, moving
from django_taskclaim.querysets.results import (
    checked_results,
    own_values,
    write_inherited,
    write_sources,
)
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import (
    Also,
    Rows,
    Write,
    by_database,
    finish,
    keys_of,
    show_state,
    write_held,
)
from django_taskclaim.signals import rows_completed
from django_taskclaim.states import Status

Names = Sequence[str]


class CallRaised(Exception):
    """A function of the user's that belongs to the completion raised *error*; nothing was written."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def complete(
    model: type[models.Model],
    given: Rows,
    update_fields: Collection[str],
    *,
    may_be_gone: bool = False,
) -> int:
    """Finish different rows well, each as the policy of its model says, and return how many.

    A source of a companion that is to be written *may be gone*, or SourceGone is raised.

    CallRaised where the policy is a function that raised. A database error inside it passes as it is if it says
    something of the database: contention, or a session that broke.
    """
    names, of_source = checked_results(model, update_fields)
    sources = write_sources(of_source, may_be_gone=may_be_gone)
    written: list[Any] = []
    for completion, same in _by_completion(standing(given)):
        for part in by_database(same):
            written += _ways[type(completion)](completion, part, names, sources)
    raise_unless_all(given, written)
    return len(written)


def _by_completion(rows: Rows) -> Iterable[tuple[Completion, list[Any]]]:
    """Group rows by their policy and, but for those that are marked, by their class."""
    groups: dict[Any, tuple[Completion, list[Any]]] = {}
    for model in dict.fromkeys(map(type, rows)):
        refuse_faulty(model)
        completion = policy_for(model).completion
        place = Mark if isinstance(completion, Mark) else model
        same = [row for row in rows if type(row) is model]
        groups.setdefault(place, (completion, []))[1].extend(same)
    return groups.values()


def _marking(rows: Rows, names: Names, *also: Also | None) -> Write:
    """Return what completes rows and writes their results."""

    def change(target: ClaimTarget, same: Rows) -> Change:
        return Change(completed(target), own_values(target, same, names))

    steps = _steps(write_inherited(rows, names), *also)
    return Write(change, len(names), steps, (Status.COMPLETE,))


def _steps(*also: Also | None) -> Also | None:
    """Return what does all of these, one after the other; None for nothing."""
    steps = [step for step in also if step is not None]

    def do(target: ClaimTarget, rows: list[Any]) -> None:
        for step in steps:
            step(target, rows)

    return do if steps else None


def _mark(completion: Completion, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    written = write_held(rows, _marking(rows, names, also))
    finish(written, COMPLETED, Status.COMPLETE, ["completed_at"], rows_completed)
    return written


def _delete(completion: Delete, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    owner = claim_columns(type(rows[0])).owner
    if completion.cascade or any(links_of(owner)):
        steps = _steps(deleting(cascade=completion.cascade), also)
        write = Write(None, also=steps, only_locks=True)
    else:
        write = Write(None, also=also)
    written = write_held(rows, write)
    finish(written, COMPLETED, Status.COMPLETE, [], rows_completed)
    return written


def _archive(completion: Archive, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    move = moving(completion.model, cascade=completion.cascade)
    # Where its row is gone, nobody can tell whether an unanswered COMMIT moved it.
    write = _marking(rows, names, also, move)._replace(finished=())
    written = write_held(rows, write)
    finish(written, COMPLETED, Status.COMPLETE, [], rows_completed)
    return written


def _clear(completion: Clear, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    def change(target: ClaimTarget, rows: Rows) -> Change:
        # Also without a pause: the rows done last stand behind all others that are due.
        due = due_later(target, completion.pause)
        shared = [*as_new(target), *due, *done_now(target), *open_again(target)]
        return Change(shared, own_values(target, rows, names))

    steps = _steps(write_inherited(rows, names), also)
    written = write_held(rows, Write(change, len(names), steps))
    new = ["iteration", "not_before", "completed_at", "attempts", "last_error", "error_class"]
    finish(written, COMPLETED, Status.OPEN, new, rows_completed)
    return written


def _call(completion: Call, rows: Rows, names: Names, also: Also | None) -> list[Any]:
    def call(target: ClaimTarget, done: list[Any]) -> None:
        # To the function they are ordinary rows that are complete.
        end_claims(carried_claims(done), COMPLETED)
        show_state(done, Status.COMPLETE, "completed_at")
        try:
            _called(completion.function, target.alias, done)
        except BaseException:
            show_state(done, Status.PROCESSING, "completed_at", "expires_at")
            raise

    return _mark(completion, rows, names, _steps(also, call))


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
    target = ClaimTarget.of(type(rows[0]), carried_claim(rows[0]).alias)
    field = target.columns.completed_at
    if field is not None:
        for part in target.dialect.chunks(rows, target.table):
            moments = dict(target.rows.filter(pk__in=keys_of(part)).values_list("pk", field.name))
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


_ways: dict[type, Callable[[Any, Rows, Names, Also | None], list[Any]]] = {
    Mark: _mark,
    Delete: _delete,
    Archive: _archive,
    Clear: _clear,
    Call: _call,
    Save: _save,
}
