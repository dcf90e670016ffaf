"""What the databases do differently, one file each; nothing outside asks for a database's name or abilities."""

from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.dialects.base import Dialect
from django_taskclaim.dialects.expressions import DatabaseLater, DatabaseNow, KeyIn, SwitchIsOn
from django_taskclaim.dialects.generic import Generic
from django_taskclaim.dialects.mysql import MySQL
from django_taskclaim.dialects.orders import ClaimOrder, Renewal, Spellings
from django_taskclaim.dialects.postgresql import PostgreSQL
from django_taskclaim.dialects.sqlite import SQLite
from django_taskclaim.dialects.watching import savepoint_around

__all__ = [
    "ClaimOrder",
    "DatabaseLater",
    "DatabaseNow",
    "Dialect",
    "KeyIn",
    "Renewal",
    "Spellings",
    "SwitchIsOn",
    "dialect_for",
    "savepoint_around",
]

_DIALECTS: dict[str, type[Dialect]] = {"postgresql": PostgreSQL, "mysql": MySQL, "sqlite": SQLite}


def dialect_for(connection: BaseDatabaseWrapper) -> Dialect:
    """Return the dialect that the connection's database speaks."""
    return _DIALECTS.get(connection.vendor, Generic)(connection)
