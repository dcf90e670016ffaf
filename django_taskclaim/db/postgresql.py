"""PostgreSQL: one statement claims a batch."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain
from typing import Any
from uuid import UUID

from django.db import InternalError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.db.base import Dialect
from django_taskclaim.db.sql import PREPARED, SQL, Keys, KeyTable, OwnValues, Raw
from django_taskclaim.policy import RENEWALS_PER_LEASE

#: libpq's states for no transaction, and for an open one without error. A transaction that an error has aborted has
#: another state: a savepoint may save it.
NO_TRANSACTION, IN_TRANSACTION = 0, 2

#: Our own sessions wait at most so many milliseconds for a lock.
LOCK_WAIT = 1000

#: Kinds of values that the server reads from their text in an array as it does from a value by itself.
AS_TEXT = type(None), int, float, Decimal, str, UUID, date

#: Our own connection behind a pooler keeps its lock timeout under this name.
WAIT = "_taskclaim_lock_wait"

#: A connection keeps its session and the isolation level of that session under this name.
LEVEL = "_taskclaim_isolation"


class PostgreSQL(Dialect):
    """Locks are NO KEY UPDATE, so that inserting a row with a foreign key to a claimed one does not wait."""

    # now() is the start of the transaction; clock_timestamp() is volatile and would lose the index.
    now = "STATEMENT_TIMESTAMP()"
    moment_after = "(STATEMENT_TIMESTAMP() + {} * INTERVAL '1 second')"
    lock_clause = "FOR NO KEY UPDATE"
    names_open_transactions = True

    @property
    def _isolates_too_much(self) -> bool:
        """Say whether transactions of this session begin at another level than READ COMMITTED.

        OPTIONS may say so, or the server's configuration, a role's or a database's; asked once a session.
        """
        session, level = vars(self.connection).get(LEVEL, (None, ""))
        if session is None or session is not self.connection.connection:
            ((usual,),) = self.fetch(SQL("SHOW default_transaction_isolation"))
            level = configured_isolation(self.connection) or usual
            vars(self.connection)[LEVEL] = self.connection.connection, level
        return "committed" not in level

    @property
    def can_autocommit(self) -> bool:
        has_own_wait = vars(self.connection).get(WAIT) is not None
        return super().can_autocommit and not self._isolates_too_much and not has_own_wait

    @contextmanager
    def beginning(self) -> Iterator[None]:
        yield
        # Two claims that meet under REPEATABLE READ raise an error.
        if (wait := vars(self.connection).get(WAIT)) is not None:
            self.run(SQL(f"SET LOCAL lock_timeout = {wait}"))
        if self._isolates_too_much:
            self.run(SQL("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))

    @contextmanager
    def detecting_rollback(self) -> Iterator[None]:
        # The driver knows the state of the transaction. A savepoint would ask the server twice.
        has_begun, is_over = self._transaction_status() != NO_TRANSACTION, False

        def watch(execute: Callable[..., object], *statement: object) -> object:
            nonlocal has_begun, is_over
            # A transaction begins with its first statement. Code that ends it and goes on begins another one.
            is_over = is_over or (has_begun and self._transaction_status() == NO_TRANSACTION)
            has_begun = True
            return execute(*statement)

        with self.connection.execute_wrapper(watch):
            yield
        if is_over or (has_begun and self._transaction_status() != IN_TRANSACTION):
            raise InternalError("the transaction is over, or was aborted by an error")

    def _transaction_status(self) -> int:
        session: Any = self.connection.connection
        return NO_TRANSACTION if session is None else session.info.transaction_status

    @contextmanager
    def limit_lock_wait(self, seconds: float) -> Iterator[None]:
        self.run(SQL(f"SET LOCAL lock_timeout = {max(1, int(seconds * 1000))}"))
        yield

    def end_idle_transactions(
        self, idle: timedelta, *, ours_alone: bool, atomic: bool | None
    ) -> None:
        milliseconds = int(idle / timedelta(milliseconds=1))
        wait = min(LOCK_WAIT, max(1, milliseconds // RENEWALS_PER_LEASE))
        if self._is_pooled:
            # The next client of the session would inherit the setting, so each transaction sets its own.
            vars(self.connection)[WAIT] = wait if ours_alone else None
            return
        self.run(SQL(f"SET idle_in_transaction_session_timeout = {milliseconds}"))
        if ours_alone:
            self.run(SQL(f"SET lock_timeout = {wait}"))

    @contextmanager
    def guarded_transaction(self, idle: timedelta) -> Iterator[None]:
        asked = max(1, int(idle / timedelta(milliseconds=1)))
        with self.own_transaction(durable=True):
            # The setting is the transaction's: it works behind a transaction pooler, and ends by itself.
            self.run(SQL(f"SET LOCAL idle_in_transaction_session_timeout = {asked}"))
            yield

    @property
    def _is_pooled(self) -> bool:
        """Whether a transaction pooler seems to be in front, so that a session is not ours alone."""
        return bool(self.connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"))

    def session_mark(self) -> Raw | None:
        if self._is_pooled:
            return None
        # The number that the driver knows may be a pooler's.
        asked = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        return tuple(self.fetch(SQL(asked))[0])

    def end_session(self, mark: Raw) -> bool:
        # Process numbers are used again.
        asked = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s"
        return self.fetch(SQL(asked, mark)) == [(True,)]

    def service_options(self) -> dict[str, object]:
        return {
            "connect_timeout": 5,
            "tcp_user_timeout": 10_000,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }

    def listed(self, table: KeyTable, keys: Keys, own: OwnValues) -> SQL:
        """Send each column as one text: to the driver and to the server, a place for each value costs twice as much.

        The text is an array, and the array in front of it says of which type, without the length that a cast would cut
        a value to. Its one element is no key.
        """
        bound = [[cell.params[0] for cell in values] for values in own.values()]
        columns = [*zip(*table.prepared_keys(keys), strict=True), *bound]
        are_bound = all(cell.text == "%s" for values in own.values() for cell in values)
        if not are_bound or not all(map(_is_text, {*map(type, chain.from_iterable(columns))})):
            return super().listed(table, keys, own)
        names = [*table.key, *map(table.column, own)]
        arrays = [f"ARRAY[(SELECT {name} FROM {table.name} WHERE 1 = 0)] || %s" for name in names]
        texts = tuple(map(array_text, columns))
        return SQL(f"SELECT * FROM unnest({', '.join(arrays)})", texts)

    def value_rows(self, table: KeyTable, keys: Keys, own: OwnValues) -> list[SQL]:
        """Begin with a row of nothing but types: texts, and arrays of texts, have none and take that of their column.

        An explicit cast to the column's type would cut a value that does not fit.
        """
        nothing = "(SELECT {} FROM {} WHERE 1 = 0)".format
        typed = [nothing(column, table.name) for column in table.key]
        for field, values in own.items():
            is_text = all(
                v.text == "%s" and isinstance(v.params[0], str | list | None) for v in values
            )
            typed.append(nothing(table.column(field), table.name) if is_text else "NULL")
        return [SQL(", ".join(typed)), *super().value_rows(table, keys, own)]

    def advisory_lock(self, name: str) -> None:
        # The lock is the transaction's, so it works behind a transaction pooler.
        lock = "SELECT 1 FROM (SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))) AS taskclaim_queue"
        self.fetch(SQL(lock, (f"taskclaim:{name}",)))

    def sees_new_commits(self) -> bool:
        ((level,),) = self.fetch(SQL("SHOW transaction_isolation"))
        return "committed" in level

    def open_transactions(self) -> frozenset[str]:
        """Return the virtual ids of the transactions that are open in this database; autovacuum's are left out.

        Not their transaction ids, which they are given with their first write, a moment after the key of its row.
        """
        # A transaction sees the same list of sessions again and again, unless the snapshot is cleared.
        self.fetch(SQL("SELECT pg_stat_clear_snapshot()"))
        names = self.fetch(
            SQL(
                "SELECT lock.virtualxid FROM pg_locks AS lock WHERE lock.locktype = 'virtualxid' AND lock.granted"
                " AND lock.pid <> pg_backend_pid() AND NOT EXISTS (SELECT 1 FROM pg_stat_activity AS session"
                " JOIN pg_database AS here ON here.datname = current_database() WHERE session.pid = lock.pid"
                " AND (session.datid IS DISTINCT FROM here.oid OR session.usesysid IS NULL))"
                f" UNION ALL SELECT '{PREPARED}' FROM pg_prepared_xacts WHERE database = current_database()"
            )
        )
        return frozenset(name for (name,) in names)


def _is_text(kind: type) -> bool:
    return issubclass(kind, AS_TEXT) and not issubclass(kind, Enum)


def array_text(values: Iterable[object]) -> str:
    """Return values, of kinds in AS_TEXT, as PostgreSQL reads an array."""
    texts = ["NULL" if one is None else _quoted(str(one)) for one in values]
    return f"{{{','.join(texts)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def configured_isolation(connection: BaseDatabaseWrapper) -> str:
    """Return the isolation level that OPTIONS ask for, in words; empty for none."""
    asked = connection.settings_dict["OPTIONS"].get("isolation_level")
    return "" if asked is None else str(getattr(asked, "name", asked)).replace("_", " ").lower()
