"""What a worker does with the rows of a handler: it loads what they need, calls the function, and completes them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeAlias

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist
from django.db import Error, connections, models, transaction

from django_taskclaim.awaitables import refuse_not_run
from django_taskclaim.claim import carried_claim, claim_of
from django_taskclaim.columns import (
    LINK,
    as_claimed,
    claim_columns,
    has_claim_columns,
    is_claimable,
    is_companion,
    source_link,
)
from django_taskclaim.companions import hand_out, load_sources
from django_taskclaim.completion import Clear, Mark
from django_taskclaim.connecting import begin_handler, ensure_usable
from django_taskclaim.db import dialect_for
from django_taskclaim.error_text import describe
from django_taskclaim.fields import AnyField
from django_taskclaim.formatting import format_duration, listed
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.completing import PREFIX, checked_results, writable
from django_taskclaim.querysets.completing import complete as complete_rows
from django_taskclaim.querysets.failing import fail_unreadable
from django_taskclaim.querysets.transactions import unbroken_transaction
from django_taskclaim.ranges.walking import end_walks, refuse_unfinished
from django_taskclaim.worker.batch import Failed, HeldRow, PutBack, WorkItem
from django_taskclaim.worker.records import logger, named

SWALLOWED = (
    "The handler swallowed a database error, or ended its transaction, so nothing it wrote was kept"
)

#: What a batch handler said of each row: None for done, else what went wrong.
Said: TypeAlias = list[BaseException | str | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call of a handler came to."""

    #: Of a batch handler, unless all rows are done.
    said: Said | None = None
    error: BaseException | None = None
    #: The completion is part of what the call has committed.
    committed: bool = False
    #: The error came once everything had been done, from the COMMIT or a hook after it.
    at_commit: bool = False


def prepare(handler: Handler, rows: Sequence[object]) -> list[Any]:
    """Load what the function needs beside the claimed *rows*, and return those that it can be called with.

    That is the sources of companions, all in one query; a row whose source cannot be read fails with the error.
    """
    unreadable = load_sources(rows) if handler.needs_source else []
    if unreadable:
        fail_unreadable(unreadable)
    failed = {id(row) for row, _ in unreadable}
    return [row for row in rows if id(row) not in failed]


def call(handler: Handler, rows: Sequence[models.Model]) -> Said | None:
    """Call the function with its row, or as a batch handler with all of *rows*; return what ``of_answer`` does.

    TypeError where the answer is work which nobody has run, such as the coroutine of a function that is not async.
    """
    unsaved = unsaved_columns(handler)
    seen = unsaved.before(rows)
    said = _said(handler, rows, _answer(handler, rows))
    if seen:
        unsaved.warn(seen)
    return said


async def acall(handler: Handler, rows: Sequence[models.Model]) -> Said | None:
    """Do what ``call`` does with a coroutine function."""
    unsaved = unsaved_columns(handler)
    seen = unsaved.before(rows)
    said = _said(handler, rows, await _answer(handler, rows))
    if seen:
        await sync_to_async(unsaved.warn)(seen)
    return said


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


def complete(handler: Handler, rows: Sequence[object], *, savepoint: bool = True) -> int:
    """Complete *rows* with what the function set on them, or on their sources; ClaimLost as from the verb.

    Without a *savepoint* an error ends the transaction that is open.
    """
    return complete_rows(handler.model, rows, handler.update_fields, savepoint=savepoint)


# Atomic handlers: the function and the fenced completion are one transaction on the rows' database


