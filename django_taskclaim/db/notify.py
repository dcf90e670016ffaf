"""Wake-up calls between sessions of one database: LISTEN and NOTIFY of PostgreSQL; no other database has them.

Nothing depends on a call being heard: workers look by themselves, too. A call that is lost costs them a poll interval.
"""

from collections.abc import Callable
from functools import cache
from time import monotonic
from typing import Any

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

#: All tables share one channel: the call is the table's name.
CHANNEL = "taskclaim"

#: The least time between two looks of a worker for calls, in seconds.
QUIET = 0.05
#: A process that has called makes no further call for that table for so many seconds: inserts hardly cost more then.
#: Who hears a call looks at once, and again at the end of the silence, so no row is passed over and no timer runs here.
SILENCE = 0.25


# Calling idle workers when there are new rows, after the commit

#: The models that hold our columns and had a handler that wants to be called; filled as handlers are registered.
called_for: set[type[models.Model]] = set()


class _Caller:
    """What this process calls for one table: one call, then silence for a while."""

    def __init__(self, table: str, using: str) -> None:
        self.table, self.using = table, using
        self.silent_until = 0.0

    def after_commit(self) -> None:
        if monotonic() < self.silent_until:
            return
        # It begins before the call: workers look for later rows when it ends.
        self.silent_until = monotonic() + SILENCE
        connection = connections[self.using]
        connection.ensure_connection()
        # Such a transaction writes. Nobody needs to wait until it is on disk.
        asks = "SELECT pg_notify(%s, %s), set_config('synchronous_commit', 'off', true)"
        # Django's cursor is not used, so tests of users that count queries always count the same ones.
        driver: Any = connection.connection
        with connection.wrap_database_errors, driver.cursor() as cursor:
            cursor.execute(asks, [CHANNEL, self.table])


_caller = cache(_Caller)


def call_workers(owner: type[models.Model], using: str) -> None:
    """Have idle workers look for rows of *owner*'s table once what was written is committed; nothing unless asked for.

    Not in the transaction itself: PostgreSQL lets transactions that call commit one after the other.
    """
    connection = connections[using]
    if owner not in called_for or connection.vendor != "postgresql":
        return
    caller = _caller(owner._meta.db_table, using)
    if not connection.in_atomic_block and not connection.get_autocommit():
        # Without autocommit Django does not notice the commit.
        return
    # A second call does no harm, but each row saved in the transaction would add one.
    for savepoints, hook, *_ in connection.run_on_commit[-1:]:
        if hook == caller.after_commit and savepoints <= set(connection.savepoint_ids):
            return
    transaction.on_commit(caller.after_commit, using=using, robust=True)


# Hearing


def can_hear(connection: BaseDatabaseWrapper) -> bool:
    """Say whether a session of this database hears calls: with psycopg 3, and as the only client of its session."""
    driver: Any = connection
    has_a_pooler = connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    return driver.Database.__name__ == "psycopg" and not has_a_pooler


class Listener:
    """One session that listens, until its connection is closed."""

    def __init__(self, connection: BaseDatabaseWrapper, heard: Callable[[str], None]) -> None:
        """Listen on *connection* from now on, and have *heard* called with each call's table."""
        with connection.cursor() as cursor:
            self._driver: Any = connection.connection
            # Calls also arrive with the answers to statements.
            self._driver.add_notify_handler(lambda notify: heard(notify.payload))
            cursor.execute(f"LISTEN {CHANNEL}")
        self._errors, self._heard = connection.wrap_database_errors, heard

    def still_on(self, connection: BaseDatabaseWrapper) -> bool:
        """Say whether *connection* is the session that listens: after an outage it is another one."""
        return connection.connection is self._driver and not self._driver.closed

    def fileno(self) -> int:
        """Return what becomes readable with the next call; OSError once the session has ended."""
        if self._driver.closed:
            raise OSError("the session has ended")
        return int(self._driver.fileno())

    def take(self) -> None:
        """Take what has come while no statement was under way; OperationalError where that was the session's end."""
        raw, encoding = self._driver.pgconn, self._driver.info.encoding
        with self._errors:
            raw.consume_input()
            while notify := raw.notifies():
                self._heard(notify.extra.decode(encoding))
