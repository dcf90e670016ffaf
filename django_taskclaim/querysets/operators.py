"""What an operator does to rows that somebody else may hold; ``ClaimQuerySet`` inherits these verbs."""

from typing import TypeVar

from asgiref.sync import sync_to_async
from django.db import models

from django_taskclaim.failures import recorded
from django_taskclaim.querysets import operating
from django_taskclaim.states import Status

M = TypeVar("M", bound=models.Model)


class OperatorVerbs(models.QuerySet[M]):
    """Acts that need no token: the holder of a running row loses it, and its late writes raise ``ClaimLost``."""

    def fail_rows(
        self, error: BaseException | str, *, running: bool = False, complete: bool = False
    ) -> int:
        """End open and paused rows badly and return how many; running and complete ones only when named.

        *error* is recorded where the model has the columns for it. No try is charged, and none is left: the rows wait
        for a ``reset``. The holders of running rows lose them.
        """
        self._for_write = True
        states = [
            Status.OPEN,
            Status.PAUSED,
            *([Status.PROCESSING] if running else []),
            *([Status.COMPLETE] if complete else []),
        ]
        error_class, text = recorded(error)
        return operating.fail_rows(self, states, (error_class or operating.OPERATOR, text))

    async def afail_rows(
        self, error: BaseException | str, *, running: bool = False, complete: bool = False
    ) -> int:
        """``fail_rows`` for async code."""
        return await sync_to_async(self.fail_rows)(error, running=running, complete=complete)
