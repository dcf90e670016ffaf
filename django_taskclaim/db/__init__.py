"""What the databases do differently, one file each; nothing outside asks for a database's name or abilities."""

from django.db import NotSupportedError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.db.base import Dialect
from django_taskclaim.db.claim_spec import Bound, ClaimedRow, ClaimSpec, ClaimStatement
from django_taskclaim.db.expressions import DatabaseLater, DatabaseNow, KeyIn, SwitchIsOn
from django_taskclaim.db.mysql import MySQL
from django_taskclaim.db.postgresql import PostgreSQL
from django_taskclaim.db.sqlite import SQLite
from django_taskclaim.db.watching import savepoint_around

__all__ = [
    "Bound",
    "ClaimSpec",
    "ClaimStatement",
    "ClaimedRow",
    "DatabaseLater",
    "DatabaseNow",
    "Dialect",
    "KeyIn",
    "SwitchIsOn",
    "dialect_for",
    "is_supported",
    "savepoint_around",
]

_DIALECTS: dict[str, type[Dialect]] = {"postgresql": PostgreSQL, "mysql": MySQL, "sqlite": SQLite}


def dialect_for(connection: BaseDatabaseWrapper) -> Dialect:
    """Return the dialect that the connection's database speaks; NotSupportedError for a database of any other kind."""
    if not is_supported(connection):
        raise NotSupportedError(
            f"Rows are claimed on PostgreSQL, MySQL, MariaDB and SQLite, not on {connection.display_name}."
        )
    return _DIALECTS[connection.vendor](connection)


def is_supported(connection: BaseDatabaseWrapper) -> bool:
    """Say whether rows can be claimed on this kind of database."""
    return connection.vendor in _DIALECTS
