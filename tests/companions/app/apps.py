from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate


class SourcesConfig(AppConfig):
    name = "tests.companions.app"
    label = "sources"

    def ready(self) -> None:
        # Sent after migrate and after every flush, so each test finds the tables there and empty.
        post_migrate.connect(empty_tables, sender=self)


#: The databases on which this process has found, or made, the tables.
_made: set[str] = set()


def empty_tables(using: str, **kwargs: Any) -> None:
    """Make the tables that the models only describe, or empty them: no other test pays for their flush."""
    from tests.companions.app.models import TABLES

    connection = connections[using]
    name = f"{using}: {connection.settings_dict['NAME']}"
    if name not in _made:
        there = set(connection.introspection.table_names())
        with connection.schema_editor() as editor:
            for model in TABLES:
                if model._meta.db_table not in there:
                    editor.create_model(model)
                    for index in model._meta.indexes:
                        editor.add_index(model, index)
        _made.add(name)
    for model in reversed(TABLES):
        rows = model._base_manager.using(using)
        if rows.exists():
            rows._raw_delete(using)
