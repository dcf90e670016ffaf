"""SQL text for one table on one connection, and the statements of a verb over rows that are found by their keys.

Names are quoted as Django quotes them, and every statement is sent with parameters. Nothing is decided here: a
statement is sent, and the rows that it touched are reported.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import chain
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from django.conf import settings
from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler

from django_taskclaim.columns import ClaimColumns, KeyColumns, unlinked
from django_taskclaim.fields import AnyField, MomentField, moment_reader
from django_taskclaim.states import Status, Token

T = TypeVar("T")

Key = Any

Keys: TypeAlias = Sequence[Key]
Fields: TypeAlias = Sequence[AnyField]
Rows: TypeAlias = "models.QuerySet[Any]"

#: The values of one row, in the order of the columns asked for: as the driver gives them, and as Python shows them.
Raw: TypeAlias = tuple[Any, ...]
Row: TypeAlias = list[Any]

#: What one claim binds in a statement: its ``limit`` and ``holder``, its ``lease`` in seconds, and what the candidates
#: name.
Values = Mapping[str, Any]

#: Stands for all transactions that wait for the second phase of their commit: they cannot be told apart.
PREPARED = "prepared"


#: Columns whose whole numbers are sent as they are.
PLAIN_INTEGERS = {
    models.AutoField,
    models.BigAutoField,
    models.SmallAutoField,
    models.IntegerField,
    models.BigIntegerField,
    models.SmallIntegerField,
}


#: The name of the VALUES that an UPDATE or a DELETE joins.
VALUES = "taskclaim_values"

CANDIDATES = "taskclaim_candidates"

#: What a SELECT does about rows that another transaction has locked.
WAIT, SKIP = " ", " SKIP LOCKED"


class SQL(NamedTuple):
    """A piece of a statement and the values bound in it."""

    text: str
    params: Raw = ()

    def bind(self, values: Values) -> "SQL":
        """Return a part of a cached statement with the values of one claim."""
        params = [values[one.name] if type(one) is Bound else one for one in self.params]
        return SQL(self.text, tuple(params))

    @classmethod
    def join(cls, separator: str, pieces: Iterable["SQL"]) -> "SQL":
        """Put *pieces* together with *separator* between them."""
        parts = list(pieces)
        texts = separator.join([part.text for part in parts])
        return cls(texts, tuple(chain.from_iterable([part.params for part in parts])))


#: The condition that all rows match.
ALL = SQL("1 = 1")


def sql(template: str, *pieces: "SQL | str") -> SQL:
    """Fill the ``{}`` of *template* with *pieces*, keeping the bound values in the order of the text."""
    parts = [piece if isinstance(piece, SQL) else SQL(piece) for piece in pieces]
    params = tuple(chain.from_iterable([part.params for part in parts]))
    return SQL(template.format(*[part.text for part in parts]), params)


def value(bound: object) -> SQL:
    """Return a bound value as a piece of a statement."""
    return SQL("%s", (bound,))


def unqualified(name: str) -> str:
    """Return a quoted table name without its schema, as PostgreSQL's lock clauses and plans want it."""
    _, schema_ends, last = name.rpartition('"."')
    return f'"{last}' if schema_ends else name


#: Columns in which each row gets a value of its own, in the order of the rows' keys.
OwnValues: TypeAlias = Mapping[AnyField, Sequence[SQL]]


class Change(NamedTuple):
    """What one UPDATE sets: assignments that are alike for all rows, and columns that are not."""

    shared: Sequence[SQL]
    own: OwnValues = {}

    def assignments(self, table: "KeyTable", *, joined: bool = False) -> SQL:
        """Return the SET list for a single row, or, if a list of values is *joined*, for several."""
        own = [
            sql("{} = {}", table.column(field), f"{VALUES}.v{n}" if joined else values[0])
            for n, (field, values) in enumerate(self.own.items())
        ]
        return SQL.join(", ", [*self.shared, *own])


