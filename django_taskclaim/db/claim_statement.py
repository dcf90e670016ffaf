"""The text of a claim, made once, and the rows that it returns, by role."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler

from django_taskclaim.db.sql import NO_SQL, SQL, Fields, Key, Row, Table


class Bound(models.Expression):
    """The place in a cached statement of a value that differs from claim to claim."""

    def __init__(self, name: str) -> None:
        super().__init__(output_field=models.Field())
        self.name = name

    def as_sql(  # type: ignore[override]  # older versions of Django want a list
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> tuple[str, list[Any]]:
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
    values: Row


@dataclass(frozen=True, slots=True)
class ClaimStatement:
    """The text of a claim, made once for all claims that differ in bound values alone."""

    table: Table
    fields: Fields
    #: The SELECT of the keys of all candidates, in claim order, without a limit.
    candidates: SQL
    #: The whole condition of the candidates, and our part of it, which the UPDATE repeats.
    condition: SQL
    claimable: SQL
    #: What the UPDATE writes; holder and lease are bound in it.
    assignments: SQL
    #: Whether the candidates follow the model's own order and look at no other table.
    simple: bool
    #: The whole claim, on databases that claim by one statement.
    whole: SQL = NO_SQL

    @property
    def limited_candidates(self) -> SQL:
        """The SELECT of the candidates with a limit that is bound."""
        return SQL(f"{self.candidates.text} LIMIT %s", (*self.candidates.params, Bound("limit")))


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A cached statement with the values of one claim."""

    statement: ClaimStatement
    limit: int
    holder: str
    #: In seconds.
    lease: float
    #: Values of the places that the candidates name.
    values: Mapping[str, Any]

    def bind(self, part: SQL, **values: object) -> SQL:
        """Return a part of the statement with the values of this claim; *values* go before its own."""
        known = {"holder": self.holder, "limit": self.limit, "lease": self.lease}
        given = {**known, **self.values, **values}
        params = [given[one.name] if type(one) is Bound else one for one in part.params]
        return SQL(part.text, tuple(params))


def rows_by_role(fields: Fields, table: Table, rows: Sequence[Row]) -> list[ClaimedRow]:
    """Return rows of the columns *fields*, those with a role among them, as rows by role."""
    columns, at = table.columns, {field: place for place, field in enumerate(fields)}
    keys, iteration = [at[field] for field in columns.key], at[columns.iteration]
    attempts = iteration if columns.attempts is None else at[columns.attempts]
    waiting = None if columns.not_before is None else at[columns.not_before]
    priority = None if columns.priority is None else at[columns.priority]
    first, is_single = keys[0], len(keys) == 1
    return [
        ClaimedRow(
            row[first] if is_single else tuple([row[place] for place in keys]),
            row[iteration],
            row[attempts],
            None if waiting is None else row[waiting],
            None if priority is None else row[priority],
            row,
        )
        for row in rows
    ]
