"""The sessions of each database: how a statement is sent, how long it may wait, and what transaction it is in."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import ClassVar

from django.db import InterfaceError, InternalError, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.contention import refusal_code
from django_taskclaim.db.sql import SQL, Raw, Table, sql, value
from django_taskclaim.fields import as_utc, moment_reader

#: Whose rows are the advisory locks of databases that have none of a transaction's.
NAMED_LEASES = "taskclaim_namedlease"


class Sessions:
    """One connection, as a session of its database; one subclass for each database."""

    #: The clock of the database, in UTC, in the stored form of a moment.
    now: ClassVar[str]
    #: The same as whole seconds of Unix time.
    unix_time: ClassVar[str]
    #: The moment that lies so many seconds from now as the number in place of the ``{}`` says.
    moment_after: ClassVar[str]
    #: Whether ``open_transactions`` names them; checks ask this, which need no server.
    names_open_transactions: ClassVar[bool] = False
    #: Whether a transaction that writes keeps everybody else from writing anything: no server may be away.
    has_one_writer: ClassVar[bool] = False

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection

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
        return refusal_code(error) is None

    def may_be_of_reading(self, error: Exception) -> bool:
        """Say whether *error* may come from values of a row that cannot be read, and not from a server in trouble."""
        return not isinstance(error, (OperationalError, InterfaceError, InternalError))

    # The clock

    def later(self, wait: timedelta) -> SQL:
        """Return the moment *wait* from now."""
        return sql(self.moment_after, value(wait.total_seconds()))

    def current_time(self) -> datetime:
        """Return what the clock of the database says, in UTC."""
        ((now,),) = self.fetch(SQL(f"SELECT {self.now}"))
        return as_utc(moment_reader(self.connection)(now) or now)

    def writable_at(self, table: Table) -> datetime:
        """Wait until rows of the table can be written, as by a renewal, and return what the clock says then.

        Questions may be answered all the while: beside SQLite's one writer, or beside a migration that locks the table.
        """
        self.wait_to_write(table)
        return self.current_time()

    def wait_to_write(self, table: Table) -> None:
        """Write no row of the table; on SQLite the transaction is the one writer from then on."""
        column = table.column(table.columns.iteration)
        self.run(SQL(f"UPDATE {table.name} SET {column} = {column} WHERE 1 = 0"))

    # Transactions and sessions

    @property
    def autocommits_read_committed(self) -> bool:
        """Whether a statement outside of a transaction is one that sees each other commit at once, as ours must."""
        # SQLite's one writer waits for the one before it before it reads anything.
        return True

    @contextmanager
    def own_transaction(self, *, durable: bool = False, savepoint: bool = True) -> Iterator[None]:
        """Open a transaction that sees each other commit at once (READ COMMITTED).

        Inside a caller's transaction it is a savepoint, or part of it without *savepoint*, or, with *durable*, Django's
        RuntimeError.
        """
        outermost = not self.connection.in_atomic_block and self.connection.get_autocommit()
        block = transaction.atomic(self.connection.alias, savepoint, durable)
        with ExitStack() as stack:
            with self.beginning() if outermost else nullcontext():
                stack.enter_context(block)
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
