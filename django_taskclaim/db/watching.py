"""Noticing that a transaction is not the one that it was: what a block wrote is gone, although it ended well."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper


@contextmanager
def savepoint_around(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Take a savepoint and release it after the block: an error of the database where it is gone."""
    savepoint = str(connection.savepoint())
    yield
    connection.savepoint_commit(savepoint)


class Standing:
    """Knows, of the transaction that statements of a block are sent in, whether it has stood all the time.

    *stands* asks the driver. A transaction begins with its first statement.
    """

    def __init__(self, stands: Callable[[], bool]) -> None:
        self._stands = stands
        self._began = stands()
        self._broke = False

    def __call__(
        self, execute: Callable[..., Any], text: Any, params: Any, many: Any, context: Any
    ) -> Any:
        # Whoever ends it and goes on has another one.
        self._broke = self._broke or (self._began and not self._stands())
        self._began = True
        return execute(text, params, many, context)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or was aborted."""
        return self._broke or (self._began and not self._stands())
