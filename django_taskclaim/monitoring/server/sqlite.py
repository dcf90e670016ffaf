"""SQLite: no server, and one writer."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any

from django.core.checks import CheckMessage

from django_taskclaim.monitoring.server.base import Server, message

#: SQLite's clock is looked at after so many steps of its machine: some tenths of a millisecond.
INSTRUCTIONS = 20_000


class SQLiteServer(Server):
    """What SQLite reports about itself."""

    def configured_faults(self) -> Iterator[CheckMessage]:
        mode = self.connection.settings_dict["OPTIONS"].get("transaction_mode")
        if str(mode).upper() not in {"IMMEDIATE", "EXCLUSIVE"}:
            yield message(
                "W001",
                f"Transactions of the SQLite database {self.alias!r} begin {mode or 'DEFERRED'}: one that reads before"
                ' it writes fails with "database is locked" as soon as a worker writes beside it.',
                f'DATABASES["{self.alias}"]["OPTIONS"]["transaction_mode"] = "IMMEDIATE"',
            )

    @contextmanager
    def limiting_statements(self, limit: timedelta) -> Iterator[None]:
        """Interrupt what still runs when the block has taken so long: all its statements together."""
        self.connection.ensure_connection()
        driver: Any = self.connection.connection
        end = monotonic() + limit.total_seconds()
        driver.set_progress_handler(lambda: monotonic() > end, INSTRUCTIONS)
        try:
            yield
        finally:
            driver.set_progress_handler(None, 0)
