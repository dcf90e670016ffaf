"""What handlers write down, each entry over the connection it is to prove something about."""

import os
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

from tests.chaos.sql import now

COLUMNS = "work_id, holder, iteration, run, channel, phase, process, at"
#: Not chaos_effect: on SQLite the second connection has a file of its own, for a database has one writer.
SECOND_FILE = ".ledger"

_mine = threading.local()


class Run:
    """One call of a handler, for one row or for a batch."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.name = uuid.uuid4().hex
        self.tokens = [(row.pk, *row.claim.token) for row in rows]
        self.process = str(os.getpid())

    def same(self, using: str = "default") -> None:
        """Write the effect over the handler's own connection, inside its transaction if it has one."""
        self._insert(connections[using], "same", "effect")

    def other(self, phase: str) -> None:
        """Write an entry over a second connection, committed at once; tried again once where that was cut."""
        try:
            self._insert(second_connection(), "other", phase)
        except Error:
            forget_second_connection()
            self._insert(second_connection(), "other", phase)

    def _insert(self, connection: BaseDatabaseWrapper, channel: str, phase: str) -> None:
        row = f"(%s, %s, %s, %s, %s, %s, %s, {now(connection)})"
        values = [(*token, self.name, channel, phase, self.process) for token in self.tokens]
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO chaos_effect ({COLUMNS}) VALUES {', '.join([row] * len(values))}",
                [part for value in values for part in value],
            )


def second_connection() -> BaseDatabaseWrapper:
    """Return this thread's second connection, which belongs to no transaction of the handler's."""
    if not hasattr(_mine, "connection"):
        _mine.connection = _connect()
    connection: BaseDatabaseWrapper = _mine.connection
    return connection


def forget_second_connection() -> None:
    """Close this thread's second connection; the next entry opens another."""
    if hasattr(_mine, "connection"):
        _mine.connection.close()
        del _mine.connection


def _connect() -> BaseDatabaseWrapper:
    settings: dict[str, Any] = dict(connections["default"].settings_dict)
    if connections["default"].vendor != "sqlite":
        return connections.create_connection("default")
    settings["NAME"] = f"{settings['NAME']}{SECOND_FILE}"
    backend = load_backend(settings["ENGINE"])
    connection: BaseDatabaseWrapper = backend.DatabaseWrapper(settings, "ledger")
    return connection


def prepare() -> None:
    """Make the second file where there is one."""
    if connections["default"].vendor != "sqlite":
        return
    drop()
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT sql FROM sqlite_master WHERE name = 'chaos_effect'")
        (table,) = cursor.fetchone()
    connection = _connect()
    with connection.cursor() as cursor:
        cursor.execute(table)
    connection.close()


def gather() -> None:
    """Bring what the second file holds into the table that the oracle reads."""
    connection = connections["default"]
    if connection.vendor != "sqlite":
        return
    with connection.cursor() as cursor:
        cursor.execute("ATTACH %s AS second", [f"{connection.settings_dict['NAME']}{SECOND_FILE}"])
        cursor.execute(
            f"INSERT INTO chaos_effect ({COLUMNS}) SELECT {COLUMNS} FROM second.chaos_effect"
        )
        cursor.execute("DELETE FROM second.chaos_effect")
        cursor.execute("DETACH second")


def drop() -> None:
    """Remove the second file."""
    name = connections["default"].settings_dict["NAME"]
    for ending in ("", "-wal", "-shm"):
        Path(f"{name}{SECOND_FILE}{ending}").unlink(missing_ok=True)
