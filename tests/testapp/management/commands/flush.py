"""Django's ``flush`` for tests, which end with one: it empties the few tables that have rows and leaves the others.

Django's own empties every table and makes all content types and permissions again: half of the time of a test that
writes a row or two.
"""

from typing import Any

from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management.color import no_style
from django.core.management.commands import flush
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from tests.companions.app.apps import empty_tables

#: Made by ``migrate`` and by every flush of Django's: the same rows each time.
KEPT = (ContentType, Permission)

#: What those tables held after Django's flush, by database.
_facts: dict[str, Any] = {}


class Command(flush.Command):
    """Empty what was written, or everything where a test added or deleted rows that are kept."""

    def handle(self, **options: Any) -> None:
        connection = connections[options["database"]]
        if options["interactive"] or facts(connection) != _facts.get(name_of(connection)):
            super().handle(**options)
            remember(connection)
            return
        tables = filled(connection)
        statements = connection.ops.sql_flush(no_style(), tables, allow_cascade=True)
        connection.ops.execute_sql_flush(statements)
        empty_tables(connection.alias)


def remember(connection: BaseDatabaseWrapper) -> None:
    """Note what the tables that are kept hold in a database that is as Django has just made it."""
    _facts[name_of(connection)] = facts(connection)


def name_of(connection: BaseDatabaseWrapper) -> str:
    return f"{connection.alias}: {connection.settings_dict['NAME']}"


def facts(connection: BaseDatabaseWrapper) -> list[Any]:
    """Return how many rows the tables that are kept have, and the last key."""
    told = {"rows": models.Count("*"), "last": models.Max("pk")}
    return [models.QuerySet(model, using=connection.alias).aggregate(**told) for model in KEPT]


def filled(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the tables that have rows, but for those that are kept."""
    kept = {model._meta.db_table for model in KEPT}
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = sorted(set(names) - kept)
    questions = ", ".join(
        f"EXISTS (SELECT 1 FROM {connection.ops.quote_name(table)})" for table in tables
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {questions}")
        answers = cursor.fetchone()
    return [table for table, answer in zip(tables, answers, strict=True) if answer]
