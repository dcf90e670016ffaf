"""The database server as people look at it: statistics, settings, lag; one file for each database."""

from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.db import dialect_for
from django_taskclaim.monitoring.server.base import Estimate, Server
from django_taskclaim.monitoring.server.mysql import MySQLServer
from django_taskclaim.monitoring.server.postgresql import PostgreSQLServer
from django_taskclaim.monitoring.server.sqlite import SQLiteServer

__all__ = ["Estimate", "Server", "server_for"]

_SERVERS: dict[str, type[Server]] = {
    "postgresql": PostgreSQLServer,
    "mysql": MySQLServer,
    "sqlite": SQLiteServer,
}


def server_for(connection: BaseDatabaseWrapper) -> Server:
    """Return what can be asked of the connection's database; NotSupportedError where no row can be claimed on it."""
    return _SERVERS[connection.vendor](dialect_for(connection))
