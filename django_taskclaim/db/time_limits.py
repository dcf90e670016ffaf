"""A budget of time that several statements share."""

from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

from django.db import OperationalError

#: The server is told anew when so much of what it knows as the limit is gone: quick statements cost no second one.
SLACK = 0.1


class TimeBudget:
    """Wraps the statements of a connection: each may take what those before it have left."""

    def __init__(self, limit: timedelta, tell: Callable[[timedelta], None]) -> None:
        """Begin now; *tell* tells the server how long a statement may take from then on."""
        self._tell = tell
        self._told = limit.total_seconds()
        self._ends = monotonic() + self._told
        self._telling = False

    def __call__(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        if not self._telling:
            self._take_account()
        return execute(sql, params, many, context)

    def _take_account(self) -> None:
        left = self._ends - monotonic()
        if left <= 0:
            raise OperationalError("The time for these questions is over.")
        if self._told - left <= SLACK:
            return
        self._telling = True
        try:
            self._tell(timedelta(seconds=left))
        finally:
            self._telling = False
        self._told = left