def call_atomically(item: WorkItem, using: str, *, used_lately: bool) -> Answer:
    """Call an atomic handler with the rows of an item and complete them, or leave all as it was.

    A connection that was *used lately* is taken to be there still.
    """
    handler, called = item.handler, item.rows
    at_commit = False
    try:
        begin_handler(using, atomic=True)
        if not used_lately:
            ensure_usable(using)
        with dialect_for(connections[using]).own_transaction(durable=True):
            # From here on the handler's time runs: where there is one writer, that may have been a long wait.
            item.begin(called)
            with unbroken_transaction(using, SWALLOWED):
                said = call(handler, [held.row for held in called])
            if said and any(one is not None for one in said):
                # All or nothing: what was written for the other rows goes, too.
                transaction.set_rollback(True, using)
                return Answer(said)
            _complete(handler, called)
            at_commit = True
    except BaseException as error:
        for held in called:
            held.ending = at_commit
        return Answer(error=error, at_commit=at_commit)
    return Answer(committed=True)


def _complete(handler: Handler, called: list[HeldRow]) -> None:
    """Complete the rows whose claims the handler has not ended itself; ClaimLost rolls everything back."""
    rows = []
    for held in called:
        if not held.claim.ended:
            if (error := held.without_results()) is not None:
                raise error
            held.ending = True
            rows.append(held.row)
    complete(handler, rows, savepoint=False)


# What the answers mean

UNMENTIONED = "The batch handler said nothing about this row."


def judged(row: models.Model, error: BaseException | str) -> Failed | PutBack:
    """Say what the policy makes of a claimed row that came to *error*."""
    verdict = policy_for(type(row)).judge(error, carried_claim(row).attempts + 1)
    if verdict.counted:
        return Failed(error)
    return PutBack(describe(error), verdict.wait(), everyone=verdict.everyone)


def outlived(handler: Handler) -> str:
    """Return what is said of a row whose handler ran too long."""
    return f"The handler ran longer than its timeout of {format_duration(handler.timeout or timedelta())}."


def of_answer(rows: Sequence[models.Model], answer: object) -> Said:
    """Return what a batch handler's *answer* says of each row: None for done, else what went wrong.

    The answer is a mapping from rows or their keys to outcomes, or an iterable of rows and keys
    that are done and of pairs of a row and its outcome. An outcome is None for done, or an exception. A row that is
    not mentioned has failed. Where the handler got the sources of the rows, it names those, or their keys. Raises
    TypeError for an answer that is nothing of the kind.
    """
    said = {_name(row): outcome for row, outcome in _pairs(answer)}
    return [
        _outcome(next((said[name] for name in _names(row) if name in said), UNMENTIONED))
        for row in rows
    ]


def _names(row: models.Model) -> tuple[object, ...]:
    """Return what an answer may call the row by: its claim, its key, and its source's if it is a companion."""
    if not is_companion(type(row)):
        return claim_of(row) or row, _key(row)
    key = source_link(type(row)).key_of(row)
    return claim_of(row) or row, _key(row), key if len(key) > 1 else key[0]


def _name(given: object) -> object:
    """Return the name of what a handler answers: an instance that it got, one that it has read itself, or a key."""
    if not isinstance(given, models.Model):
        return given
    return claim_of(as_claimed(given)) or _key(given)


def _key(row: models.Model) -> object:
    """Return the key that the row was claimed under; a handler may have deleted it since."""
    if not has_claim_columns(type(row)):
        return row.pk
    claim = claim_of(row)
    key = claim_columns(type(row)).key_of(row) if claim is None else claim.pk
    # It may also be the key of another's source.
    return (LINK, key) if is_companion(type(row)) else key


def _pairs(answer: object) -> Iterable[tuple[object, object]]:
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise TypeError(
            f"A batch handler returns None, a mapping or an iterable of outcomes, not {answer!r:.200}."
        )
    return answer.items() if isinstance(answer, Mapping) else map(_pair, answer)


def _pair(said: object) -> tuple[object, object]:
    if isinstance(said, tuple) and len(said) == 2 and isinstance(said[0], models.Model):
        return said
    return said, None


def _outcome(said: object) -> BaseException | str | None:
    if isinstance(said, type) and issubclass(said, BaseException):
        return said()
    if said is None or said is UNMENTIONED or isinstance(said, BaseException):
        return said
    return TypeError(f"The outcome of a row is None or an exception, not {said!r:.200}.")


