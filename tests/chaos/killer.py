"""Kills its own process at the n-th boundary of a statement: before the first is 0, after it 1, before the second 2, …

BEGIN and COMMIT count too; Django sends those past ``execute_wrappers``.
"""

import functools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper


class Killer:
    """Counts the boundaries that the threads named so reach, on whatever connections they open."""

    #: What sends a statement that is no cursor's.
    METHODS = ("_commit", "_rollback", "_set_autocommit", "_start_transaction_under_autocommit")

    def __init__(self, at: int | None, thread: str) -> None:
        self.left = at
        self.thread = thread

    def arm(self, wrapper: type[BaseDatabaseWrapper]) -> None:
        """Count from now on; for a process of its own, because nothing is put back."""
        usual = wrapper.__init__

        @functools.wraps(usual)
        def born(connection: BaseDatabaseWrapper, *args: Any, **kwargs: Any) -> None:
            usual(connection, *args, **kwargs)
            connection.execute_wrappers.append(self)

        wrapper.__init__ = born  # type: ignore[method-assign]
        for name in self.METHODS:
            if hasattr(wrapper, name):
                setattr(wrapper, name, self._counted(getattr(wrapper, name)))

    def __call__(self, execute: Callable[..., Any], *args: Any) -> Any:
        self._boundary()
        result = execute(*args)
        self._boundary()
        return result

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            return self(functools.partial(method, *args, **kwargs))

        return counted

    def _boundary(self) -> None:
        if self.left is None or not threading.current_thread().name.startswith(self.thread):
            return
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