class KeyTable:
    """A table whose rows are found by their key, as one connection spells it."""

    columns: KeyColumns

    def __init__(self, columns: KeyColumns, connection: BaseDatabaseWrapper) -> None:
        self.columns = columns
        self.connection = connection
        #: By the fields of the rows: Django's converters, where the moments are, and what reads these.
        self._converters: dict[Hashable, Any] = {}
        self.name = connection.ops.quote_name(columns.owner._meta.db_table)
        self.key = [self.column(field) for field in columns.key]
        self.key_list = ", ".join(map(self.qualified, columns.key))
        #: Whether keys are whole numbers, which need no conversion.
        self.has_plain_key = len(columns.key) == 1 and type(columns.key[0]) in PLAIN_INTEGERS

    @cached_property
    def sorts_as_python(self) -> bool:
        """Whether Python puts keys into the order that the database has them in: no text, which has a collation."""
        kinds = {type(field) for field in map(unlinked, self.columns.key)}
        # The native UUID of MariaDB has an order of its own.
        is_native = self.connection.features.has_native_uuid_field
        sorts = self.connection.vendor != "mysql" or not is_native
        return kinds <= (PLAIN_INTEGERS | {models.UUIDField} if sorts else PLAIN_INTEGERS)

    def column(self, field: AnyField) -> str:
        """Return the quoted name of the field's column."""
        return self.connection.ops.quote_name(str(field.column))

    def qualified(self, field: AnyField) -> str:
        """Return the column's name with the table in front of it."""
        return f"{self.name}.{self.column(field)}"

    def shown(self, fields: Fields) -> str:
        """Return columns as a SELECT or a RETURNING names them whose rows ``python_rows`` takes.

        PostgreSQL's driver reads each moment by itself, in Python. As text those that are the same are read once.
        """
        as_text = "::text" if self.connection.vendor == "postgresql" else ""
        named = [self.qualified(one) + as_text * (type(one) is MomentField) for one in fields]
        return ", ".join(named)

    def keyed(self, keys: Keys) -> SQL:
        """Match the rows with these keys."""
        if self.has_plain_key and len(keys) > 1 and set(map(type, keys)) == {int}:
            # Many bound values cost the driver more than the statement costs the server, so they are in the text.
            # With a single one the text is the same for all rows, so the driver parses it only once.
            return SQL(f"{self.key_list} IN ({', '.join(map(str, keys))})")
        params = tuple(chain.from_iterable(self.prepared_keys(keys)))
        if len(self.key) == 1:
            return SQL(f"{self.key_list} IN ({', '.join(['%s'] * len(params))})", params)
        if self.connection.vendor == "sqlite":
            # An OR of a thousand is too deep for SQLite. It uses the index for a SELECT of VALUES, not for VALUES.
            row = f"({', '.join(['%s'] * len(self.key))})"
            listed = ", ".join([row] * len(keys))
            return SQL(f"({self.key_list}) IN (SELECT * FROM (VALUES {listed}))", params)
        # MariaDB reads the whole index for an IN of one row of values.
        each = " AND ".join(f"{self.name}.{column} = %s" for column in self.key)
        return SQL("(" + " OR ".join([f"({each})"] * len(keys)) + ")", params)

    def same_key(self, other: str, names: Sequence[str]) -> str:
        """Match the row whose key the table *other* has in its columns *names*."""
        pairs = zip(self.key, names, strict=True)
        return " AND ".join([f"{self.name}.{own} = {other}.{name}" for own, name in pairs])

    def prepared_keys(self, keys: Keys) -> list[Raw]:
        """Return the values of each key as the driver wants them."""
        if self.has_plain_key and set(map(type, keys)) == {int}:
            return [(key,) for key in keys]
        return [
            tuple(
                field.get_db_prep_value(part, self.connection, prepared=False)
                for field, part in zip(self.columns.key, parts, strict=True)
            )
            for parts in (keys if len(self.key) > 1 else [(key,) for key in keys])
        ]

    def saved(self, field: AnyField, rows: Sequence[models.Model]) -> list[SQL]:
        """Bind the values that the instances have in *field*, prepared as ``save()`` does."""
        given = [field.pre_save(row, False) for row in rows]
        for kind in set(map(type, given)):
            if hasattr(kind, "resolve_expression"):
                one = next(one for one in given if type(one) is kind)
                raise TypeError(
                    f"update_fields writes values; {field.name} holds the expression {one!r}."
                )
        # Django's own expression costs more, and is needed where a field writes more than the value.
        if hasattr(field, "get_placeholder_sql") or hasattr(field, "get_placeholder"):
            return [self._expression(field, one) for one in given]
        return [value(field.get_db_prep_save(one, self.connection)) for one in given]

    def _expression(self, field: AnyField, given: object) -> SQL:
        compiler = models.sql.Query(self.columns.owner).get_compiler(connection=self.connection)
        expression = models.Value(given, output_field=field)
        expression.for_save = True
        text, params = compiler.compile(expression)
        return SQL(text, tuple(params))

    def where_of(self, queryset: Rows) -> SQL | None:
        """Return the queryset's condition as text, None where it can match nothing."""
        compiler = queryset.query.get_compiler(connection=self.connection)
        try:
            compiler.pre_sql_setup()
            text, params = compiler.compile(queryset.query.where)
        except EmptyResultSet:
            return None
        except FullResultSet:
            return ALL
        return SQL(text, tuple(params)) if text else ALL

    def python_rows(self, fields: Fields, raw: Iterable[Raw]) -> list[Row]:
        """Turn what the driver returned for *fields* into what Django would show."""
        # The converters of moments follow the settings. Ids are used because hashing a field takes longer.
        kind = (*map(id, fields), settings.USE_TZ, settings.TIME_ZONE)
        if kind not in self._converters:
            compiler = models.sql.Query(self.columns.owner).get_compiler(connection=self.connection)
            others = compiler.get_converters([field.get_col(self.name) for field in fields])
            moments = [place for place, field in enumerate(fields) if type(field) is MomentField]
            for place in moments:
                others.pop(place, None)
            convert = partial(compiler.apply_converters, converters=others) if others else None
            self._converters[kind] = convert, moments, moment_reader(self.connection)
        convert, moments, read = self._converters[kind]
        rows = [list(row) for row in raw] if convert is None else list(convert(raw))
        for place in moments:
            # A moment that is the same in row after row, as those of one claim are, is read once.
            given = shown = None
            for row in rows:
                if row[place] != given:
                    given, shown = row[place], read(row[place])
                row[place] = shown
        return rows

    def python_keys(self, raw: Iterable[Raw]) -> list[Key]:
        """Turn returned key columns into keys: plain values, tuples for composite keys."""
        if self.has_plain_key:
            return [row[0] for row in raw]
        return [self.key_of(row) for row in self.python_rows(self.columns.key, raw)]

    def key_of(self, row: Sequence[object]) -> Key:
        """Return the key of a row whose first columns are the key's."""
        width = len(self.key)
        return tuple(row[:width]) if width > 1 else row[0]