# Columns that a handler sets although nothing writes them: a completion writes ``update_fields`` alone

#: A process compares so many rows of a handler.
COMPARED = 50

_MUTABLE = (list, dict, set, bytearray)

#: A row, the instance that a handler gets (it, or its source), and the values of that before the call.
_Before: TypeAlias = tuple[models.Model, models.Model, dict[AnyField, object]]


@cache
def unsaved_columns(handler: Handler) -> "UnsavedColumns":
    """Return what compares the rows of *handler* in this process."""
    return UnsavedColumns(handler)


class UnsavedColumns:
    """Compares the first rows of one handler with what they were before each call."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        #: So many rows are still to be compared.
        self.left = COMPARED
        self._warned: set[str] = set()

    def before(self, rows: Sequence[models.Model]) -> list[_Before]:
        """Return the values that the handler is given; nothing once enough rows have been compared."""
        rows = rows[: self.left]
        self.left -= len(rows)
        given = [getattr(row, LINK) if self._handler.gets_sources else row for row in rows]
        return [(row, one, self._values(one)) for row, one in zip(rows, given, strict=True)]

    def _values(self, instance: models.Model) -> dict[AnyField, object]:
        """Return the loaded values that a completion of the row neither removes nor writes."""
        kind, model = type(instance), self._handler.model
        is_row = issubclass(kind, model)
        if is_row and not isinstance(policy_for(model).completion, (Mark, Clear)):
            return {}
        names = writable(kind).intersection(instance.__dict__)
        if is_claimable(kind):
            names -= claim_columns(kind).guarded_names
        written = checked_results(model, self._handler.update_fields)
        values: dict[AnyField, object] = {}
        for field in kind._meta.concrete_fields:
            if field.attname in names and field not in written:
                value = instance.__dict__[field.attname]
                values[field] = deepcopy(value) if isinstance(value, _MUTABLE) else value
        return values

    def warn(self, seen: Sequence[_Before]) -> None:
        """Warn, once for each column, where the handler has set it and the database still has the old value."""
        for row, instance, before in seen:
            changed = _differing(before, instance.__dict__)
            # Without a claim it was saved as another row.
            if not changed or claim_of(row) is None:
                continue
            stored = models.QuerySet[models.Model](type(instance), using=instance._state.db)
            with suppress(Error, ObjectDoesNotExist):
                values = stored.filter(pk=instance.pk).values(*(one.attname for one in changed))
                # Another value was written by somebody, or made by the database.
                written = _differing(before, values.get())
                self._log(row, instance, [one for one in changed if one not in written])

    def _log(self, row: models.Model, instance: models.Model, fields: Sequence[AnyField]) -> None:
        prefix = "" if instance is row else PREFIX
        columns = [f"{prefix}{one.name}" for one in fields if one.name not in self._warned]
        self._warned.update(one.name for one in fields)
        if not columns:
            return
        names = ", ".join(f'"{name}"' for name in (*self._handler.update_fields, *columns))
        logger.warning(
            "%s: %s set %s, but nothing writes it, so this row and others are completed without it."
            " Register the handler with update_fields=[%s], or call save() in it.",
            *(named(row), self._handler.name, listed(columns), names),
            extra={
                "event": "unsaved",
                "model": self._handler.model._meta.label,
                "keys": [str(row.pk)],
                "columns": columns,
            },
        )


def _differing(before: dict[AnyField, object], values: Mapping[str, object]) -> list[AnyField]:
    """Return the columns whose value, where there is one, is not stored as it was."""
    return [
        field
        for field, old in before.items()
        if not _is_same(field, old, values.get(field.attname, old))
    ]


def _is_same(field: AnyField, one: object, other: object) -> bool:
    """Say whether two values are stored alike."""
    try:
        return bool(field.get_prep_value(one) == field.get_prep_value(other))
    except Exception:
        # No value of this column, or an array.
        return one is other
