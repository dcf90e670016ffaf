"""What every database must be able to do for a claim, and how it is done where nothing special is known.

A dialect sends statements and reports which rows they touched. What a row's next state is, the querysets decide.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from django.core.exceptions import EmptyResultSet
from django.db import DataError, NotSupportedError, models, transaction

from django_taskclaim import conf
from django_taskclaim.columns import ClaimColumns, KeyColumns
from django_taskclaim.dialects.inspection import Belief, Fault, Plan, real_name
from django_taskclaim.dialects.keyed import KeyedTables
from django_taskclaim.dialects.statements import SQL, Key, KeyTable, Table, sql, value
from django_taskclaim.dialects.time_limits import TimeBudget
from django_taskclaim.fields import AnyField, MomentField, as_utc
from django_taskclaim.states import Status, Token
from django_taskclaim.switch_reading import TABLE as SWITCH_TABLE

#: Where those wait in line that have no other way to.
NAMED_LEASES = "taskclaim_namedlease"


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """What one ``claim_batch`` asks of the database.

    ``candidates`` are the open, due rows of the claim table while the switch is on, in the order of the claim; only
    its ordering may join other tables. ``returning`` names the columns wanted back.
    """

    candidates: "models.QuerySet[Any]"
    #: Whether the candidates follow the model's own order and look at no other table.
    simple: bool
    limit: int
    holder: str
    lease: timedelta
    scopes: Sequence[str]
    returning: Sequence[AnyField]


class Renewal(NamedTuple):
    """What became of each claim of one renewal, by key."""

    renewed: list[Key]
    #: Locked by another transaction: neither renewed nor lost.
    skipped: list[Key]
    lost: list[Key]


class Dialect(KeyedTables):
    """How one connection claims, ends and renews; one subclass for each database."""

    #: The clock of the database, in UTC, in the stored form of a moment.
    now: ClassVar[str]
    #: The same as whole seconds of Unix time; 0 where no way to ask is known.
    unix_time: ClassVar[str] = "0"
    greatest: ClassVar[str] = "GREATEST"
    #: Ways to claim, by the value of the setting CLAIM_STRATEGY.
    strategies: ClassVar[Sequence[str]] = ("auto", "compare_and_swap")
    #: Whether ``lock_first`` returns rows in the order of their keys.
    locks_in_key_order: ClassVar[bool] = True
    #: Whether an UPDATE may look at its own table in a subquery.
    updates_from_itself: ClassVar[bool] = True
    #: Whether a DELETE of Django's by many keys may walk a small table, and wait for rows that others have locked.
    walks_small_tables: ClassVar[bool] = False
    #: Whether ``(a, b) > (1, 2)`` is found by an index over a and b.
    seeks_row_values: ClassVar[bool] = True
    #: Whether an index keeps what is out of date for a while, and reads past it.
    leaves_dead_entries: ClassVar[bool] = True

    #: Whether the database names the transactions that are open, to everybody.
    names_open_transactions: ClassVar[bool] = False
    #: Whether a transaction that writes keeps everybody else from writing anything.
    has_one_writer: ClassVar[bool] = False
    #: Whether the claim index leaves out rows that are complete; see ``indexes``.
    leaves_out_complete: ClassVar[bool] = False
    #: What to add to the advice to create an index.
    on_a_busy_table: ClassVar[str] = ""

    # The clock

    def later(self, wait: timedelta) -> SQL:
        """Return the moment *wait* from now."""
        raise NotImplementedError

    def current_time(self) -> datetime:
        """Return what the clock of the database says, in UTC."""
        ((said,),) = self.fetch(SQL(f"SELECT {self.now}"))
        return as_utc(MomentField().from_db_value(said, None, self.connection) or said)

    # Sending statements

    def refuses_text(self, error: Exception) -> bool:
        """Say whether *error* is that a text does not fit its column: characters it has not, or too many."""
        return isinstance(error, (DataError, UnicodeError))

    def compiled(
        self, queryset: "models.QuerySet[Any]", limit: int, fields: Sequence[AnyField]
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

    def limit_lock_wait(self, seconds: int) -> None:
        """Let the current transaction wait at most *seconds* for a row, where the database can be told so."""

    @contextmanager
    def time_limit(self, limit: timedelta) -> Iterator[None]:
        """Let the statements of the block take so long together, give or take a tenth of a second.

        For questions only. One that is cut off, or would begin later, is an OperationalError. Where the database cannot
        be told, the last one takes the time it takes.
        """
        with self.keeping_limits():
            self.limit_statements(limit)
            with self.connection.execute_wrapper(TimeBudget(limit, self.limit_statements)):
                yield

    @contextmanager
    def keeping_limits(self) -> Iterator[None]:
        """Put back, after the block, what ``limit_statements`` sets in it."""
        yield

    def limit_statements(self, limit: timedelta) -> None:
        """Let each statement from now on run for so long at most, where the database can be told so."""

    def end_idle_transactions(self, idle: timedelta, *, ours_alone: bool) -> None:
        """Let the server end this session once a transaction of it has been idle for so long.

        A process that is frozen in the middle of one would keep its row locks otherwise. *ours_alone* says that no
        code of the user's runs on the connection, so a session that is idle outside a transaction may end as well.
        """

    def limit_idle_session(self, idle: timedelta | None) -> None:
        """Let the server end this session once it has been idle for so long, where it knows no idle transactions."""

    @contextmanager
    def guarded_transaction(self, idle: timedelta) -> Iterator[None]:
        """Open a transaction that the server ends, and with it our session, once it has been idle for so long.

        A shorter bound of the session stands, and what it was told before counts again afterwards. Durable.
        """
        with self.own_transaction(durable=True):
            yield

    def session_id(self) -> int | None:
        """Return the number by which ``end_session`` can end this connection's session; None where nothing can."""
        return None

    def end_session(self, number: int) -> None:
        """End another session of ours on the same server: its transaction is rolled back, its locks are freed."""

    def service_options(self) -> dict[str, Any]:
        """Return OPTIONS of a connection that must notice soon when its server is gone."""
        return {}

    # Claiming

    def claim(self, order: ClaimOrder, columns: ClaimColumns) -> list[list[Any]]:
        """Claim up to ``order.limit`` rows and return the wanted columns of each, in no particular order."""
        strategy = conf.setting("CLAIM_STRATEGY")
        if strategy not in self.strategies:
            raise ValueError(
                f"CLAIM_STRATEGY {strategy!r} is not available on {self.connection.display_name};"
                f" it has {', '.join(self.strategies)}."
            )
        claims: dict[str, Callable[[ClaimOrder, Table], list[list[Any]]]] = {
            "auto": self.claim_best,
            "update_limit": self.claim_update_limit,
            "compare_and_swap": self.claim_compare_and_swap,
        }
        return claims[strategy](order, self.table(columns))

    def claim_best(self, order: ClaimOrder, table: Table) -> list[list[Any]]:
        """Claim in the way that was measured to be best on this database."""
        raise NotImplementedError

    def claim_update_limit(self, order: ClaimOrder, table: Table) -> list[list[Any]]:
        """Claim by ``UPDATE … ORDER BY … LIMIT``, where the database has it."""
        raise NotImplementedError

    def claim_compare_and_swap(self, order: ClaimOrder, table: Table) -> list[list[Any]]:
        """Claim by reading candidates and then updating each one that is still as it was read."""
        iteration = table.columns.iteration
        wanted = [*table.columns.key, iteration]
        claimed: list[Key] = []
        size = order.limit
        while True:
            rows = self.first(order.candidates, table, size, wanted)
            for row in rows:
                unchanged = SQL(f"{table.qualified(iteration)} = %s", (row[-1],))
                key = table.key_of(row)
                if len(claimed) < order.limit and key not in claimed:
                    claimed += [key] * self.take(order, table, [key], unchanged)
            # Short although there were enough: others took them, so look further.
            if len(claimed) == order.limit or len(rows) < size:
                return self.read(table, claimed, order.returning)
            size *= 4

    def take(self, order: ClaimOrder, table: Table, keys: Sequence[Key], *conditions: SQL) -> int:
        """Turn open rows into claimed ones and return how many; every condition of a claim is repeated here."""
        return self.run(
            sql(
                "UPDATE {} SET {} WHERE {}",
                self.update_target(table),
                self.claim_assignments(order, table),
                SQL.join(" AND ", [table.keyed(keys), *self.claimable(order, table), *conditions]),
            )
        )

    def update_target(self, table: Table) -> str:
        """Name the table in an UPDATE by key."""
        return table.name

    def claim_assignments(self, order: ClaimOrder, table: Table) -> SQL:
        """Return the SET list of a claim: status first, holder last, for databases that set from left to right."""
        columns = table.columns
        return SQL.join(
            ", ",
            [
                table.assign(columns.status, SQL(f"'{Status.PROCESSING.value}'")),
                table.assign(columns.claimed_at, SQL(self.now)),
                table.assign(columns.expires_at, self.later(order.lease)),
                table.assign(columns.claimed_by, value(order.holder)),
            ],
        )

    def claimable(self, order: ClaimOrder, table: Table) -> list[SQL]:
        """Return what must still be true of a row in the statement that claims it."""
        conditions = [table.in_state(Status.OPEN), self.switch_is_on(order.scopes)]
        if table.columns.not_before is not None:
            conditions.insert(1, SQL(f"{table.qualified(table.columns.not_before)} <= {self.now}"))
        return conditions

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

    # Reading and locking

    def read(
        self, table: KeyTable, keys: Sequence[Key], fields: Sequence[AnyField]
    ) -> list[list[Any]]:
        """Return *fields* of the rows with these keys."""
        rows: list[list[Any]] = []
        for part in self.chunks(keys, table):
            statement = sql(
                "SELECT {} FROM {} WHERE {}", table.list_of(fields), table.name, table.keyed(part)
            )
            rows += table.python_rows(fields, self.fetch(statement))
        return rows

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
        queryset: "models.QuerySet[Any]",
        table: Table,
        field: AnyField,
        values: Sequence[Any],
        most: int,
    ) -> list[Key]:
        """Return the keys of the first *most* rows of *queryset* with each of *values* in *field*, in one statement."""
        # Compiled once: the second value only shows where the first one stands.
        one, other = (
            self.compiled(queryset.filter(**{field.attname: each}), most, table.columns.key)
            for each in (values[0], values[-1])
        )
        if one is None or other is None:
            return []
        places = {
            n for n, (a, b) in enumerate(zip(one.params, other.params, strict=True)) if a != b
        }
        prepared = [field.get_db_prep_value(each, self.connection) for each in values]
        parts = [
            SQL(
                f"SELECT taskclaim_{n}.* FROM ({one.text}) taskclaim_{n}",
                tuple(each if place in places else param for place, param in enumerate(one.params)),
            )
            for n, each in enumerate(prepared)
        ]
        return table.python_keys(self.fetch(SQL.join(" UNION ALL ", parts)))

    def lock_first(
        self, queryset: "models.QuerySet[Any]", table: Table, limit: int, fields: Sequence[AnyField]
    ) -> list[list[Any]]:
        """Lock up to *limit* rows of *queryset* in key order, skipping locked ones, and return *fields* of each."""
        where = table.where_of(queryset)
        if where is None:
            return []
        return table.python_rows(
            fields,
            self.fetch(
                sql(
                    "SELECT {} FROM {} WHERE {} ORDER BY {} LIMIT {} {}",
                    table.list_of(fields),
                    table.name,
                    where,
                    table.list_of(table.columns.key),
                    value(limit),
                    f"{self.lock_clause} SKIP LOCKED",
                )
            ),
        )

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
        clause = self.lock_clause if wait else f"{self.lock_clause} SKIP LOCKED"
        return table.python_keys(
            self.fetch(
                sql(
                    "SELECT {} FROM {} WHERE {} AND {} ORDER BY {} {}",
                    table.list_of(table.columns.key),
                    self.locking_source(table),
                    table.keyed(keys),
                    table.standing(token),
                    table.list_of(table.columns.key),
                    clause,
                )
            )
        )

    def lock_at_once(
        self, table: KeyTable, keys: Sequence[Key], fields: Sequence[AnyField]
    ) -> list[list[Any]]:
        """Lock the rows with these keys, whatever their state, and return *fields* of those that are there.

        An OperationalError where another transaction has one of them locked.
        """
        statement = sql(
            "SELECT {} FROM {} WHERE {} ORDER BY {} {}",
            table.list_of(fields),
            self.locking_source(table),
            table.keyed(keys),
            table.list_of(table.columns.key),
            f"{self.lock_clause} NOWAIT",
        )
        return table.python_rows(fields, self.fetch(statement))

    def locking_source(self, table: KeyTable) -> str:
        """Name the table in a SELECT that locks by key."""
        return table.name

    def still_standing(self, table: Table, token: Token, keys: Sequence[Key]) -> list[Key]:
        """Return the keys that *token* still holds, without a lock and without waiting."""
        if not keys:
            return []
        statement = sql(
            "SELECT {} FROM {} WHERE {} AND {}",
            table.list_of(table.columns.key),
            table.name,
            table.keyed(keys),
            table.standing(token),
        )
        return table.python_keys(self.fetch(statement))

    def chunks(
        self, keys: Sequence[Any], table: KeyTable, per_key: int = 0
    ) -> Iterator[Sequence[Any]]:
        """Cut *keys* so that no statement exceeds CHUNK_SIZE rows or the parameters that the database takes."""
        size: int = conf.setting("CHUNK_SIZE")
        most = self.connection.features.max_query_params
        if most:
            size = max(1, min(size, (most - 40) // (len(table.key) + per_key)))
        for start in range(0, len(keys), size):
            yield keys[start : start + size]

    # Writing

    def update_held(
        self, table: Table, token: Token, keys: Sequence[Key], assignments: Sequence[SQL]
    ) -> list[Key]:
        """Write the rows that *token* still holds and return their keys: one fenced statement."""
        statement = sql(
            "UPDATE {} SET {} WHERE {} AND {} RETURNING {}",
            table.name,
            SQL.join(", ", assignments),
            table.keyed(keys),
            table.standing(token),
            table.list_of(table.columns.key),
        )
        return table.python_keys(self.fetch(statement))

    def update_where(
        self, table: Table, keys: Sequence[Key], condition: SQL, assignments: Sequence[SQL]
    ) -> int:
        """Write rows that this transaction has locked, repeating what made them eligible."""
        return self.run(
            sql(
                "UPDATE {} SET {} WHERE {} AND {}",
                self.update_target(table),
                SQL.join(", ", assignments),
                table.keyed(keys),
                condition,
            )
        )

    def delete_held(self, table: Table, token: Token, keys: Sequence[Key]) -> list[Key]:
        """Delete the rows that *token* still holds and return their keys: one fenced statement."""
        statement = sql(
            "DELETE FROM {} WHERE {} AND {} RETURNING {}",
            table.name,
            table.keyed(keys),
            table.standing(token),
            table.list_of(table.columns.key),
        )
        return table.python_keys(self.fetch(statement))

    def delete_where(self, name: str, condition: SQL) -> int:
        """Delete rows of the table *name*, found by their key, and return how many."""
        return self.run(sql("DELETE FROM {} WHERE {}", name, condition))

    def delete_locked(self, table: KeyTable, keys: Sequence[Key]) -> int:
        """Delete rows that this transaction has locked, and return how many there were."""
        return self.run(sql("DELETE FROM {} WHERE {}", table.name, table.keyed(keys)))

    def renew_held(
        self, table: Table, token: Token, keys: Sequence[Key], lease: timedelta
    ) -> Renewal:
        """Extend the leases that *token* still holds without waiting for a row that somebody has locked."""
        held = self.lock_standing(table, token, keys, wait=False)
        if held:
            self.update_where(table, held, table.standing(token), [self.extension(table, lease)])
        rest = [key for key in keys if key not in set(held)]
        skipped = self.still_standing(table, token, rest)
        return Renewal(held, skipped, [key for key in rest if key not in set(skipped)])

    def extension(self, table: Table, lease: timedelta) -> SQL:
        """Return the SET of a renewal: never earlier than the expiry that stands."""
        column = table.columns.expires_at
        end = self.later(lease)
        return table.assign(
            column,
            sql("{}(COALESCE({}, {}), {})", self.greatest, table.qualified(column), end, end),
        )

    # Waiting in line

    def queue(self, name: str) -> None:
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

    # What people ask about the database

    def explain(self, statement: SQL, table: Table, *, may_sort: bool) -> Plan | None:
        """Return how the statement would run on the table as it is now; None where the database cannot tell.

        With *may_sort* the rows it sorts are few: only reading the whole table counts against it.
        """
        return None

    def believed(self, table: Table) -> Belief | None:
        """Return about how many rows are in each state, by the server's statistics; None where it keeps none."""
        return None

    def indexes(self, table: Table) -> list[list[tuple[str, str]]]:
        """Return the columns of each index that statements can use, each with ``ASC`` or ``DESC``."""
        name = real_name(table.columns.owner._meta.db_table)
        with self.connection.cursor() as cursor:
            found = self.connection.introspection.get_constraints(cursor, name)
            ignored = self.ignored_indexes(name)
        usable = [one for key, one in found.items() if one["index"] and key not in ignored]
        return [
            list(
                zip(one["columns"], one.get("orders") or ["ASC"] * len(one["columns"]), strict=True)
            )
            for one in usable
        ]

    def ignored_indexes(self, table_name: str) -> set[str]:
        """Return the names of indexes that exist but that no statement uses."""
        return set()

    def refresh_statistics(self, table: Table) -> str:
        """Return the statement that lets the optimiser look at the table again."""
        return f"ANALYZE {real_name(table.name)}"

    def configured_faults(self) -> Iterator[Fault]:
        """Yield what the settings of this database break; nothing is asked of the server."""
        return iter(())

    def server_faults(self, tables: Sequence[Table]) -> Iterator[Fault]:
        """Yield what the server, its settings or these tables break."""
        return iter(())