class Table(KeyTable):
    """The table that holds a model's claim columns, as one connection spells it."""

    columns: ClaimColumns

    def __init__(self, columns: ClaimColumns, connection: BaseDatabaseWrapper) -> None:
        super().__init__(columns, connection)
        self.model_table = columns.owner._meta.db_table
        #: The status in a condition beside the keys of rows, where no index on it is used to find them. PostgreSQL, by
        #: statistics of a time without claims, would read the entries of all rows done since the last vacuum for each
        #: completion, and SQLite, without statistics, those of all open rows.
        status = self.qualified(columns.status)
        unindexed = {"sqlite": f"+{status}", "postgresql": f"({status} || '')"}
        self.status = unindexed.get(connection.vendor, status)
        holder, iteration = self.qualified(columns.claimed_by), self.qualified(columns.iteration)
        is_running = f"{self.status} = '{Status.PROCESSING.value}'"
        self.fence = f"{is_running} AND {holder} = %s AND {iteration} = %s"

    def beside_key(self, condition: SQL) -> SQL:
        """Return a condition as it stands beside the keys of the rows, by which these are found; see ``status``."""
        text = condition.text.replace(self.qualified(self.columns.status), self.status)
        return SQL(text, condition.params)

    def in_state(self, state: Status) -> SQL:
        """Match rows in this state; a literal, so that a partial index is found to fit."""
        return SQL(f"{self.qualified(self.columns.status)} = '{state.value}'")

    def standing(self, token: Token) -> SQL:
        """Match rows whose claim is still the one that *token* names: the fence."""
        return SQL(self.fence, (token.holder, token.iteration))


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

    def by_role(self, rows: Sequence[Row]) -> list[ClaimedRow]:
        """Return rows of the statement's fields as rows by role."""
        columns, at = self.table.columns, {field: place for place, field in enumerate(self.fields)}
        keys, iteration = [at[field] for field in columns.key], at[columns.iteration]
        attempts = iteration if columns.attempts is None else at[columns.attempts]
        waiting = None if columns.not_before is None else at[columns.not_before]
        priority = None if columns.priority is None else at[columns.priority]
        first, is_single = keys[0], len(keys) == 1
        # A call of the class would be a call of Python's for each row.
        new = tuple.__new__
        return [
            new(
                ClaimedRow,
                (
                    row[first] if is_single else tuple([row[place] for place in keys]),
                    row[iteration],
                    row[attempts],
                    None if waiting is None else row[waiting],
                    None if priority is None else row[priority],
                    row,
                ),
            )
            for row in rows
        ]


