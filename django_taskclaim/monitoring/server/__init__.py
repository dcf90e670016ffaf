"""The database server as people look at it: statistics, settings, lag; one file for each database."""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim import conf
from django_taskclaim.db import dialect_for
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line
from django_taskclaim.monitoring.server.base import Server
from django_taskclaim.monitoring.server.mysql import MySQLServer
from django_taskclaim.monitoring.server.postgresql import PostgreSQLServer
from django_taskclaim.monitoring.server.sqlite import SQLiteServer

T = TypeVar("T")

logger = logging.getLogger(__name__)

_SERVERS: dict[str, type[Server]] = {
    "postgresql": PostgreSQLServer,
    "mysql": MySQLServer,
    "sqlite": SQLiteServer,
}


def server_for(connection: BaseDatabaseWrapper) -> Server:
    """Return what can be asked of the connection's database; NotSupportedError where no row can be claimed on it."""
    dialect = dialect_for(connection)
    return _SERVERS[connection.vendor](dialect)


def in_time(alias: str, ask: Callable[[], T], limit: timedelta | None = None) -> T | None:
    """Return what *ask* reads from the database; None where that is not finished in PAGE_TIMEOUT, or *limit*."""
    try:
        with server_for(connections[alias]).bounded(limit or conf.duration("PAGE_TIMEOUT")):
            return ask()
    except (Error, TaskClaimError) as error:
        logger.warning("Not all of a page was read on %r: %s", alias, first_line(error))
        if not connections[alias].in_atomic_block:
            connections[alias].close_if_unusable_or_obsolete()
        return None
