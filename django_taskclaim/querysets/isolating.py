"""A statement over many rows fails because of a few of them: the other rows go on, and each bad row is named.

The statement is sent again for halves of its rows, and halves of those, until each row that fails alone is known.

A row may be one that the database lets nobody write: in breach of a check that came later, or frozen by a trigger. It
is logged and stays as it is, and for a minute this process leaves it out of what it repeats. Or it is one that nobody
can read, because of a value that the driver refuses, or a field that raises. It fails by its policy, with that error.
"""

import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from django.db import DatabaseError, connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.deletion import ProtectedError, RestrictedError

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.contention import is_contention, is_refusal
from django_taskclaim.db.sql import SQL, Key
from django_taskclaim.error_text import describe
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import plain
from django_taskclaim.querysets.scope import ClaimTarget, Rows

logger = logging.getLogger("django_taskclaim")

T = TypeVar("T")
R = TypeVar("R")


class Bad(NamedTuple, Generic[T]):
    """A row for which a statement fails, with the error."""

    row: T
    error: Exception


def bisect(
    rows: Sequence[T], attempt: Callable[[Sequence[T]], R], is_of_a_row: Callable[[Exception], bool]
) -> Iterator[R | Bad[T]]:
    """Yield, in the order of *rows*, what *attempt* returns for all or parts of them, and each row that fails alone.

    An attempt that fails must have changed nothing. An error that is not of single rows passes on.
    """
    left = deque([rows] if rows else [])
    suspect: Sequence[T] = ()
    while left:
        part = left.popleft()
        outcome: R | Bad[T]
        try:
            outcome = attempt(part)
        except Exception as error:
            if not is_of_a_row(error):
                raise
            if middle := len(part) // 2:
                left.extendleft([part[middle:], part[:middle]])
                continue
            if part is not suspect:
                # What kept all rows from it may have ended just before *is_of_a_row* asked.
                suspect = part
                left.appendleft(part)
                continue
            outcome = Bad(part[0], error)
        yield outcome


def may_be_of_a_row(using: str, nothing: Callable[[], object], error: Exception) -> bool:
    """Say whether *error* may be of single rows; *nothing* does the same with no rows, and raises what is of all."""
    connection = connections[using]
    # A misspelt prefetch fails for every row: the caller must hear of it.
    where = deque(traceback.walk_tb(error.__traceback__), 1)
    if (
        any(frame.f_code is models.prefetch_related_objects.__code__ for frame, _ in where)
        # Django's own errors name rows of other tables, which may be many.
        or isinstance(error, (TaskClaimError, ProtectedError, RestrictedError))
        or is_contention(error)
        or not is_refusal(error)
        # The whole transaction has failed.
        or connection.needs_rollback
    ):
        return False
    with savepoint_in(connection):
        nothing()
    return True


def savepoint_in(connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
    """Open a savepoint where a transaction is open, in which an error spoils what comes after it."""
    return transaction.atomic(connection.alias) if connection.in_atomic_block else nullcontext()


# Rows that the database lets nobody write

#: One call goes around fewer such rows.
MOST_ROWS = 10


def send_around(
    target: ClaimTarget,
    keys: Sequence[Key],
    attempt: Callable[[Sequence[Key]], R],
    *,
    raises: bool = True,
) -> Iterator[R]:
    """Yield what *attempt* returns for *keys* without those that are refused, which are logged and remembered.

    Where many are, this raises the error of the last one found, or ends. The next call leaves them out.
    """

    def is_of_a_row(error: Exception) -> bool:
        # Any other error is of a receiver of the user's: the caller must hear of it.
        nothing = partial(write_nothing, target)
        return isinstance(error, DatabaseError) and may_be_of_a_row(target.alias, nothing, error)

    found = 0
    for outcome in bisect(keys, attempt, is_of_a_row):
        if not isinstance(outcome, Bad):
            yield outcome
            continue
        found += 1
        _remember(target, outcome.row, outcome.error)
        if found == MOST_ROWS and raises:
            raise outcome.error
        if found == MOST_ROWS:
            return


def write_nothing(target: ClaimTarget) -> None:
    """Write, and read, no row of the table."""
    target.dialect.wait_to_write(target.table)
    fields = target.columns.owner._meta.local_concrete_fields
    target.dialect.select(target.table, fields, SQL("1 = 0"))


#: How many seconds a refused row is left out.
REMEMBERED = 60.0


class RefusedRow(NamedTuple):
    """One row that was refused, and with which words of the driver."""

    model: type[models.Model]
    alias: str
    key: Key
    error: str
    #: By ``clock()``.
    at: float

    def __str__(self) -> str:
        name, _, text = self.error.partition(": ")
        # The class comes first: people who may not see the row are shown no more than that.
        return plain(f"{name}: {self.model._meta.label} {self.key} cannot be written: {text}")


#: The rows that were refused last in this process, so many at most.
remembered: deque[RefusedRow] = deque(maxlen=1000)


def _remember(target: ClaimTarget, key: Key, error: Exception) -> None:
    """Log a row that is refused, and leave it out for a while."""
    refused = RefusedRow(target.model, target.alias, key, describe(error), clock())
    remembered.append(refused)
    facts = {"model": target.model._meta.label, "keys": [str(key)], "error": refused.error}
    logger.error(
        "%s. Other rows go on; this one stays as it is and is tried again in a minute. Mend the row, or the check or"
        " trigger that refuses it.",
        str(refused).rstrip("."),
        extra={"event": "refused", **facts},
    )


def refusals(
    model: type[models.Model] | None, alias: str, since: float | None = None
) -> list[RefusedRow]:
    """Return the rows that were refused in this process lately, or *since* a moment of ``clock()``, the last one last.

    They are those of *model*, or of all models (None).
    """
    owner = None if model is None else claim_columns(model).owner
    after = clock() - REMEMBERED if since is None else since
    found = [one for one in list(remembered) if one.alias == alias and one.at >= after]
    return [one for one in found if owner in (None, claim_columns(one.model).owner)]


def without_refused(queryset: Rows) -> Rows:
    """Return *queryset* without the rows that were refused lately."""
    found = refusals(queryset.model, queryset.db) if remembered else []
    path = claim_columns(queryset.model).key_path(queryset.model)
    return queryset.exclude(**{f"{path}__in": [one.key for one in found]}) if found else queryset


# Rows that nobody can read


def find_unreadable(
    given: Sequence[T], read: Callable[[Sequence[T]], object], rows: Rows
) -> list[Bad[T]]:
    """Have *read* read all that it can of what is *given*, of *rows*; return what it cannot, each with the error."""

    def attempt(part: Sequence[T]) -> None:
        with savepoint_in(connections[rows.db]):
            read(part)

    is_of_a_row = partial(may_be_of_a_row, rows.db, partial(read_nothing, rows))
    return [one for one in bisect(given, attempt, is_of_a_row) if isinstance(one, Bad)]


def read_nothing(rows: Rows) -> None:
    """Read none of *rows*."""
    none = rows.extra(where=["1 = 0"])
    # It would need a transaction.
    none.query.select_for_update = False
    list(none)
