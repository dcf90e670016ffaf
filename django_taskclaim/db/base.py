"""What every database must be able to do for a claim, and how it is done where nothing special is known.

A dialect sends statements and reports which rows they touched. What a row's next state is, the querysets decide.
Here stands all that claims, fences and renews; what a session may take is in ``sessions``, and what knows rows by key
alone in ``keyed``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import EmptyResultSet
from django.db import (
    DatabaseError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    models,
    transaction,
)

from django_taskclaim import conf
from django_taskclaim.columns import ClaimColumns, KeyColumns
from django_taskclaim.contention import refusal_code
from django_taskclaim.db.claim_spec import (
    Bound,
    ClaimedRow,
    ClaimSpec,
    ClaimStatement,
    Places,
    places_of,
)
from django_taskclaim.db.keyed import NOWAIT, SKIP, WAIT
from django_taskclaim.db.sessions import Sessions
from django_taskclaim.db.sql import (
    SQL,
    Change,
    Claims,
    Key,
    KeyTable,
    Table,
    both,
    converted,
    sql,
    through,
    value,
)
from django_taskclaim.db.watching import savepoint_around
from django_taskclaim.fields import AnyField, MomentField, as_utc
from django_taskclaim.states import Status, Token
from django_taskclaim.switch_reading import TABLE as SWITCH_TABLE

#: Whose rows are the advisory locks of databases that have none of a transaction's.
NAMED_LEASES = "taskclaim_namedlease"


class Dialect(Sessions):
    """How one connection claims, ends and renews; one subclass for each database."""

    #: The clock of the database, in UTC, in the stored form of a moment.
    now: ClassVar[str]
    #: The same as whole seconds of Unix time; 0 where no way to ask is known.
    unix_time: ClassVar[str] = "0"
    greatest: ClassVar[str] = "GREATEST"
    #: Ways to claim, by the value of the setting CLAIM_STRATEGY.
    strategies: ClassVar[Sequence[str]] = ("auto",)
    #: Whether ``lock_first`` returns rows in the order of their keys.
    locks_in_key_order: ClassVar[bool] = True
    #: Whether an UPDATE may look at its own table in a subquery.
    updates_from_itself: ClassVar[bool] = True
    #: Whether a DELETE of Django's by many keys may walk a small table, and wait for rows that others have locked.
    walks_small_tables: ClassVar[bool] = False
    #: Whether ``(a, b) > (1, 2)`` is found by an index over a and b.
    seeks_row_values: ClassVar[bool] = True
    #: Whether one statement claims, so that a claim needs no transaction around it.
    claims_in_one_statement: ClassVar[bool] = False
    #: Whether an UPDATE returns the keys of the rows that it wrote.
    returns_updated: ClassVar[bool] = True

    #: Whether the database names the transactions that are open, to everybody.
    names_open_transactions: ClassVar[bool] = False
    #: Whether a transaction that writes keeps everybody else from writing anything.
    has_one_writer: ClassVar[bool] = False
    #: Whether a server is asked, which may be away or end a session.
    has_server: ClassVar[bool] = True
    #: Whether the claim index leaves out rows that are complete; see ``indexes``.
    leaves_out_complete: ClassVar[bool] = False

    @property
    def commits_alone(self) -> bool:
        """Whether a statement outside of a transaction is one that sees each other commit at once, as ours must."""
        # A single writer waits for the one before it before it reads anything.
        return self.has_one_writer

    # The clock

    #: The moment that lies as far from now as the amount in place of the ``{}`` says.
    moment_after: ClassVar[str]

    def amount(self, wait: timedelta) -> Any:
        """Return a time to wait as ``moment_after`` takes it."""
        raise NotImplementedError

    def later(self, wait: timedelta) -> SQL:
        """Return the moment *wait* from now."""
        return sql(self.moment_after, value(self.amount(wait)))

    def current_time(self) -> datetime:
        """Return what the clock of the database says, in UTC."""
        ((said,),) = self.fetch(SQL(f"SELECT {self.now}"))
        return as_utc(MomentField().from_db_value(said, None, self.connection) or said)

    def writable_at(self, table: Table) -> datetime:
        """Wait until rows of the table can be written, as by a renewal, and return what the clock says then.

        Questions may be answered all the while: beside SQLite's one writer, or beside a migration that locks the table.
        """
        unchanged = SQL(table.column(table.columns.iteration))
        change = table.assign(table.columns.iteration, unchanged)
        self.run(sql("UPDATE {} SET {} WHERE 1 = 0", table.name, change))
        return self.current_time()

    # Sending statements

    def may_be_done(self, error: Exception) -> bool:
        """Say whether the statement, or the COMMIT, that *error* came from may have been carried out all the same."""
        return refusal_code(error) is None

    def may_be_of_reading(self, error: Exception) -> bool:
        """Say whether *error* may come from values of a row that cannot be read, and not from a server in trouble."""
        return not isinstance(error, (OperationalError, InterfaceError, InternalError))

    def compiled(
        self, queryset: "models.QuerySet[Any]", limit: int | None, fields: Sequence[AnyField]
    ) -> SQL | None:
        """Return the SELECT of the first *limit* rows as text, None where it can match nothing."""
        query = queryset.values_list(*(one.attname for one in fields))[:limit].query
        try:
            text, params = query.get_compiler(connection=self.connection).as_sql()
        except EmptyResultSet:
            return None
        return SQL(text, tuple(params))

    def table(self, columns: ClaimColumns) -> Table:
        """Return the claim table as this connection spells it."""
        return Table(columns, self.connection)

    def key_table(self, columns: KeyColumns) -> KeyTable:
        """Return a table without claim columns as this connection spells it.

        NotSupportedError, with one sentence, where its rows cannot be locked by their key.
        """
        return KeyTable(columns, self.connection)

    @contextmanager
    def own_transaction(self, *, durable: bool = False) -> Iterator[None]:
        """Open a transaction that sees each other commit at once (READ COMMITTED).

        Inside a caller's transaction it is a savepoint, or, with *durable*, Django's RuntimeError.
        """
        outermost = not self.connection.in_atomic_block and self.connection.get_autocommit()
        if outermost:
            self.before_transaction()
        with transaction.atomic(using=self.connection.alias, durable=durable):
            if outermost:
                self.begin_transaction()
            yield

    def before_transaction(self) -> None:
        """Prepare the next transaction, where that must happen before it begins."""

    def begin_transaction(self) -> None:
        """Set up the transaction that has just begun."""

    @contextmanager
    def kept_whole(self) -> Iterator[None]:
        """Raise a DatabaseError at the end of the block if what it wrote in the open transaction is gone."""
        with savepoint_around(self.connection):
            yield

    @contextmanager
    def guarded_transaction(self, idle: timedelta) -> Iterator[None]:
        """Open a transaction that the server ends, and with it our session, once it has been idle for so long.

        A shorter bound of the session stands, and what it was told before counts again afterwards. Durable.
        """
        with self.own_transaction(durable=True):
            yield

    # Claiming

    def prepare_claim(
        self,
        table: Table,
        candidates: "models.QuerySet[Any]",
        claimable: "models.QuerySet[Any]",
        fields: Sequence[AnyField],
        lease: timedelta,
        *,
        simple: bool,
        mark: datetime | None = None,
    ) -> ClaimStatement | None:
        """Return the statement that claims the first of *candidates*, to be kept; None where they can be none.

        *claimable* are the rows of the table that may be claimed whatever the caller's filter says: the UPDATE repeats
        this condition. *fields* are wanted back of each row. With *mark* its ``not_before`` becomes that moment.
        """
        chosen = self.compiled(candidates, None, table.columns.key)
        condition, ours = table.where_of(candidates), table.where_of(claimable)
        if chosen is None or condition is None or ours is None:
            return None
        statement = ClaimStatement(
            table,
            fields,
            places_of(fields, table),
            chosen,
            condition,
            ours,
            self.claim_assignments(table, lease, mark),
            simple,
        )
        whole = self.whole_claim(statement)
        converters = self.converters_of(table, fields)
        return replace(statement, whole=whole, converters=converters)

    def whole_claim(self, statement: ClaimStatement) -> SQL | None:
        """Return the one statement that locks, claims and returns, where the database has one."""
        return None

    def claim(self, spec: ClaimSpec) -> list[ClaimedRow]:
        """Claim up to ``limit`` rows and return them in no particular order."""
        statement = spec.statement
        strategy = conf.setting("CLAIM_STRATEGY")
        if strategy not in self.strategies:
            raise ValueError(
                f"CLAIM_STRATEGY {strategy!r} is not available on {self.connection.display_name};"
                f" it has {', '.join(self.strategies)}."
            )
        if statement.whole is None:
            keys = self.claim_keys(spec, strategy)
            rows = self.read(statement.table, keys, statement.fields) if keys else []
            return rows_by_role(statement.places, rows)
        text, params = bound(spec, statement.whole)
        with self.connection.cursor() as cursor:
            try:
                cursor.execute(text, params)
            except DatabaseError as error:
                self.explain_missing(error, text)
                raise
            raw = cursor.fetchall()
        return rows_by_role(statement.places, converted(raw, statement.converters))

    def claim_keys(self, spec: ClaimSpec, strategy: str) -> list[Key]:
        """Claim by more than one statement, in the transaction that is open, and return the keys."""
        raise NotImplementedError

    def converters_of(
        self, table: Table, fields: Sequence[AnyField]
    ) -> dict[int, Callable[[Any], Any]]:
        """Return what the values that the claim returns are passed through, by place; most need nothing."""
        passed: dict[int, Callable[[Any], Any]] = {
            place: partial(through, functions, column, self.connection)
            for place, (functions, column) in table.converters(fields).items()
        }
        if settings.USE_TZ:
            ours = [n for n, field in enumerate(fields) if isinstance(field, MomentField)]
            passed |= dict.fromkeys(ours, self.read_moment)
        return passed

    def read_moment(self, stored: Any) -> datetime | None:
        """Return a moment of ours as the claim returned it, under ``USE_TZ``."""
        if stored is None:
            return None
        moment: datetime = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment

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

    def switch_is_on(self, scopes: Sequence[str]) -> SQL:
        """Match only while nobody has paused one of *scopes*."""
        name = self.connection.ops.quote_name
        marks = ", ".join(["%s"] * len(scopes))
        return SQL(
            f"NOT EXISTS (SELECT 1 FROM {name(SWITCH_TABLE)} taskclaim_s"
            f" WHERE taskclaim_s.{name('scope')} IN ({marks}) AND taskclaim_s.{name('paused_at')} IS NOT NULL"
            f" AND (taskclaim_s.{name('until')} IS NULL OR taskclaim_s.{name('until')} > {self.now}))",
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
        highest = sql("SELECT MAX({}) FROM {} WHERE {}", column, table.name, is_open)
        statement = sql(
            "WITH RECURSIVE taskclaim_p(number) AS ({} UNION ALL SELECT ({} AND {} < taskclaim_p.number)"
            " FROM taskclaim_p WHERE taskclaim_p.number IS NOT NULL)"
            " SELECT number FROM taskclaim_p WHERE EXISTS"
            " (SELECT 1 FROM {} WHERE {} AND {} = taskclaim_p.number AND {} >= {})",
            highest,
            highest,
            column,
            table.name,
            is_open,
            column,
            table.qualified(waiting),
            table.bound(waiting, since),
        )
        return [number for (number,) in self.fetch(statement)]

    # Reading and locking

    def first(
        self,
        queryset: "models.QuerySet[Any]",
        table: KeyTable,
        limit: int,
        fields: Sequence[AnyField],
    ) -> list[list[Any]]:
        """Return *fields* of the first rows of *queryset*, without a lock."""
        statement = self.compiled(queryset, limit, fields)
        return [] if statement is None else table.python_rows(fields, self.fetch(statement))

    def first_of_each(
        self,
        querysets: "Sequence[models.QuerySet[Any]]",
        table: Table,
        field: AnyField,
        values: Sequence[Any],
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

    def lock_first(
        self, queryset: "models.QuerySet[Any]", table: Table, limit: int, fields: Sequence[AnyField]
    ) -> list[list[Any]]:
        """Lock up to *limit* rows of *queryset* in key order, skipping locked ones, and return *fields* of each."""
        where = table.where_of(queryset)
        return [] if where is None else self.select(table, fields, where, SKIP, limit=limit)

    def lock_in_order(
        self, queryset: "models.QuerySet[Any]", table: KeyTable, limit: int, *, deleting: bool
    ) -> list[Key]:
        """Lock the first rows of *queryset* that nobody else has locked, *limit* at most, and return their keys.

        Only its ordering may join other tables. *deleting* says that the rows are to go.
        """
        raise NotSupportedError(
            f"{self.connection.display_name} is not known to pass over rows that others have locked (SKIP LOCKED)."
        )

    def lock_standing(
        self, table: Table, token: Token, keys: Sequence[Key], *, wait: bool = True
    ) -> list[Key]:
        """Lock the rows that *token* still holds, in key order, and return their keys."""
        held = both(table.keyed(keys), table.standing(token))
        return table.keys_of(self.select(table, table.columns.key, held, WAIT if wait else SKIP))

    def lock_at_once(
        self,
        table: KeyTable,
        keys: Sequence[Key],
        fields: Sequence[AnyField],
        *,
        wait: bool = False,
    ) -> list[list[Any]]:
        """Lock the rows with these keys, whatever their state, and return *fields* of those that are there.

        Unless it is to *wait*, an OperationalError where another transaction has one of them locked.
        """
        return self.select(table, fields, table.keyed(keys), WAIT if wait else NOWAIT)

    def still_standing(self, table: Table, token: Token, keys: Sequence[Key]) -> list[Key]:
        """Return the keys that *token* still holds, without a lock and without waiting."""
        if not keys:
            return []
        held = both(table.keyed(keys), table.standing(token))
        return table.keys_of(self.select(table, table.columns.key, held))

    # Writing

    def write_held(
        self, table: Table, claims: Claims, change: Change | None
    ) -> Sequence[Key] | None:
        """Write the rows that the tokens still hold by one statement, and return the keys of those written.

        None, where fewer were written than named and nothing says which: the statement must then be rolled back. A
        *change* of None deletes them.
        """
        keys = claims[0][1] if len(claims) == 1 else [key for _, same in claims for key in same]
        held = table.held(claims)
        statement = (
            self.deletion(table, keys, held)
            if change is None
            else self.update(table, keys, change, held)
        )
        return self.written(table, statement, keys)

    def written(self, table: Table, statement: SQL, keys: Sequence[Key]) -> Sequence[Key] | None:
        """Send a statement that writes the rows with these keys, and return the keys of those that it wrote."""
        if len(keys) == 1:
            # Of a single row the count tells as much, and costs less.
            return keys if self.run(statement) else []
        rows = self.fetch(SQL(f"{statement.text} RETURNING {table.key_list}", statement.params))
        return keys if len(rows) == len(keys) else table.python_keys(rows)

    def update_held(
        self, table: Table, token: Token, keys: Sequence[Key], assignments: Sequence[SQL]
    ) -> list[Key]:
        """Write the rows that *token* still holds, in the open transaction, and return their keys."""
        held = keys if self.returns_updated else self.lock_standing(table, token, keys)
        written = self.write_held(table, [(token, held)], Change(assignments)) if held else []
        return list(held if written is None else written)

    def update_where(
        self, table: Table, keys: Sequence[Key], condition: SQL, assignments: Sequence[SQL]
    ) -> int:
        """Write rows that this transaction has locked, repeating what made them eligible."""
        return self.run(self.update(table, keys, Change(assignments), condition))

    def delete_where(self, name: str, condition: SQL) -> int:
        """Delete rows of the table *name*, found by their key, and return how many."""
        return self.run(sql("DELETE FROM {} WHERE {}", name, condition))

    def renew_held(
        self, table: Table, token: Token, keys: Sequence[Key], lease: timedelta
    ) -> Sequence[Key]:
        """Extend the leases that *token* still holds, but for rows that somebody has locked, and return their keys."""
        held = self.lock_standing(table, token, keys, wait=False)
        if held:
            self.update_where(table, held, table.standing(token), [self.extension(table, lease)])
        return held

    def extension(self, table: Table, lease: timedelta) -> SQL:
        """Return the SET of a renewal: never earlier than the expiry that stands."""
        column = table.columns.expires_at
        end = self.later(lease)
        return table.assign(
            column,
            sql("{}(COALESCE({}, {}), {})", self.greatest, table.qualified(column), end, end),
        )

    # Waiting for each other

    def advisory_lock(self, name: str) -> None:
        """Let transactions that name the same wait for each other, until each has ended."""
        raise NotImplementedError

    def sees_new_commits(self) -> bool:
        """Say whether each statement of the open transaction sees what others have committed before it."""
        return True

    def open_transactions(self) -> frozenset[str]:
        """Name what may still commit keys that it has been given by now, where ``names_open_transactions`` says so.

        Until the server starts anew no later transaction bears one of these names, but ``PREPARED``, which stands for
        all that are half committed.
        """
        raise NotImplementedError


def bound(spec: ClaimSpec, part: SQL, **values: Any) -> SQL:
    """Return a part of a kept statement with the values of this claim; *values* go before its own."""
    given = {"holder": spec.holder, "limit": spec.limit, **spec.values, **values}
    params = [given[one.name] if type(one) is Bound else one for one in part.params]
    return SQL(part.text, tuple(params))


def rows_by_role(places: Places, raw: Sequence[Sequence[Any]]) -> list[ClaimedRow]:
    """Return rows of the columns that a claim asked for as rows by role."""
    keys, iteration, attempts, waiting, priority = places
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
