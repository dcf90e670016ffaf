import os
import threading
from collections.abc import Callable
from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class TestAppConfig(AppConfig):
    name = "tests.testapp"

    def ready(self) -> None:
        if path := os.environ.get("TASKCLAIM_TEST_STATEMENTS"):
            connection_created.connect(statements_to(path), weak=False)


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
