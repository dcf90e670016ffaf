"""Wake-up calls between sessions of one database: LISTEN and NOTIFY of PostgreSQL; no other database has them.

Nothing depends on a call being heard: workers look by themselves, too. A call that is lost costs them a poll interval.
"""

from collections.abc import Iterator
from functools import cache
from time import monotonic
from typing import Any

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.version import get_version_tuple

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
    """Say whether a session of this database hears calls: with psycopg 3.2, and as the only client of its session."""
    driver: Any = connection
    has_a_pooler = connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    if driver.Database.__name__ != "psycopg" or has_a_pooler:
        return False
    return get_version_tuple(driver.Database.__version__) >= (3, 2)


def listen(connection: BaseDatabaseWrapper) -> Any:
    """Have the session of *connection* hear calls from now on, and return it: after an outage it is another one."""
    with connection.cursor() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
    return connection.connection


def calls_within(seconds: float, connection: BaseDatabaseWrapper) -> Iterator[str]:
    """Yield the table of each call that comes within so many seconds, or came with the answer to a statement."""
    session: Any = connection.connection
    with connection.wrap_database_errors:
        for call in session.notifies(timeout=seconds):
            yield call.payload
