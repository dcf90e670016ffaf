"""What every database must be able to do beside the statements of ``sql``, and how where nothing special is known.

It makes claims of querysets, opens transactions of our own, bounds lock waits, and ends sessions. A dialect sends
statements and reports which rows they touched. What a row's next state is, the querysets decide.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import transaction

from django_taskclaim.db.sql import (
    SQL,
    Bound,
    ClaimStatement,
    Fields,
    Key,
    KeyTable,
    Raw,
    Rows,
    Statements,
    Table,
    sql,
    value,
)
from django_taskclaim.fields import AnyField, as_utc, moment_reader

#: The rows of this table are the advisory locks of databases that have none for a transaction.
NAMED_LEASES = "taskclaim_namedlease"


class Dialect(Statements):
    """How one connection claims, ends and renews; one subclass for each database."""

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
        sets: Sequence[SQL],
        fields: Fields,
        *,
        simple: bool,
    ) -> ClaimStatement | None:
        """Return the statement that claims the first of *candidates*, to be cached; None where they can be none.

        *claimable* are the rows of the table that may be claimed, without the caller's filter: the UPDATE repeats
        this condition. *sets* are its assignments. *fields* are wanted back of each row.
        """
        chosen = self.compiled(candidates, None, table.columns.key)
        condition, ours = table.where_of(candidates), table.where_of(claimable)
        if chosen is None or condition is None or ours is None:
            return None
        assignments, first = SQL.join(", ", sets), sql("{} LIMIT {}", chosen, value(Bound("limit")))
        returned = table.shown(fields)
        whole = self.update_free(table, first, assignments, table.beside_key(ours), returned)
        return ClaimStatement(table, fields, chosen, condition, ours, assignments, simple, whole)

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

    # Transactions and sessions

    @contextmanager
    def own_transaction(self, *, durable: bool = False, lock_wait: float = 0.0) -> Iterator[None]:
        """Open a transaction that sees each other commit at once (READ COMMITTED).

        Inside a caller's transaction it is a savepoint, or, with *durable*, Django's RuntimeError. With *lock_wait* it
        waits at most so many seconds for a lock, as in ``limit_lock_wait``.
        """
        outermost = not self.connection.in_atomic_block and self.connection.get_autocommit()
        block = transaction.atomic(self.connection.alias, durable=durable)
        with ExitStack() as stack:
            with self.beginning() if outermost else nullcontext():
                stack.enter_context(block)
            if lock_wait:
                stack.enter_context(self.limit_lock_wait(lock_wait))
            yield

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Surround the BEGIN of our outermost transaction, and set that up."""
        yield

    @contextmanager
    def detecting_rollback(self) -> Iterator[None]:
        """Raise a DatabaseError at the end of the block if what it wrote in the open transaction is gone."""
        savepoint = str(self.connection.savepoint())
        yield
        self.connection.savepoint_commit(savepoint)

    @contextmanager
    def guarded_transaction(self, idle: timedelta) -> Iterator[None]:
        """Open a transaction that the server ends, and with it our session, once it has been idle for so long.

        What the session had before counts again afterwards. Durable.
        """
        with self.own_transaction(durable=True):
            yield

    @contextmanager
    def limit_lock_wait(self, seconds: float) -> Iterator[None]:
        """Let the open transaction wait at most *seconds* for a lock in this block, where the database has a limit.

        On PostgreSQL that holds until the transaction ends.
        """
        yield

    def end_idle_transactions(
        self, idle: timedelta, *, ours_alone: bool, atomic: bool | None
    ) -> None:
        """Let the server end this session once a transaction of it has been idle for so long.

        A process that is frozen in the middle of one would keep its row locks otherwise. *ours_alone* says that no
        code of the user's runs on the connection, *atomic* that it does so in our transaction (False that it does no
        more): then a session that is idle outside a transaction may end as well.
        """

    def session_mark(self) -> Raw | None:
        """Return what ``end_session`` finds this connection's new session by; None where nothing can end it."""
        return None

    def end_session(self, mark: Raw) -> bool:
        """End another of our sessions: its transaction is rolled back, its locks are freed. False if it is gone.

        Another session that has got its number meanwhile is left alone.
        """
        return False

    def service_options(self) -> dict[str, object]:
        """Return OPTIONS of a connection that must notice soon when its server is gone."""
        raise NotImplementedError

    def advisory_lock(self, name: str) -> None:
        """Let transactions that name the same wait for each other, until each has ended."""
        raise NotImplementedError

    def sees_new_commits(self) -> bool:
        """Say whether each statement of the open transaction sees what others have committed before it."""
        return True

    def open_transactions(self) -> frozenset[str] | None:
        """Name what may still commit keys that it has been given by now; None where the database does not tell.

        Until the server starts again no later transaction bears one of these names, but ``PREPARED``, which stands for
        all that are half committed.
        """
        return None
