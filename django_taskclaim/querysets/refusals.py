"""Rows that the database lets nobody write: in breach of a check that came later, or frozen by a trigger.

A statement over many rows that is refused is sent again for halves of them, and halves of those, until each row that
is refused alone is known. It is logged and left as it is; all others are written. For a minute this process leaves it
out of what it does again and again, so that the search is paid for once.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import DatabaseError, models
from django.db.models.deletion import ProtectedError, RestrictedError

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.connecting import is_refusal
from django_taskclaim.contention import contention_code
from django_taskclaim.db.sql import SQL, Key, sql
from django_taskclaim.error_text import describe
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.transactions import in_transaction

logger = logging.getLogger("django_taskclaim")

Q = TypeVar("Q", bound="models.QuerySet[Any]")
R = TypeVar("R")

#: How long, in seconds, a refused row is left out, and how many rows of one table are remembered.
REMEMBERED, MOST_REMEMBERED = 60.0, 1000

#: One search sends so many statements, and finds so many rows, at most.
MOST_STATEMENTS, MOST_ROWS = 64, 10

#: What is said of such a row, in a worker's report too.
REFUSED = "cannot be written"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row that was refused, and with which words of the driver."""

    label: str
    key: Key
    error: str
    #: By ``clock()``.
    at: float

    def __str__(self) -> str:
        name, _, text = self.error.partition(": ")
        # The class first: who may not see the row is shown no more of it.
        return f"{name}: {self.label} {self.key} {REFUSED}: {text}"


class Search:
    """Sends a refused statement again for fewer and fewer rows, and knows in the end which of them are refused."""

    def __init__(self, target: ClaimTarget, error: Exception, refused: Iterable[Key] = ()) -> None:
        """Begin because of *error*, which passes on where it is not for single rows: contention, a broken connection,
        or a statement that is refused over no rows, too. *refused* were found before, for the same call of a verb.
        """
        self.target = target
        self.error = error
        self.refused = list(refused)
        self._known = len(self.refused)
        if not may_be_refused(error, target) or not _may_be_sent(target):
            raise error

    def send(
        self, parts: Iterable[Sequence[Key]], attempt: Callable[[Sequence[Key]], R]
    ) -> Iterator[R]:
        """Yield what *attempt* returns for each of *parts*, or for smaller ones; each in a transaction of its own.

        Inside another transaction that is a savepoint. Stops early where the search becomes too long.
        """
        left = deque(list(part) for part in parts if part)
        for _ in range(MOST_STATEMENTS):
            if not left or len(self.refused) >= MOST_ROWS:
                return
            part = left.popleft()
            try:
                result = in_transaction(self.target, attempt, part)
            except DatabaseError as error:
                if not may_be_refused(error, self.target):
                    raise
                middle = len(part) // 2
                if middle:
                    left.extendleft([part[middle:], part[:middle]])
                else:
                    self.note(part[0], error)
                continue
            yield result

    def note(self, key: Key, error: Exception) -> None:
        """Log that the row is refused, and remember it for a while."""
        self.refused.append(key)
        _remember(self.target, key, error)

    def end(self, written: object) -> None:
        """Raise the error that it began with unless rows were *written*, or those few were found that are refused."""
        if not written and not self._known < len(self.refused) < MOST_ROWS:
            raise self.error


def may_be_refused(error: Exception, target: ClaimTarget) -> bool:
    """Say whether rows may have been refused; what could not be undone alone is its transaction's error."""
    return (
        isinstance(error, DatabaseError)
        # Of Django's own; they name rows of other tables, which may be many.
        and not isinstance(error, (ProtectedError, RestrictedError))
        and contention_code(error) is None
        and is_refusal(error)
        and not target.dialect.connection.needs_rollback
    )


def _may_be_sent(target: ClaimTarget) -> bool:
    """Say whether the table takes statements like ours at all: no column is missing, and it may be written."""
    table, nothing = target.table, SQL("1 = 0")
    same = [table.assign(field, SQL(table.column(field))) for field in target.columns.guarded]
    columns = table.list_of(target.columns.owner._meta.local_concrete_fields)
    try:
        with target.dialect.own_transaction():
            target.dialect.run(
                sql("UPDATE {} SET {} WHERE {}", table.name, SQL.join(", ", same), nothing)
            )
            target.dialect.fetch(sql("SELECT {} FROM {} WHERE {}", columns, table.name, nothing))
    except DatabaseError:
        return False
    return True


# What is remembered

#: By database and table, the rows that were refused.
remembered: dict[tuple[str, type[models.Model]], dict[Key, Refusal]] = {}


def _remember(target: ClaimTarget, key: Key, error: Exception) -> None:
    refusal = Refusal(target.model._meta.label, key, describe(error), clock())
    known = remembered.setdefault((target.alias, target.columns.owner), {})
    known.pop(key, None)
    known[key] = refusal
    for oldest in list(known)[:-MOST_REMEMBERED]:
        known.pop(oldest, None)
    logger.error(
        "%s %s %s: %s. Other rows go on; this one stays as it is and is tried again in a minute. Mend"
        " the row, or the check or trigger that refuses it.",
        refusal.label,
        key,
        REFUSED,
        refusal.error.rstrip("."),
        extra={
            "event": "refused",
            "model": refusal.label,
            "keys": [str(key)],
            "error": refusal.error,
        },
    )


def refusals(model: type[models.Model], alias: str, since: float | None = None) -> list[Refusal]:
    """Return the rows of *model* that were refused in this process lately, or *since* a moment of ``clock()``."""
    after = clock() - REMEMBERED if since is None else since
    known = remembered.get((alias, claim_columns(model).owner), {})
    return [one for one in list(known.values()) if one.at >= after]


def is_refused(model: type[models.Model], alias: str, key: Key) -> bool:
    """Say whether this row was refused lately."""
    if not remembered:
        return False
    found = remembered.get((alias, claim_columns(model).owner), {}).get(key)
    return found is not None and clock() - found.at <= REMEMBERED


def last_refusal(alias: str) -> str:
    """Say which row was refused last in this process; empty where none was lately."""
    found = [
        one for place, owner in list(remembered) if place == alias for one in refusals(owner, alias)
    ]
    return str(max(found, key=lambda one: one.at)) if found else ""


def without_refused(queryset: Q) -> Q:
    """Return *queryset* without the rows that were refused lately."""
    found = refusals(queryset.model, queryset.db) if remembered else []
    return queryset.exclude(pk__in=[one.key for one in found]) if found else queryset
