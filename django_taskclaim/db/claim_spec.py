"""What one look of ``claim_batch`` asks of the database: its kept statement, the values bound in it, and its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.db.sql import SQL, Key, Table
from django_taskclaim.fields import AnyField


class Bound(models.Expression):
    """The place in a kept statement of a value that differs from claim to claim."""

    def __init__(self, name: str) -> None:
        super().__init__(output_field=models.Field())
        self.name = name

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:  # type: ignore[override]
        return "%s", [self]


class ClaimedRow(NamedTuple):
    """One row that a claim returned, by role; None where the model has no such column."""

    key: Key
    iteration: int
    #: ``iteration`` stands in where the model has no column of its own.
    attempts: int
    not_before: datetime | None
    priority: int | None
    #: The columns asked for, in their order.
    values: Sequence[Any]


class Places(NamedTuple):
    """Where the columns of each role stand among those asked for."""

    key: Sequence[int]
    iteration: int
    attempts: int
    not_before: int | None
    priority: int | None


@dataclass(frozen=True, slots=True)
class ClaimStatement:
    """The text of a claim, made once for all claims that differ in bound values alone."""

    table: Table
    fields: Sequence[AnyField]
    places: Places
    #: The SELECT of the keys of all candidates, in claim order, without a limit.
    candidates: SQL
    #: The whole condition of the candidates, and our part of it, which the UPDATE repeats.
    condition: SQL
    claimable: SQL
    #: What the UPDATE writes; the holder is bound in it.
    assignments: SQL
    #: Whether the candidates follow the model's own order and look at no other table.
    simple: bool
    #: The whole claim, on databases that claim by one statement.
    whole: SQL | None = None
    #: How the columns at these places become what Python shows.
    converters: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A kept statement with the values of one claim."""

    statement: ClaimStatement
    limit: int
    holder: str
    #: Values of the places that the candidates name.
    values: Mapping[str, Any]


def limited(candidates: SQL) -> SQL:
    """Return the SELECT with a limit that is bound."""
    return SQL(f"{candidates.text} LIMIT %s", (*candidates.params, Bound("limit")))


def places_of(fields: Sequence[AnyField], table: Table) -> Places:
    """Return where the roles stand among *fields*."""
    columns, at = table.columns, {field: place for place, field in enumerate(fields)}
    iteration = at[columns.iteration]
    return Places(
        [at[field] for field in columns.key],
        iteration,
        iteration if columns.attempts is None else at[columns.attempts],
        None if columns.not_before is None else at[columns.not_before],
        None if columns.priority is None else at[columns.priority],
    )
