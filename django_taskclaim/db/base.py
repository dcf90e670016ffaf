"""What every database must be able to do for a claim, and how that is done where nothing special is known.

A dialect sends statements and reports which rows they touched. What a row's next state is, the querysets decide.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from django.core.exceptions import EmptyResultSet
from django.db import InterfaceError, InternalError, OperationalError, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim import conf
from django_taskclaim.columns import ClaimColumns, KeyColumns
from django_taskclaim.contention import refusal_code
from django_taskclaim.db.sql import (
    SKIP,
    SQL,
    VALUES,
    Change,
    Claims,
    Convert,
    Fields,
    Key,
    Keys,
    KeyTable,
    OwnValues,
    Rows,
    Table,
    both,
    converted,
    sql,
    value,
)
from django_taskclaim.fields import AnyField, MomentField, as_utc
from django_taskclaim.states import Status, Token
from django_taskclaim.tables import LIMITS, SWITCH_TABLE

#: Whose rows are the advisory locks of databases that have none of a transaction's.
NAMED_LEASES = "taskclaim_namedlease"

# What a claim asks for, and what it gets


class Bound(models.Expression):
    """The place in a cached statement of a value that differs from claim to claim."""

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
    #: What the UPDATE writes; the holder is bound in it.
    assignments: SQL
    #: Whether the candidates follow the model's own order and look at no other table.
    simple: bool
    #: The whole claim, on databases that claim by one statement.
    whole: SQL | None = None
    #: How the columns at these places become what Python shows.
    converters: Mapping[int, Convert] = field(default_factory=dict)

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
    #: Values of the places that the candidates name.
    values: Mapping[str, Any]

    def bind(self, part: SQL, **values: Any) -> SQL:
        """Return a part of the statement with the values of this claim; *values* go before its own."""
        given = {"holder": self.holder, "limit": self.limit, **self.values, **values}
        params = [given[one.name] if type(one) is Bound else one for one in part.params]
        return SQL(part.text, tuple(params))


def rows_by_role(fields: Fields, table: Table, raw: Sequence[Sequence[Any]]) -> list[ClaimedRow]:
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
        for row in raw
    ]


class Dialect:
    """How one connection claims, ends and renews; one subclass for each database."""

    #: The clock of the database, in UTC, in the stored form of a moment.
    now: ClassVar[str]
    #: The same as whole seconds of Unix time.
    unix_time: ClassVar[str]
    #: The moment that lies as far from now as the amount in place of the ``{}`` says.
    moment_after: ClassVar[str]
    greatest: ClassVar[str] = "GREATEST"
    lock_clause: ClassVar[str] = "FOR UPDATE"
    #: Ways to claim, by the value of the setting CLAIM_STRATEGY.
    strategies: ClassVar[Sequence[str]] = ("auto",)
    #: Whether one statement claims, so that a claim needs no transaction around it.
    claims_in_one_statement: ClassVar[bool] = False
    #: Whether an UPDATE returns the keys of the rows that it wrote.
    returns_updated: ClassVar[bool] = True
    #: Whether ``lock_first`` returns rows in the order of the queryset.
    locks_in_order: ClassVar[bool] = True
    #: Whether a DELETE of Django's by many keys may walk a small table, and wait for rows that others have locked.
    walks_small_tables: ClassVar[bool] = False
    #: Whether ``(a, b) > (1, 2)`` is found by an index over a and b.
    seeks_row_values: ClassVar[bool] = True
    #: Whether ``insert_selected`` can pass over rows whose key is there already, and over nothing else.
    passes_over_duplicates: ClassVar[bool] = False
    #: Whether the database names the transactions that are open, to everybody.
    names_open_transactions: ClassVar[bool] = False
    #: Whether a transaction that writes keeps everybody else from writing anything.
    has_one_writer: ClassVar[bool] = False
    #: Whether a server is asked, which may be away or end a session.
    has_server: ClassVar[bool] = True
    #: Whether the claim index leaves out rows that are complete; see ``indexes``.
    leaves_out_complete: ClassVar[bool] = False

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection

    # Sending statements

    def fetch(self, statement: SQL) -> list[Any]:
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
        return refusal_code(error) is None

    def may_be_of_reading(self, error: Exception) -> bool:
        """Say whether *error* may come from values of a row that cannot be read, and not from a server in trouble."""
        return not isinstance(error, (OperationalError, InterfaceError, InternalError))

    # The clock

    def amount(self, wait: timedelta) -> Any:
        """Return a time to wait as ``moment_after`` takes it."""
        raise NotImplementedError

    def later(self, wait: timedelta) -> SQL:
        """Return the moment *wait* from now."""
        return sql(self.moment_after, value(self.amount(wait)))

    def current_time(self) -> datetime:
        """Return what the clock of the database says, in UTC."""
        ((now,),) = self.fetch(SQL(f"SELECT {self.now}"))
        return as_utc(MomentField().from_db_value(now, None, self.connection) or now)

    def writable_at(self, table: Table) -> datetime:
        """Wait until rows of the table can be written, as by a renewal, and return what the clock says then.

        Questions may be answered all the while: beside SQLite's one writer, or beside a migration that locks the table.
        """
        self.run(sql("UPDATE {} SET {} WHERE 1 = 0", table.name, table.unchanged))
        return self.current_time()

    # Tables

    def table(self, columns: ClaimColumns) -> Table:
        """Return the claim table as this connection spells it."""
        return Table(columns, self.connection)

    def keyed_table(self, columns: KeyColumns) -> KeyTable:
        """Return any table of a model as this connection spells it, its rows told apart by those columns."""
        return KeyTable(columns, self.connection)

    def key_table(self, columns: KeyColumns) -> KeyTable:
        """Return the same of a table whose rows are to be locked; NotSupportedError where no index leads to them."""
        return self.keyed_table(columns)

    def chunk_size(self, table: KeyTable, per_key: int = 0) -> int:
        """Return how many rows a statement may have: CHUNK_SIZE, or as many as the database takes parameters for."""
        size: int = conf.setting("CHUNK_SIZE")
        most = self.connection.features.max_query_params
        return max(1, min(size, (most - 40) // (len(table.key) + per_key))) if most else size

    def chunks(
        self, keys: Sequence[Any], table: KeyTable, per_key: int = 0
    ) -> Iterator[Sequence[Any]]:
        """Cut *keys* into what one statement may have."""
        size = self.chunk_size(table, per_key)
        for start in range(0, len(keys), size):
            yield keys[start : start + size]

    # Transactions and sessions

    @property
    def commits_alone(self) -> bool:
        """Whether a statement outside of a transaction is one that sees each other commit at once, as ours must."""
        # SQLite's one writer waits for the one before it before it reads anything.
        return True

    @contextmanager
    def own_transaction(self, *, durable: bool = False) -> Iterator[None]:
        """Open a transaction that sees each other commit at once (READ COMMITTED).

        Inside a caller's transaction it is a savepoint, or, with *durable*, Django's RuntimeError.
        """
        outermost = not self.connection.in_atomic_block and self.connection.get_autocommit()
        block = transaction.atomic(using=self.connection.alias, durable=durable)
        with ExitStack() as stack:
            with self.beginning() if outermost else nullcontext():
                stack.enter_context(block)
            yield

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Surround the BEGIN of our outermost transaction, and set that up."""
        yield

    @contextmanager
    def kept_whole(self) -> Iterator[None]:
        """Raise a DatabaseError at the end of the block if what it wrote in the open transaction is gone."""
        with savepoint_around(self.connection):
            yield

    @contextmanager
    def guarded_transaction(self, idle: timedelta) -> Iterator[None]:
        """Open a transaction that the server ends, and with it our session, once it has been idle for so long.

        A shorter bound of the session stands, and what it had before counts again afterwards. Durable.
        """
        with self.own_transaction(durable=True):
            yield

    @contextmanager
    def limit_lock_wait(self, seconds: float) -> Iterator[None]:
        """Let the open transaction wait at most *seconds* for a lock in this block, where the database has a limit.

        On PostgreSQL that holds until the transaction ends.
        """
        yield

    def end_idle_transactions(self, idle: timedelta, *, ours_alone: bool) -> None:
        """Let the server end this session once a transaction of it has been idle for so long.

        A process that is frozen in the middle of one would keep its row locks otherwise. *ours_alone* says that no
        code of the user's runs on the connection, so a session that is idle outside a transaction may end as well.
        """

    def limit_idle_session(self, idle: timedelta | None) -> None:
        """Let the server end this session once it has been idle for so long, where it knows no idle transactions."""

    def session_mark(self) -> Any:
        """Return what ``end_session`` finds this connection's new session by; None where nothing can end it."""
        return None

    def end_session(self, mark: Any) -> bool:
        """End another of our sessions: its transaction is rolled back, its locks are freed. False if it is gone.

        Another session that has got its number meanwhile is left alone.
        """
        return False

    def service_options(self) -> dict[str, Any]:
        """Return OPTIONS of a connection that must notice soon when its server is gone."""
        raise NotImplementedError

    def advisory_lock(self, name: str) -> None:
        """Let transactions that name the same wait for each other, until each has ended."""
        raise NotImplementedError

    def sees_new_commits(self) -> bool:
        """Say whether each statement of the open transaction sees what others have committed before it."""
        return True

    def open_transactions(self) -> frozenset[str]:
        """Name what may still commit keys that it has been given by now, where ``names_open_transactions`` says so.

        Until the server starts again no later transaction bears one of these names, but ``PREPARED``, which stands for
        all that are half committed.
        """
        raise NotImplementedError

    # Claiming

    def prepare_claim(
        self,
        table: Table,
        candidates: Rows,
        claimable: Rows,
        fields: Fields,
        lease: timedelta,
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
        assignments = self.claim_assignments(table, lease, mark)
        statement = ClaimStatement(table, fields, chosen, condition, ours, assignments, simple)
        converters = self.claim_converters(table, fields)
        return replace(statement, whole=self.whole_claim(statement), converters=converters)

    def whole_claim(self, statement: ClaimStatement) -> SQL | None:
        """Return the one statement that locks, claims and returns, where the database has one."""
        return None

    def claim(self, spec: ClaimSpec) -> list[ClaimedRow]:
        """Claim up to ``limit`` rows and return them in no particular order."""
        statement = spec.statement
        table, fields, strategy = statement.table, statement.fields, conf.setting("CLAIM_STRATEGY")
        if strategy not in self.strategies:
            raise ValueError(
                f"CLAIM_STRATEGY {strategy!r} is not available on {self.connection.display_name};"
                f" it has {', '.join(self.strategies)}."
            )
        if statement.whole is not None:
            raw = self.fetch(spec.bind(statement.whole))
            return rows_by_role(fields, table, converted(raw, statement.converters))
        parts = self.chunks(self.claim_keys(spec, strategy), table)
        rows = [row for part in parts for row in self.select(table, fields, table.keyed(part))]
        return rows_by_role(fields, table, rows)

    def claim_keys(self, spec: ClaimSpec, strategy: str) -> list[Key]:
        """Claim by more than one statement, in the transaction that is open, and return the keys."""
        raise NotImplementedError

    def claim_assignments(self, table: Table, lease: timedelta, mark: datetime | None) -> SQL:
        """Return the SET list of a claim: status first, holder last, for databases that set from left to right."""
        columns = table.columns
        marked = [] if mark is None or columns.not_before is None else [(columns.not_before, mark)]
        return SQL.join(
            ", ",
            [
                table.assign(columns.status, SQL(f"'{Status.PROCESSING.value}'")),
                table.assign(columns.claimed_at, SQL(self.now)),
                table.assign(columns.expires_at, self.later(lease)),
                *(table.assign(field, table.bound(field, moment)) for field, moment in marked),
                table.assign(columns.claimed_by, value(Bound("holder"))),
            ],
        )

    def claim_converters(self, table: Table, fields: Fields) -> dict[int, Convert]:
        """Return what the values that a whole claim returns are passed through, by place; most need nothing."""
        return table.converters(fields)

    def switch_is_on(self, scopes: Sequence[str], *, unlimited: bool = False) -> SQL:
        """Match only while nobody has paused one of *scopes*; with *unlimited*, nor stored a limit for one."""
        name = self.connection.ops.quote_name
        column = {each: f"taskclaim_s.{name(each)}" for each in ("scope", "paused_at", "until")}
        stops = (
            f"{column['paused_at']} IS NOT NULL"
            f" AND ({column['until']} IS NULL OR {column['until']} > {self.now})"
        )
        limits = [f"taskclaim_s.{name(each)} IS NOT NULL" for each in LIMITS] if unlimited else []
        marks = ", ".join(["%s"] * len(scopes))
        return SQL(
            f"NOT EXISTS (SELECT 1 FROM {name(SWITCH_TABLE)} taskclaim_s"
            f" WHERE {column['scope']} IN ({marks}) AND ({' OR '.join([stops, *limits])}))",
            tuple(scopes),
        )

    def priorities_from(self, table: Table, since: datetime) -> list[int]:
        """Return the priorities of open rows whose ``not_before`` is *since* or later, each found by the index.

        One range over all priorities would read every open row.
        """
        priority, waiting = table.columns.priority, table.columns.not_before
        assert priority is not None, "asked of models that have it"
        assert waiting is not None, "else no row is marked"
        column = table.qualified(priority)
        is_open = f"{table.qualified(table.columns.status)} = '{Status.OPEN.value}'"
        highest = f"SELECT MAX({column}) FROM {table.name} WHERE {is_open}"
        statement = sql(
            f"WITH RECURSIVE taskclaim_p(number) AS ({highest}"
            f" UNION ALL SELECT ({highest} AND {column} < taskclaim_p.number)"
            " FROM taskclaim_p WHERE taskclaim_p.number IS NOT NULL)"
            f" SELECT number FROM taskclaim_p WHERE EXISTS (SELECT 1 FROM {table.name}"
            f" WHERE {is_open} AND {column} = taskclaim_p.number AND {table.qualified(waiting)} >= {{}})",
            table.bound(waiting, since),
        )
        return [number for (number,) in self.fetch(statement)]

    # Reading and locking

    def compiled(self, queryset: Rows, limit: int | None, fields: Fields) -> SQL | None:
        """Return the SELECT of the first *limit* rows as text, None where it can match nothing."""
        query = queryset.values_list(*(one.attname for one in fields))[:limit].query
        try:
            text, params = query.get_compiler(connection=self.connection).as_sql()
        except EmptyResultSet:
            return None
        return SQL(text, tuple(params))

    def first(self, queryset: Rows, table: KeyTable, limit: int, fields: Fields) -> list[list[Any]]:
        """Return *fields* of the first rows of *queryset*, without a lock."""
        statement = self.compiled(queryset, limit, fields)
        return [] if statement is None else table.python_rows(fields, self.fetch(statement))

    def first_of_each(
        self, querysets: Sequence[Rows], table: Table, field: AnyField, values: Sequence[Any]
    ) -> list[list[Key]]:
        """Return, for each of *querysets*, the keys of its first row with each of *values* in *field*.

        All of them in one statement, so as they are at one moment.
        """
        parts: list[SQL] = []
        prepared = [field.get_db_prep_value(each, self.connection) for each in values]
        for number, queryset in enumerate(querysets):
            of_one = queryset.filter(**{field.attname: Bound("value")})
            one = self.compiled(of_one, 1, table.columns.key)
            if one is None:
                continue
            for each in prepared:
                name = f"taskclaim_{len(parts)}"
                params = [each if type(param) is Bound else param for param in one.params]
                text = f"SELECT {name}.*, {number} FROM ({one.text}) {name}"
                parts.append(SQL(text, tuple(params)))
        found: list[list[Key]] = [[] for _ in querysets]
        rows = self.fetch(SQL.join(" UNION ALL ", parts)) if parts else []
        keys = table.python_keys([row[:-1] for row in rows])
        for key, row in zip(keys, rows, strict=True):
            found[row[-1]].append(key)
        return found

    def select(
        self,
        table: KeyTable,
        fields: Fields,
        condition: SQL,
        lock: str = "",
        *,
        ordered: bool = False,
        limit: int | None = None,
    ) -> list[list[Any]]:
        """Return *fields* of the rows that match, by key if *ordered*.

        *lock* locks them first, in key order: ``WAIT``, ``SKIP`` or ``NOWAIT`` (an OperationalError) says what happens
        to rows that another transaction has locked.
        """
        statement = sql(
            "SELECT {} FROM {} WHERE {}{}{}{}",
            table.list_of(fields),
            self.update_target(table) if lock else table.name,
            condition,
            f" ORDER BY {table.key_list}" if ordered or lock else "",
            "" if limit is None else f" LIMIT {limit}",
            f" {self.lock_clause}{lock}" if lock else "",
        )
        return table.python_rows(fields, self.fetch(statement))

    def select_keys(
        self,
        table: KeyTable,
        keys: Keys,
        condition: SQL | None = None,
        lock: str = "",
        *,
        ordered: bool = False,
    ) -> list[Key]:
        """Return those of *keys* whose rows are there and match *condition*; see ``select``."""
        if not keys:
            return []
        keyed = table.keyed(keys)
        matching = keyed if condition is None else both(keyed, condition)
        rows = self.select(table, table.columns.key, matching, lock, ordered=ordered)
        return table.keys_of(rows)

    def held_keys(self, table: Table, token: Token, keys: Keys, lock: str = "") -> list[Key]:
        """Return those of *keys* that *token* still holds; see ``select``."""
        return self.select_keys(table, keys, table.standing(token), lock)

    def lock_first(
        self, queryset: Rows, table: KeyTable, limit: int, fields: Fields, *, deleting: bool = False
    ) -> list[list[Any]]:
        """Lock the first *limit* rows of *queryset* that nobody else has locked, and return *fields* of each.

        Only its ordering may join other tables. *deleting* says that the rows are to go.
        """
        raise NotImplementedError

    def update_target(self, table: KeyTable) -> str:
        """Name the table in a statement that finds its rows by key, to write or to lock them."""
        return table.name

    # Writing

    def write(
        self, table: KeyTable, keys: Keys, change: Change | None, condition: SQL | None = None
    ) -> int:
        """Write the rows with these keys that match *condition*, or delete them (None), and return how many."""
        return self.run(self.writing(table, keys, change, condition))

    def write_held(self, table: Table, claims: Claims, change: Change | None) -> Keys | None:
        """Write the rows that the tokens still hold by one statement, and return the keys of those written.

        None, where fewer were written than named and nothing says which: the statement must then be rolled back. A
        *change* of None deletes them.
        """
        keys = claims[0][1] if len(claims) == 1 else [key for _, same in claims for key in same]
        return self.written(table, self.writing(table, keys, change, table.held(claims)), keys)

    def written(self, table: Table, statement: SQL, keys: Keys) -> Keys | None:
        """Send a statement that writes the rows with these keys, and return the keys of those that it wrote."""
        if len(keys) == 1:
            # Of a single row the count tells as much, and costs less.
            return keys if self.run(statement) else []
        rows = self.fetch(SQL(f"{statement.text} RETURNING {table.key_list}", statement.params))
        return keys if len(rows) == len(keys) else table.python_keys(rows)

    def renew_held(self, table: Table, token: Token, keys: Keys, lease: timedelta) -> Keys:
        """Extend the leases that *token* still holds, but for rows that somebody has locked, and return their keys."""
        held = self.held_keys(table, token, keys, SKIP)
        if held:
            self.write(table, held, Change([self.extension(table, lease)]), table.standing(token))
        return held

    def extension(self, table: Table, lease: timedelta) -> SQL:
        """Return the SET of a renewal: never earlier than the expiry that stands."""
        column = table.columns.expires_at
        end = self.later(lease)
        return table.assign(
            column,
            sql("{}(COALESCE({}, {}), {})", self.greatest, table.qualified(column), end, end),
        )

    def writing(
        self, table: KeyTable, keys: Keys, change: Change | None, condition: SQL | None = None
    ) -> SQL:
        """Return the UPDATE, or the DELETE, of the rows with these keys that also match *condition*.

        Columns with a value for each row are joined to the table: a CASE would grow with the square of the rows.
        """
        if change is None:
            return self.deletion(table, keys, condition)
        assignments = list(change.shared)
        if len(keys) > 1 and change.own:
            assignments += [
                table.assign(one.field, SQL(one.stored.format(f"{VALUES}.v{n}")))
                for n, one in enumerate(change.own)
            ]
            return self.joined_update(table, keys, change.own, assignments, condition)
        assignments += [
            table.assign(one.field, sql(one.stored, one.values[0])) for one in change.own
        ]
        return sql(
            "UPDATE {} SET {} WHERE {}",
            self.update_target(table),
            SQL.join(", ", assignments),
            table.keyed(keys) if condition is None else both(table.keyed(keys), condition),
        )

    def deletion(self, table: KeyTable, keys: Keys, condition: SQL | None) -> SQL:
        """Return the DELETE of the rows with these keys that also match *condition*."""
        keyed = table.keyed(keys)
        matching = keyed if condition is None else both(keyed, condition)
        return sql("DELETE FROM {} WHERE {}", table.name, matching)

    def joined_update(
        self,
        table: KeyTable,
        keys: Keys,
        own: Sequence[OwnValues],
        assignments: Sequence[SQL],
        condition: SQL | None,
    ) -> SQL:
        """Return the UPDATE that takes each row's own values from a list that it joins."""
        names = [f"k{n}" for n in range(len(table.key))]
        same = SQL(table.same_key(VALUES, names))
        return sql(
            "WITH {} ({}) AS (VALUES ({})) UPDATE {} SET {} FROM {} WHERE {}",
            VALUES,
            ", ".join([*names, *[f"v{n}" for n in range(len(own))]]),
            SQL.join("), (", self.value_rows(table, keys, own)),
            table.name,
            SQL.join(", ", assignments),
            VALUES,
            same if condition is None else both(same, condition),
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

    def insert_selected(
        self, table: KeyTable, into: Fields, selected: SQL, *, passing_over: bool = False
    ) -> int:
        """Insert the rows that a SELECT returns into the columns *into*, and return how many.

        With *passing_over*, for databases with ``passes_over_duplicates``, rows whose key is there already are left
        out; it costs a third more. INSERT IGNORE of MySQL would do more than that: it also stores cut-off values and
        leaves out what any constraint refuses.
        """
        names = ", ".join(table.column(field) for field in into)
        insertion = sql("INSERT INTO {} ({}) {}", table.name, names, selected)
        if passing_over:
            insertion = sql("{} ON CONFLICT ({}) DO NOTHING", insertion, ", ".join(table.key))
        return self.run(insertion)


@contextmanager
def savepoint_around(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Take a savepoint and release it after the block: an error of the database where it is gone."""
    savepoint = str(connection.savepoint())
    yield
    connection.savepoint_commit(savepoint)
