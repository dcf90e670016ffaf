"""SQLite 3.35+: one writer at a time, so a single UPDATE … RETURNING claims and nothing needs a row lock."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any

from django.db import OperationalError, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.columns import ClaimColumns, KeyColumns
from django_taskclaim.db.base import NAMED_LEASES, Dialect
from django_taskclaim.db.claim_spec import ClaimStatement, limited
from django_taskclaim.db.inspection import LARGE, Fault, Plan, option_hint, real_name
from django_taskclaim.db.sql import SQL, Key, KeyTable, Table, sql, value
from django_taskclaim.fields import AnyField
from django_taskclaim.states import Token

#: SQLite's clock is looked at after so many steps of its machine: some tenths of a millisecond.
INSTRUCTIONS = 20_000


#: SQLITE_IOERR, the low byte of its extended codes.
IO_ERROR = 10


def _is_of_decoding(error: Exception) -> bool:
    """Say whether a text is not UTF-8: an OperationalError of the driver's own, which has no code of SQLite's."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.OperationalError) and not hasattr(cause, "sqlite_errorcode")


class RowValues(KeyTable):
    """A table whose composite keys are compared as one value: an OR of a thousand is too deep for SQLite."""

    def keyed_by_columns(self, keys: Sequence[Key]) -> SQL:
        params = tuple(part for key in keys for part in self.prepared_key(key))
        row = f"({', '.join(['%s'] * len(self.key))})"
        names = self.list_of(self.columns.key)
        # Selected from, for the index of the key is not used for VALUES alone.
        listed = ", ".join([row] * len(keys))
        return SQL(f"({names}) IN (SELECT * FROM (VALUES {listed}))", params)


class ClaimRowValues(RowValues, Table):
    """The same with claim columns. The state of a row is a condition beside its key, never the way to find it."""

    def __init__(self, columns: ClaimColumns, connection: BaseDatabaseWrapper) -> None:
        super().__init__(columns, connection)
        # The plus takes the column out of the choice of an index: without statistics SQLite would rather read every
        # open row than find a hundred by their keys.
        self.status = f"+{self.status}"