# Statements


class Statements:
    """The statements that one connection sends for the verbs, and how where nothing special is known."""

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

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection

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

    def later(self, wait: timedelta) -> SQL:
        """Return the moment *wait* from now."""
        return SQL(self.moment_after.format("%s"), (wait.total_seconds(),))

    @property
    def can_autocommit(self) -> bool:
        """Whether a single statement needs no transaction around it: a third of the round trips.

        None is open, and the statement sees each other commit at once, as ours must. SQLite's one writer waits for the
        writer before it, and only then reads.
        """
        return not self.connection.in_atomic_block and self.connection.get_autocommit()

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

    def claim(self, statement: ClaimStatement, values: Values) -> list[ClaimedRow]:
        """Claim up to ``limit`` rows by one statement, and return them in no particular order."""
        raw = self.fetch(statement.whole.bind(values))
        return statement.by_role(statement.table.python_rows(statement.fields, raw))

    def update_free(
        self, table: Table, chosen: SQL, assignments: SQL, condition: SQL, returned: str
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
            returned,
        )

    def locking(self, rows: SQL, table: KeyTable, *, deleting: bool = False) -> SQL:
        """Let a SELECT lock the rows of *table* that it returns, and pass over those that somebody has locked."""
        if self.has_one_writer:
            # The immediate transaction that this runs in is the lock.
            return rows
        # Nobody may begin to refer to a row that will be deleted: the DELETE would wait for that transaction.
        clause = "FOR UPDATE" if deleting else self.lock_clause
        return sql("{} {} OF {}{}", rows, clause, unqualified(table.name), SKIP)

    def wait_to_write(self, table: KeyTable) -> None:
        """Wait until rows of the table can be written, as by a renewal, and write none.

        Questions may be answered all the while: beside SQLite's one writer, or beside a migration that locks the table.
        On SQLite an open transaction is the one writer from then on.
        """
        # A claim column, where there is one: PostgreSQL refuses to have some keys written.
        column = table.column(getattr(table.columns, "iteration", table.columns.key[0]))
        self.run(SQL(f"UPDATE {table.name} SET {column} = {column} WHERE 1 = 0"))

    def select(self, table: KeyTable, fields: Fields, condition: SQL, lock: str = "") -> list[Row]:
        """Return *fields* of the rows that match, by key.

        *lock* locks them first: ``WAIT`` or ``SKIP`` says what happens to rows that another transaction has locked.
        """
        if lock and self.has_one_writer:
            # The caller's transaction may be a deferred one.
            self.wait_to_write(table)
            lock = ""
        source, locking = table.name, ""
        if lock:
            source, locking = self.update_target(table), f" {self.lock_clause}{lock}"
        text = (
            f"SELECT {table.shown(fields)} FROM {source} WHERE {condition.text}"
            f" ORDER BY {table.key_list}{locking}"
        )
        return table.python_rows(fields, self.fetch(SQL(text, condition.params)))

    def select_keys(
        self, table: KeyTable, keys: Keys, condition: SQL = ALL, lock: str = ""
    ) -> list[Key]:
        """Return those of *keys* whose rows are there and match *condition*; see ``select``."""
        if not keys:
            return []
        matching = sql("{} AND {}", table.keyed(keys), condition)
        rows = self.select(table, table.columns.key, matching, lock)
        return [table.key_of(row) for row in rows]

    def update_target(self, table: KeyTable) -> str:
        """Name the table in a statement that finds its rows by key, to write or to lock them."""
        return table.name

    # Writing

    def write(
        self, table: KeyTable, keys: Keys, change: Change | None, condition: SQL = ALL
    ) -> int:
        """Write the rows with these keys that match *condition*, or delete them (None), and return how many."""
        return self.run(self.writing(table, keys, change, condition))

    def write_held(
        self, table: Table, keys: Keys, fence: SQL, change: Change | None
    ) -> Keys | None:
        """Write the rows with these keys within their *fence*, or delete them (None), and return the keys of those.

        None, where fewer were written than named and nothing says which: the statement must then be rolled back.
        """
        statement = self.writing(table, keys, change, fence)
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
        listed, standing = table.key_list, sql("{} AND {}", table.keyed(keys), fence)
        text = f"SELECT {listed} FROM {table.name} WHERE {standing.text} ORDER BY {listed}"
        chosen = SQL(text, standing.params)
        rows = self.fetch(self.update_free(table, chosen, extension, fence, listed))
        return keys if len(rows) == len(keys) else table.python_keys(rows)

    def extension(self, table: Table, lease: timedelta) -> SQL:
        """Return the SET of a renewal: never earlier than the expiry that stands."""
        name, end = table.column(table.columns.expires_at), self.moment_after.format("%s")
        later = f"{self.greatest}(COALESCE({table.name}.{name}, {end}), {end})"
        return SQL(f"{name} = {later}", (lease.total_seconds(),) * 2)

    def writing(
        self, table: KeyTable, keys: Keys, change: Change | None, condition: SQL = ALL
    ) -> SQL:
        """Return the UPDATE, or the DELETE, of the rows with these keys that also match *condition*.

        Columns with a value for each row are joined to the table: a CASE would grow with the square of the rows.
        """
        if change is None:
            return sql("DELETE FROM {} WHERE {} AND {}", table.name, table.keyed(keys), condition)
        if len(keys) == 1 or not change.own:
            return sql(
                "UPDATE {} SET {} WHERE {} AND {}",
                self.update_target(table),
                change.assignments(table),
                table.keyed(keys),
                condition,
            )
        names = [f"k{n}" for n in range(len(table.key))]
        return sql(
            "WITH {} ({}) AS ({}) UPDATE {} SET {} FROM {} WHERE {} AND {}",
            VALUES,
            ", ".join([*names, *[f"v{n}" for n in range(len(change.own))]]),
            self.listed(table, keys, change.own),
            table.name,
            change.assignments(table, joined=True),
            VALUES,
            table.same_key(VALUES, names),
            condition,
        )

    def listed(self, table: KeyTable, keys: Keys, own: OwnValues) -> SQL:
        """Return what reads as a table of the keys of rows and their own values."""
        return sql("VALUES ({})", SQL.join("), (", self.value_rows(table, keys, own)))

    def value_rows(self, table: KeyTable, keys: Keys, own: OwnValues) -> list[SQL]:
        """Return the key of each row and its own values, as items of a list."""
        marks = ["%s"] * len(table.key)
        given = zip(*own.values(), strict=True) if own else [()] * len(keys)
        return [
            SQL(
                ", ".join([*marks, *[cell.text for cell in cells]]),
                (*key, *[param for cell in cells for param in cell.params]),
            )
            for key, cells in zip(table.prepared_keys(keys), given, strict=True)
        ]
