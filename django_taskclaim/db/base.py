"""What every database must be able to do for a claim beside sending it, and how where nothing special is known.

A dialect sends statements and reports which rows they touched. What a row's next state is, the querysets decide.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.core.exceptions import EmptyResultSet

from django_taskclaim.contention import Meaning, meaning_of
from django_taskclaim.db.sql import (
    SQL,
    Bound,
    ClaimStatement,
    Fields,
    Key,
    KeyTable,
    Rows,
    Statements,
    Table,
    sql,
    value,
)
from django_taskclaim.fields import AnyField, as_utc, moment_reader
from django_taskclaim.states import Status

#: The rows of this table are the advisory locks of databases that have none for a transaction.
NAMED_LEASES = "taskclaim_namedlease"


class Dialect(Statements):
    """How one connection claims, ends and renews; one subclass for each database."""

    def may_be_done(self, error: Exception) -> bool:
        """Say whether the statement, or the COMMIT, that *error* came from may have been carried out all the same."""
        return meaning_of(error) is not Meaning.REFUSAL

    def current_time(self) -> datetime:
        """Return what the clock of the database says, in UTC."""
        ((now,),) = self.fetch(SQL(f"SELECT {self.now}"))
        return as_utc(moment_reader(self.connection)(now) or now)

    # Claims are made from querysets

    def prepare_claim(
        self,
        table: Table,
        candidates: Rows,
        claimable: Rows,
        fields: Fields,
        *,
        simple: bool,
        mark: datetime | None = None,
    ) -> ClaimStatement | None:
        """Return the statement that claims the first of *candidates*, to be cached; None where they can be none.

        *claimable* are the rows of the table that may be claimed, without the caller's filter: the UPDATE repeats
        this condition. *fields* are wanted back of each row. With *mark* its ``not_before`` becomes that moment.
        """
        chosen = self.compiled(candidates, None, table.columns.key)
        condition, ours = table.where_of(candidates), table.where_of(claimable)
        if chosen is None or condition is None or ours is None:
            return None
        assignments = self.claim_assignments(table, mark)
        first = sql("{} LIMIT {}", chosen, value(Bound("limit")))
        whole = self.update_free(
            table, first, assignments, table.beside_key(ours), table.shown(fields)
        )
        return ClaimStatement(table, fields, chosen, condition, ours, assignments, simple, whole)

    def claim_assignments(self, table: Table, mark: datetime | None) -> SQL:
        """Return the SET list of a claim: status first, holder last, for databases that set from left to right."""
        columns = table.columns
        marked = [] if mark is None or columns.not_before is None else [(columns.not_before, mark)]
        return SQL.join(
            ", ",
            [
                table.assign(columns.status, SQL(f"'{Status.PROCESSING.value}'")),
                table.assign(columns.claimed_at, SQL(self.now)),
                table.assign(columns.expires_at, sql(self.moment_after, value(Bound("lease")))),
                *(table.assign(field, table.bound(field, moment)) for field, moment in marked),
                table.assign(columns.claimed_by, value(Bound("holder"))),
            ],
        )

    # Querysets as text

    def compiled(self, queryset: Rows, limit: int | None, fields: Fields) -> SQL | None:
        """Return the SELECT of the first *limit* rows as text, None where it can match nothing."""
        query = queryset.values_list(*(one.attname for one in fields))[:limit].query
        try:
            text, params = query.get_compiler(connection=self.connection).as_sql()
        except EmptyResultSet:
            return None
        return SQL(text, tuple(params))

    def lock_first(
        self, queryset: Rows, table: KeyTable, limit: int, *, deleting: bool = False
    ) -> list[Key]:
        """Lock the first *limit* rows of *queryset* that nobody else has locked, and return their keys.

        Only its ordering may join other tables. *deleting* says that the rows are to go.
        """
        rows = self.compiled(queryset, limit, table.columns.key)
        if rows is None:
            return []
        return table.python_keys(self.fetch(self.locking(rows, table, deleting=deleting)))

    def insert_selected(self, table: KeyTable, rows: Rows, values: Mapping[AnyField, Any]) -> int:
        """Insert into each of these columns the expression beside it, of each of *rows*, and return how many."""
        named = {f"taskclaim_{number}": one for number, one in enumerate(values.values())}
        chosen = rows.annotate(**named).values_list(*named).query
        text, params = chosen.get_compiler(connection=self.connection).as_sql()
        into = ", ".join(map(table.column, values))
        return self.run(SQL(f"INSERT INTO {table.name} ({into}) {text}", tuple(params)))
