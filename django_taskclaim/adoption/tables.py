"""Which way each database takes."""

from typing import Any

from django.db import models

from django_taskclaim.adoption.live import LiveTable
from django_taskclaim.adoption.mysql import MySQLTable
from django_taskclaim.adoption.postgresql import PostgreSQLTable
from django_taskclaim.adoption.sqlite import SQLiteTable

_KINDS: dict[str, type[LiveTable]] = {
    "postgresql": PostgreSQLTable,
    "mysql": MySQLTable,
    "sqlite": SQLiteTable,
}


def live_table(
    schema_editor: Any, model: type[models.Model], *, allow_rewrite: bool = False
) -> LiveTable:
    """Return the table of *model*, to be changed in the way of the schema editor's database."""
    kind = _KINDS.get(schema_editor.connection.vendor, LiveTable)
    return kind(schema_editor, model, allow_rewrite=allow_rewrite)