class SQLite(Dialect):
    """SQLite ignores ``select_for_update`` silently; a lock here is an UPDATE that changes nothing."""

    # Its clock has milliseconds; one shape everywhere, so that comparing texts compares moments.
    now = "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
    moment_after = "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', {})"
    unix_time = "CAST(STRFTIME('%%s', 'now') AS INTEGER)"
    greatest = "MAX"
    locks_in_key_order = False
    claims_in_one_statement = True
    has_one_writer = True
    has_server = False
    names_open_transactions = True

    def table(self, columns: ClaimColumns) -> Table:
        return ClaimRowValues(columns, self.connection)

    def key_table(self, columns: KeyColumns) -> KeyTable:
        return RowValues(columns, self.connection)

    def keyed_table(self, columns: KeyColumns) -> KeyTable:
        return RowValues(columns, self.connection)

    def may_be_done(self, error: Exception) -> bool:
        # No server is between the statement and its answer, but a file system that fails may have kept its COMMIT.
        code = getattr(error.__cause__, "sqlite_errorcode", None)
        return code is None or code & 0xFF == IO_ERROR

    def may_be_of_reading(self, error: Exception) -> bool:
        return _is_of_decoding(error) or super().may_be_of_reading(error)

    def amount(self, wait: timedelta) -> str:
        return f"{wait.total_seconds():+.3f} seconds"

    @contextmanager
    def own_transaction(self, *, durable: bool = False) -> Iterator[None]:
        """Open an immediate transaction: a deferred one that has read fails its first write at once."""
        if self.connection.in_atomic_block:
            with transaction.atomic(using=self.connection.alias, durable=durable):
                yield
            return
        with self._immediate():
            block = transaction.atomic(using=self.connection.alias, durable=durable)
            block.__enter__()
        try:
            yield
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            raise
        else:
            block.__exit__(None, None, None)

    @contextmanager
    def kept_whole(self) -> Iterator[None]:
        yield
        session: Any = self.connection.connection
        if session is None or not session.in_transaction:
            raise OperationalError("the transaction is over")

    @contextmanager
    def _immediate(self) -> Iterator[None]:
        connection: Any = self.connection
        connection.ensure_connection()
        usual = connection.transaction_mode
        connection.transaction_mode = "IMMEDIATE"
        try:
            yield
        finally:
            connection.transaction_mode = usual

    @contextmanager
    def time_limit(self, limit: timedelta) -> Iterator[None]:
        """Interrupt whatever still runs when the block has taken so long: all its statements together."""
        self.connection.ensure_connection()
        raw: Any = self.connection.connection
        end = monotonic() + limit.total_seconds()
        raw.set_progress_handler(lambda: monotonic() > end, INSTRUCTIONS)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)

    def service_options(self) -> dict[str, Any]:
        return {"timeout": 5}

    def whole_claim(self, statement: ClaimStatement) -> SQL:
        table = statement.table
        text, params = statement.claimable
        return sql(
            "UPDATE {} SET {} WHERE {} IN ({}) AND {} RETURNING {}",
            table.name,
            statement.assignments,
            self._key_tuple(table),
            limited(statement.candidates),
            # The state is a condition beside the key, never the way to find the row; see ``ClaimRowValues``.
            SQL(text.replace(table.qualified(table.columns.status), table.status), params),
            self._returned(table, statement.fields),
        )

    def lock_first(
        self, queryset: "models.QuerySet[Any]", table: Table, limit: int, fields: Sequence[AnyField]
    ) -> list[list[Any]]:
        # Unordered: the one writer meets nobody, and an order by key would have the whole table walked.
        rows = self.compiled(queryset.order_by(), limit, table.columns.key)
        if rows is None:
            return []
        return self._touch(table, sql("{} IN ({})", self._key_tuple(table), rows), fields)

    def lock_in_order(
        self, queryset: "models.QuerySet[Any]", table: KeyTable, limit: int, *, deleting: bool
    ) -> list[Key]:
        # The immediate transaction that this runs in is the lock, of all rows there are.
        key = table.columns.key
        return [table.key_of(row) for row in self.first(queryset, table, limit, key)]

    def lock_standing(
        self, table: Table, token: Token, keys: Sequence[Key], *, wait: bool = True
    ) -> list[Key]:
        fields = table.columns.key
        held = sql("{} AND {}", table.keyed(keys), table.standing(token))
        return [table.key_of(row) for row in self._touch(table, held, fields)]

    def lock_at_once(
        self,
        table: KeyTable,
        keys: Sequence[Key],
        fields: Sequence[AnyField],
        *,
        wait: bool = False,
    ) -> list[list[Any]]:
        # The immediate transaction that this runs in is the lock.
        return self.read(table, keys, fields)

    def _touch(self, table: Table, condition: SQL, fields: Sequence[AnyField]) -> list[list[Any]]:
        iteration = table.column(table.columns.iteration)
        statement = sql(
            "UPDATE {} SET {} WHERE {} RETURNING {}",
            table.name,
            f"{iteration} = {iteration}",
            condition,
            self._returned(table, fields),
        )
        return table.python_rows(fields, self.fetch(statement))

    def lock_keyed(self, table: KeyTable, keys: Sequence[Key]) -> set[Key]:
        return self.present(table, keys)

    def renew_held(
        self, table: Table, token: Token, keys: Sequence[Key], lease: timedelta
    ) -> Sequence[Key]:
        # Nobody else has a row locked: who writes has the database.
        return self.update_held(table, token, keys, [self.extension(table, lease)])

    def advisory_lock(self, name: str) -> None:
        # There is one writer, and whoever writes is it; what others committed after a read of ours is an error here.
        self.run(SQL(f"UPDATE {NAMED_LEASES} SET iteration = iteration WHERE name IS NULL"))

    def open_transactions(self) -> frozenset[str]:
        # Who writes gives the keys and commits before anybody else can write.
        return frozenset()

    def _key_tuple(self, table: Table) -> str:
        names = table.list_of(table.columns.key)
        return f"({names})" if len(table.key) > 1 else names

    def _returned(self, table: Table, fields: Sequence[AnyField]) -> str:
        return ", ".join(table.column(field) for field in fields)

    # What people ask about the database

    def explain(self, statement: SQL, table: Table, *, may_sort: bool) -> Plan:
        """Judge small tables leniently only where statistics exist: without them SQLite plans alike at any size."""
        # The driver keeps statements, and a kept EXPLAIN goes on telling of an index that is gone.
        ((schema,),) = self.fetch(SQL("PRAGMA schema_version"))
        asked = sql("EXPLAIN QUERY PLAN /* schema {} */ {}", str(schema), statement)
        lines = tuple(row[-1] for row in self.fetch(asked))
        name = real_name(table.columns.owner._meta.db_table)
        walks = (f"SCAN {name} ", f"SCAN TABLE {name} ")
        small = self._counted_rows(name) < LARGE
        return Plan(
            lines,
            sorts=not may_sort
            and not small
            and any(line.startswith("USE TEMP B-TREE") and "ORDER BY" in line for line in lines),
            scans=not small and any(f"{line} ".startswith(walks) for line in lines),
        )

    def _counted_rows(self, table_name: str) -> float:
        """Return how many rows ANALYZE counted; no number is too large where it never ran."""
        if not self.fetch(SQL("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'")):
            return float("inf")
        counts = self.fetch(sql("SELECT stat FROM sqlite_stat1 WHERE tbl = {}", value(table_name)))
        return max((float(stat.split()[0]) for (stat,) in counts), default=float("inf"))

    def configured_faults(self) -> Iterator[Fault]:
        alias, options = self.connection.alias, self.connection.settings_dict["OPTIONS"]
        mode = options.get("transaction_mode")
        if str(mode).upper() not in {"IMMEDIATE", "EXCLUSIVE"}:
            yield Fault(
                "W001",
                f"Transactions of the SQLite database {alias!r} begin {mode or 'DEFERRED'}: one that reads before it"
                ' writes fails with "database is locked" as soon as a worker writes beside it.',
                option_hint(alias, "transaction_mode", '"IMMEDIATE"'),
            )

    def server_faults(self, tables: Sequence[Table]) -> Iterator[Fault]:
        version: tuple[int, ...] = self.connection.Database.sqlite_version_info  # type: ignore[attr-defined]
        if version < OLDEST:
            yield Fault(
                "E101",
                f"SQLite {'.'.join(map(str, version))} has no UPDATE … RETURNING, which every claim needs.",
                f"Use a Python that brings SQLite {'.'.join(map(str, OLDEST))} or newer.",
            )


OLDEST = (3, 35)
