"""What holds while a block runs, and is undone at its end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection
from django.dispatch import Signal

from tests.querysets.support import execute, quoted, table_of


@contextmanager
def connected(signal: Signal, receiver: Callable[..., Any], sender: Any = None) -> Iterator[None]:
    """The receiver hears the signal."""
    signal.connect(receiver, sender=sender)
    try:
        yield
    finally:
        signal.disconnect(receiver, sender=sender)


@contextmanager
def autocommit_off() -> Iterator[None]:
    """The block manages its transactions by hand."""
    connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    try:
        yield
    finally:
        connection.set_autocommit(True)


@contextmanager
def column_away(model: Any, column: str) -> Iterator[None]:
    """The column has another name."""
    rename = f"ALTER TABLE {table_of(model)} RENAME COLUMN"
    execute(f"{rename} {quoted(column)} TO mislaid")
    try:
        yield
    finally:
        execute(f"{rename} mislaid TO {quoted(column)}")


@contextmanager
def table_made(model: Any) -> Iterator[None]:
    """The model has its table."""
    with connection.schema_editor() as editor:
        editor.create_model(model)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(model)
