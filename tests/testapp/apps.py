import os
import threading
from collections.abc import Callable
from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class TestAppConfig(AppConfig):
    name = "tests.testapp"

    def ready(self) -> None:
        # Sent after migrate and after every flush, so each test finds the table there and empty.
        post_migrate.connect(fresh_percent_table, sender=self)
        if path := os.environ.get("TASKCLAIM_TEST_STATEMENTS"):
            connection_created.connect(statements_to(path), weak=False)


def fresh_percent_table(using: str, **kwargs: Any) -> None:
    """Create the table of ``PercentNames``, which its model only describes, again on *using*."""
    from tests.testapp.models import PercentNames

    connection = connections[using]
    with connection.schema_editor(collect_sql=True) as editor:
        editor.create_model(PercentNames)
        for index in PercentNames._meta.indexes:
            editor.add_index(PercentNames, index)
    table = connection.ops.quote_name(PercentNames._meta.db_table)
    with connection.cursor() as cursor:
        for statement in [f"DROP TABLE IF EXISTS {table}", *editor.collected_sql]:
            cursor.execute(statement.replace("%%", "%"))


def statements_to(path: str) -> Callable[..., None]:
    """Return a receiver that has every statement of a new connection written to *path*, with its thread's name.

    A question whether the connection is still there counts as one; Django tells its wrappers nothing of it.
    """

    def write(text: str) -> None:
        os.write(file, f"{threading.current_thread().name}: {text}\n".encode())

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        write(" ".join(sql.split()))
        return execute(sql, params, many, context)

    def follow(connection: Any, **kwargs: Any) -> None:
        if note in connection.execute_wrappers:
            return
        connection.execute_wrappers.append(note)
        is_usable = connection.is_usable

        def noted() -> bool:
            write("PING")
            return bool(is_usable())

        connection.is_usable = noted

    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return follow
