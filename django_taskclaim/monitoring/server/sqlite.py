"""SQLite: no server, one writer, and statistics only where somebody has run ANALYZE."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any

from django.core.checks import CheckMessage

from django_taskclaim.db.sql import SQL, Table, real_name, sql
from django_taskclaim.findings import message
from django_taskclaim.monitoring.server.base import LARGE, Plan, Server, option_hint

#: SQLite's clock is looked at after so many steps of its machine: some tenths of a millisecond.
INSTRUCTIONS = 20_000

#: The first version with UPDATE … RETURNING.
OLDEST = (3, 35)


class SQLiteServer(Server):
    """What SQLite reports about itself."""

    def explain(self, statement: SQL, table: Table) -> Plan:
        """Judge small tables leniently only where statistics exist: without them SQLite plans alike at any size."""
        # The driver keeps statements, and a kept EXPLAIN goes on naming an index that is gone.
        ((schema,),) = self.ask("PRAGMA schema_version")
        asked = sql("EXPLAIN QUERY PLAN /* schema {} */ {}", str(schema), statement)
        lines = tuple(row[-1] for row in self.dialect.fetch(asked))
        name = real_name(table.model_table)
        walks = (f"SCAN {name} ", f"SCAN TABLE {name} ")
        small = self._counted_rows(name) < LARGE
        return Plan(
            lines,
            sorts=not small
            and any(line.startswith("USE TEMP B-TREE") and "ORDER BY" in line for line in lines),
            scans=not small and any(f"{line} ".startswith(walks) for line in lines),
        )

    def _counted_rows(self, table_name: str) -> float:
        """Return how many rows ANALYZE counted; no number is too large where it never ran."""
        if not self.ask("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"):
            return float("inf")
        counts = self.ask("SELECT stat FROM sqlite_stat1 WHERE tbl = %s", table_name)
        return max((float(stat.split()[0]) for (stat,) in counts), default=float("inf"))

    def configured_faults(self) -> Iterator[CheckMessage]:
        mode = self.connection.settings_dict["OPTIONS"].get("transaction_mode")
        if str(mode).upper() not in {"IMMEDIATE", "EXCLUSIVE"}:
            yield message(
                "W001",
                f"Transactions of the SQLite database {self.alias!r} begin {mode or 'DEFERRED'}: one that reads before"
                ' it writes fails with "database is locked" as soon as a worker writes beside it.',
                option_hint(self.alias, "transaction_mode", '"IMMEDIATE"'),
            )

    def server_faults(self, tables: Sequence[Table]) -> Iterator[CheckMessage]:
        version = sqlite3.sqlite_version_info
        if version < OLDEST:
            yield message(
                "E101",
                f"SQLite {'.'.join(map(str, version))} has no UPDATE … RETURNING, which every claim needs.",
                f"Use a Python that brings SQLite {'.'.join(map(str, OLDEST))} or newer.",
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

    @contextmanager
    def writing_nothing(self) -> Iterator[None]:
        # A transaction of its own may begin IMMEDIATE, and would keep writers waiting.
        yield

    def estimate(self, table: Table) -> None:
        return None
