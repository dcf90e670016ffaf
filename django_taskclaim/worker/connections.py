"""What a worker's threads do with their connections between rows; the connections themselves are ``connecting``'s."""

import contextlib
from collections.abc import Container
from typing import Any

from django.db import connections

from django_taskclaim.connecting import opened_here


def left_open(*, but_for: Container[str] = ()) -> list[str]:
    """Return the aliases on which the thread's last row left a transaction open, and forget those connections.

    Those in *but_for* are somebody else's affair.
    """
    unclean = [
        connection
        for connection in opened_here()
        if connection.alias not in but_for
        and (connection.in_atomic_block or _commits_nothing(connection))
    ]
    for connection in unclean:
        # Their hooks will not run; a claim that waits for one would seem to have ended.
        connection.run_on_commit = []
        with contextlib.suppress(Exception):
            connection.close()
        # Inside a block that nobody will leave the wrapper would stay closed for ever.
        del connections[connection.alias]
    return [connection.alias for connection in unclean]


def _commits_nothing(connection: Any) -> bool:
    usual = bool(connection.settings_dict["AUTOCOMMIT"])
    return connection.connection is not None and connection.autocommit != usual


def tidy_up(*, idle: bool = False) -> None:
    """Leave the thread's connections fit for the next row: healthy, not too old, no query log growing.

    Django's default CONN_MAX_AGE of 0 means the end of each request; for a thread that is done when it is *idle*, so
    that not every row pays for a connection of its own.
    """
    for connection in opened_here():
        connection.queries_log.clear()
        if idle or connection.errors_occurred or connection.settings_dict["CONN_MAX_AGE"]:
            connection.close_if_unusable_or_obsolete()
