"""SQLite 3.35+: one writer at a time, so a single UPDATE … RETURNING claims and nothing needs a row lock."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError

from django_taskclaim.db.base import NAMED_LEASES, Dialect
from django_taskclaim.db.sql import ALL, SQL, Table


class SQLite(Dialect):
    """SQLite ignores ``select_for_update`` silently; a lock here is an UPDATE of no row."""

    # SQLite's clock has milliseconds. All moments have one shape, so that comparing texts compares moments.
    now = "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
    moment_after = "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', PRINTF('%%+.3f seconds', {}))"
    greatest = "MAX"
    has_one_writer = True
    names_open_transactions = True

    @contextmanager
    def detecting_rollback(self) -> Iterator[None]:
        yield
        # The driver knows it. A savepoint would be two statements more for each row of an atomic handler.
        session: Any = self.connection.connection
        if session is None or not session.in_transaction:
            raise OperationalError("the transaction is over")

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Begin an immediate transaction: a deferred one that has read fails its first write at once."""
        connection: Any = self.connection
        usual = connection.transaction_mode
        connection.transaction_mode = "IMMEDIATE"
        try:
            yield
        finally:
            connection.transaction_mode = usual

    def update_free(
        self, table: Table, chosen: SQL, assignments: SQL, condition: SQL, returned: str
    ) -> SQL:
        # Nobody writes between the choice and the UPDATE, so the condition is not asked again of each row.
        return super().update_free(table, chosen, assignments, ALL, returned)

    def service_options(self) -> dict[str, object]:
        return {"timeout": 5}

    def advisory_lock(self, name: str) -> None:
        # The session that writes is the only writer. If others have committed since its first read, this is an error.
        self.run(SQL(f"UPDATE {NAMED_LEASES} SET iteration = iteration WHERE name IS NULL"))

    def open_transactions(self) -> frozenset[str]:
        # A writer commits before anybody else can write, so no open transaction has given keys.
        return frozenset()
