"""What the server is told of a session of ours: how long it may wait, run and idle, and when it is to end."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django_taskclaim.db.keyed import KeyedTables


class Sessions(KeyedTables):
    """The part of a dialect that bounds and ends sessions; where the database cannot be told, nothing happens."""

    @contextmanager
    def limit_lock_wait(self, seconds: float) -> Iterator[None]:
        """Let the open transaction wait at most *seconds* for a lock in this block, where the database can be told so.

        On PostgreSQL that holds until the transaction ends.
        """
        yield

    def end_idle_transactions(self, idle: timedelta, *, ours_alone: bool) -> None:
        """Let the server end this session once a transaction of it has been idle for so long.

        A process that is frozen in the middle of one would keep its row locks otherwise. *ours_alone* says that no
        code of the user's runs on the connection, so a session that is idle outside a transaction may end as well.
        """

    def limit_idle_session(self, idle: timedelta | None) -> None:
        """Let the server end this session once it has been idle for so long, where it knows no idle transactions."""

    def session_mark(self) -> Any:
        """Return what ``end_session`` finds this connection's new session by; None where nothing can end it."""
        return None

    def end_session(self, mark: Any) -> bool:
        """End another of our sessions: its transaction is rolled back, its locks are freed. False if it is gone.

        Another session that has got its number meanwhile is left alone.
        """
        return False

    def service_options(self) -> dict[str, Any]:
        """Return OPTIONS of a connection that must notice soon when its server is gone."""
        return {}
