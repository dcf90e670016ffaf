"""What an operator does to rows that somebody else may hold; ``ClaimQuerySet`` inherits these verbs."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from django.db import models

from django_taskclaim import conf, querysets
from django_taskclaim.awaitables import async_twin
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
        return querysets.operating.fail_rows(self, states, error)

    afail_rows = async_twin(fail_rows)

    def prune(
        self,
        *,
        older_than: float | timedelta,
        limit: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[int, dict[str, int]]:
        """Delete rows that were completed longer ago than *older_than*, by the database's clock, chunk by chunk.

        Returns how many, and how many rows of each model went, those that Django's cascades took among them; signals
        are sent as ``delete()`` sends them. A row that was opened again meanwhile stays, and so does one that another
        transaction has locked. *limit* bounds the rows, *progress* is called with their number as each chunk is
        committed. Raises TypeError for a model without ``completed_at``, and what Django raises where a protected row
        refers to one of these; the chunks before are gone then.
        """
        self._for_write = True
        age = conf.positive_duration(older_than, "older_than")
        return querysets.pruning.prune(self, age, limit, progress)

    aprune = async_twin(prune)
