"""How each database claims, one file each; no verb asks for a database's name or abilities."""

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import NotSupportedError, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler

from django_taskclaim.db.base import Dialect
from django_taskclaim.db.mysql import MySQL
from django_taskclaim.db.postgresql import PostgreSQL
from django_taskclaim.db.sql import SQL
from django_taskclaim.db.sqlite import SQLite
from django_taskclaim.fields import MomentField
from django_taskclaim.tables import LIMITS, Switch

_DIALECTS: dict[str, type[Dialect]] = {"postgresql": PostgreSQL, "mysql": MySQL}
# The first version with UPDATE … RETURNING.
if sqlite3.sqlite_version_info >= (3, 35):
    _DIALECTS["sqlite"] = SQLite


def dialect_for(connection: BaseDatabaseWrapper) -> Dialect:
    """Return the dialect that the connection's database speaks; NotSupportedError for a database of any other kind."""
    if not is_supported(connection):
        raise NotSupportedError(
            "Rows are claimed on PostgreSQL, MySQL, MariaDB and SQLite (3.35 or newer), not on"
            f" {connection.display_name}."
        )
    return _DIALECTS[connection.vendor](connection)


def is_supported(connection: BaseDatabaseWrapper) -> bool:
    """Say whether rows can be claimed on this kind of database."""
    return connection.vendor in _DIALECTS


# For use in querysets


class _Expression(models.Expression):
    """An expression that each database writes in its own way."""

    def as_sql(  # type: ignore[override]  # older versions of Django want a list
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> tuple[str, list[Any]]:
        text, params = self.fragment(dialect_for(connection))
        return text, list(params)

    def fragment(self, dialect: Dialect) -> SQL:
        """Return the expression as one database writes it."""
        raise NotImplementedError


class SwitchIsOn(_Expression):
    """True while nobody has paused one of the scopes, as the database sees it when the statement starts.

    With *unlimited*, true only while none of them stores a limit either.
    """

    conditional = True
    output_field = models.BooleanField()

    def __init__(self, scopes: Sequence[str], *, unlimited: bool = False) -> None:
        super().__init__()
        self.scopes, self.unlimited = tuple(scopes), unlimited

    def fragment(self, dialect: Dialect) -> SQL:
        stops = (
            "taskclaim_s.paused_at IS NOT NULL"
            f" AND (taskclaim_s.until IS NULL OR taskclaim_s.until > {dialect.now})"
        )
        limits = [f"taskclaim_s.{each} IS NOT NULL" for each in LIMITS] if self.unlimited else []
        marks = ", ".join(["%s"] * len(self.scopes))
        return SQL(
            f"NOT EXISTS (SELECT 1 FROM {Switch._meta.db_table} taskclaim_s"
            f" WHERE taskclaim_s.scope IN ({marks}) AND ({' OR '.join([stops, *limits])}))",
            self.scopes,
        )


class DatabaseNow(_Expression):
    """The database's own clock, comparable with a ``MomentField``."""

    output_field = MomentField()

    def fragment(self, dialect: Dialect) -> SQL:
        return SQL(dialect.now)


class DatabaseLater(_Expression):
    """The moment a while from now by the database's own clock; a negative wait is a moment past."""

    output_field = MomentField()

    def __init__(self, wait: timedelta) -> None:
        super().__init__()
        self.wait = wait

    def fragment(self, dialect: Dialect) -> SQL:
        return dialect.later(self.wait)
