"""What every database must be able to do for a claim, and how where nothing special is known.

A dialect sends statements and reports which rows they touched. What a row's next state is, the querysets decide.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler

from django_taskclaim.contention import Meaning, meaning_of
from django_taskclaim.db.session import Session
from django_taskclaim.db.sql import (
    SKIP,
    SQL,
    VALUES,
    Change,
    Fields,
    Key,
    Keys,
    KeyTable,
    OwnValues,
    Raw,
    Row,
    Rows,
    Table,
    both,
    sql,
    unqualified,
    value,
)
from django_taskclaim.fields import AnyField, as_utc, moment_reader
from django_taskclaim.states import Status

#: The rows of this table are the advisory locks of databases that have none for a transaction.
NAMED_LEASES = "taskclaim_namedlease"

CANDIDATES = "taskclaim_candidates"

T = TypeVar("T")


# Claims: the text, made once, and the rows that it returns, by role


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
    #: The whole claim, for databases that claim by one statement.
    whole: SQL


#: What one claim binds in a statement: its ``limit`` and ``holder``, its ``lease`` in seconds, and what the candidates
#: name.
Values = Mapping[str, Any]


def bind(part: SQL, values: Values) -> SQL:
    """Return a part of a cached statement with the values of one claim."""
    params = [values[one.name] if type(one) is Bound else one for one in part.params]
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


# What each database does


class Dialect(Session):
    """How one connection claims, ends and renews; one subclass for each database."""

    #: The clock of the database, in UTC, in the stored form of a moment.
    now: ClassVar[str]
    #: The moment that lies a number of seconds from now; the number replaces the ``{}``.
    moment_after: ClassVar[str]
    #: Whether ``open_transactions`` works; checks ask this without a server.
    names_open_transactions: ClassVar[bool] = False
    #: Whether a transaction that writes keeps all others from writing, as in a database without a server.
    has_one_writer: ClassVar[bool] = False
    #: The most rows in one statement: MariaDB makes a table of a thousand keys, and may then scan ours from the start;
    #: SQLite refuses a condition of a thousand terms.
    MOST_KEYS: ClassVar[int] = 500
    greatest: ClassVar[str] = "GREATEST"
    lock_clause: ClassVar[str] = "FOR UPDATE"
    #: Whether an UPDATE returns the rows that it wrote, so that one statement claims.
    returns_updated: ClassVar[bool] = True
    #: Whether Django's DELETE by many keys may scan a small table, and wait for rows that others have locked.
    walks_small_tables: ClassVar[bool] = False
    #: Whether ``(a, b) > (1, 2)`` is found by an index over a and b.
    seeks_row_values: ClassVar[bool] = True

    # Sending statements

    def fetch(self, statement: SQL) -> list[Raw]:
        """Run a statement and return all its rows, so that nothing stays half executed."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement.text, statement.params)
            return list(cursor.fetchall())

    def run(self, statement: SQL) -> int:
        """Run a statement and return how many rows it matched."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement.text, statement.params)
            return int(cursor.rowcount)

    def may_be_done(self, error: Exception) -> bool:
        """Say whether the statement, or the COMMIT, that *error* came from may have been carried out all the same."""
        return meaning_of(error) is not Meaning.REFUSAL

    # The clock

    def later(self, wait: timedelta) -> SQL:
        """Return the moment *wait* from now."""
        return SQL(self.moment_after.format("%s"), (wait.total_seconds(),))

    def current_time(self) -> datetime:
        """Return what the clock of the database says, in UTC."""
        ((now,),) = self.fetch(SQL(f"SELECT {self.now}"))
        return as_utc(moment_reader(self.connection)(now) or now)

    def wait_to_write(self, table: KeyTable) -> None:
        """Wait until rows of the table can be written, as by a renewal, and write none.

        Questions may be answered all the while: beside SQLite's one writer, or beside a migration that locks the table.
        On SQLite an open transaction is the one writer from then on.
        """
        # A claim column, where there is one: PostgreSQL refuses to have some keys written.
        column = table.column(getattr(table.columns, "iteration", table.columns.key[0]))
        self.run(SQL(f"UPDATE {table.name} SET {column} = {column} WHERE 1 = 0"))

    @property
    def can_autocommit(self) -> bool:
        """Whether a single statement needs no transaction around it: a third of the round trips.

        None is open, and the statement sees each other commit at once, as ours must. SQLite's one writer waits for the
        writer before it, and only then reads.
        """
        return not self.connection.in_atomic_block and self.connection.get_autocommit()

    # Tables

    def chunk_size(self, table: KeyTable, per_key: int = 0) -> int:
        """Return how many rows a statement may have: no more than the database takes parameters for."""
        most = self.connection.features.max_query_params
        taken = (most - 40) // (len(table.key) + per_key) if most else self.MOST_KEYS
        return max(1, min(self.MOST_KEYS, taken))

    def chunks(self, keys: Sequence[T], table: KeyTable, per_key: int = 0) -> Iterator[Sequence[T]]:
        """Cut *keys* into what one statement may have."""
        size = self.chunk_size(table, per_key)
        for start in range(0, len(keys), size):
            yield keys[start : start + size]

    # Claiming

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
        whole = self.update_free(table, first, assignments, table.beside_key(ours), fields)
        return ClaimStatement(table, fields, chosen, condition, ours, assignments, simple, whole)

    def update_free(
        self, table: Table, chosen: SQL, assignments: SQL, condition: SQL, returned: Fields
    ) -> SQL:
        """Return the one UPDATE of those *chosen* by a SELECT that nobody has locked and that match *condition*.

        MATERIALIZED matters: a nested loop runs a plain sub-select again and again, and each run locks another
        LIMIT rows (200 rows for 5 asked were seen).
        """
        return sql(
            "WITH {} AS MATERIALIZED ({}) UPDATE {} SET {} FROM {} WHERE {} AND {} RETURNING {}",
            CANDIDATES,
            self.locking(chosen, table),
            table.name,
            assignments,
            CANDIDATES,
            table.same_key(CANDIDATES, table.key),
            condition,
            table.shown(returned),
        )

    def claim(self, statement: ClaimStatement, values: Values) -> list[ClaimedRow]:
        """Claim up to ``limit`` rows by one statement, and return them in no particular order."""
        table, fields = statement.table, statement.fields
        rows = table.python_rows(fields, self.fetch(bind(statement.whole, values)))
        return rows_by_role(fields, table, rows)

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

    # Reading and locking

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

    def locking(self, rows: SQL, table: KeyTable, *, deleting: bool = False) -> SQL:
        """Let a SELECT lock the rows of *table* that it returns, and pass over those that somebody has locked."""
        if self.has_one_writer:
            # The immediate transaction that this runs in is the lock.
            return rows
        # Nobody may begin to refer to a row that will be deleted: the DELETE would wait for that transaction.
        clause = "FOR UPDATE" if deleting else self.lock_clause
        return sql("{} {} OF {}{}", rows, clause, unqualified(table.name), SKIP)

    def select(self, table: KeyTable, fields: Fields, condition: SQL, lock: str = "") -> list[Row]:
        """Return *fields* of the rows that match, by key.

        *lock* locks them first: ``WAIT`` or ``SKIP`` says what happens to rows that another transaction has locked.
        """
        if lock and self.has_one_writer:
            # The caller's transaction may be a deferred one.
            self.wait_to_write(table)
            lock = ""
        statement = sql(
            "SELECT {} FROM {} WHERE {} ORDER BY {}{}",
            table.shown(fields),
            self.update_target(table) if lock else table.name,
            condition,
            table.key_list,
            f" {self.lock_clause}{lock}" if lock else "",
        )
        return table.python_rows(fields, self.fetch(statement))

    def select_keys(
        self, table: KeyTable, keys: Keys, condition: SQL | None = None, lock: str = ""
    ) -> list[Key]:
        """Return those of *keys* whose rows are there and match *condition*; see ``select``."""
        if not keys:
            return []
        matching = both(table.keyed(keys), condition)
        return table.keys_of(self.select(table, table.columns.key, matching, lock))

    def update_target(self, table: KeyTable) -> str:
        """Name the table in a statement that finds its rows by key, to write or to lock them."""
        return table.name

    # Writing

    def write(
        self, table: KeyTable, keys: Keys, change: Change | None, condition: SQL | None = None
    ) -> int:
        """Write the rows with these keys that match *condition*, or delete them (None), and return how many."""
        return self.run(self.writing(table, keys, change, condition))

    def written(self, table: Table, statement: SQL, keys: Keys) -> Keys | None:
        """Send a fenced statement that writes the rows with these keys, and return the keys of those that it wrote.

        None, where fewer were written than named and nothing says which: the statement must then be rolled back.
        """
        if len(keys) > 1 and self.returns_updated:
            rows = self.fetch(SQL(f"{statement.text} RETURNING {table.key_list}", statement.params))
            return keys if len(rows) == len(keys) else table.python_keys(rows)
        # For a single row the count is enough, and costs less. For several it only says whether all were written.
        if self.run(statement) == len(keys):
            return keys
        return [] if self.returns_updated else None

    def renew_held(self, table: Table, keys: Keys, fence: SQL, lease: timedelta) -> Keys:
        """Extend the leases within their *fence*, but for rows that somebody has locked, and return their keys."""
        extension = self.extension(table, lease)
        if not self.returns_updated:
            held = self.select_keys(table, keys, fence, SKIP)
            if held:
                self.write(table, held, Change([extension]), fence)
            return held
        standing = sql(
            "SELECT {0} FROM {1} WHERE {2} ORDER BY {0}",
            table.key_list,
            table.name,
            both(table.keyed(keys), fence),
        )
        update = self.update_free(table, standing, extension, fence, table.columns.key)
        return table.python_keys(self.fetch(update))

    def extension(self, table: Table, lease: timedelta) -> SQL:
        """Return the SET of a renewal: never earlier than the expiry that stands."""
        column = table.columns.expires_at
        name, end = table.column(column), self.later(lease)
        later = f"{self.greatest}(COALESCE({table.name}.{name}, {end.text}), {end.text})"
        return SQL(f"{name} = {later}", (*end.params, *end.params))

    def writing(
        self, table: KeyTable, keys: Keys, change: Change | None, condition: SQL | None = None
    ) -> SQL:
        """Return the UPDATE, or the DELETE, of the rows with these keys that also match *condition*.

        Columns with a value for each row are joined to the table: a CASE would grow with the square of the rows.
        """
        if change is None:
            return sql("DELETE FROM {} WHERE {}", table.name, both(table.keyed(keys), condition))
        if len(keys) == 1 or not change.own:
            return sql(
                "UPDATE {} SET {} WHERE {}",
                self.update_target(table),
                change.assignments(table),
                both(table.keyed(keys), condition),
            )
        names = [f"k{n}" for n in range(len(table.key))]
        return sql(
            "WITH {} ({}) AS (VALUES ({})) UPDATE {} SET {} FROM {} WHERE {}",
            VALUES,
            ", ".join([*names, *[f"v{n}" for n in range(len(change.own))]]),
            SQL.join("), (", self.value_rows(table, keys, change.own)),
            table.name,
            change.assignments(table, joined=True),
            VALUES,
            both(SQL(table.same_key(VALUES, names)), condition),
        )

    def value_rows(self, table: KeyTable, keys: Keys, own: Sequence[OwnValues]) -> list[SQL]:
        """Return the key of each row and its own values, as items of a list."""
        marks = ["%s"] * len(table.key)
        given = zip(*[one.values for one in own], strict=True) if own else [()] * len(keys)
        return [
            SQL(
                ", ".join([*marks, *[cell.text for cell in cells]]),
                (*key, *[param for cell in cells for param in cell.params]),
            )
            for key, cells in zip(table.prepared_keys(keys), given, strict=True)
        ]

    def insert_selected(self, table: KeyTable, rows: Rows, values: Mapping[AnyField, Any]) -> int:
        """Insert into each of these columns the expression beside it, of each of *rows*, and return how many."""
        named = {f"taskclaim_{number}": one for number, one in enumerate(values.values())}
        chosen = rows.annotate(**named).values_list(*named).query
        text, params = chosen.get_compiler(connection=self.connection).as_sql()
        into = ", ".join(map(table.column, values))
        return self.run(SQL(f"INSERT INTO {table.name} ({into}) {text}", tuple(params)))
