"""Ranges of keys: planned over the primary key of a source, worked through in chunks, split where workers idle.

Here is what is done with all ranges of a source. ``keys`` compares and stores keys and finds the ranges of a model,
``planning`` cuts them and makes them due, ``walking`` does chunks and checkpoints, and splits.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.db import models
from django.db.models import Sum

from django_taskclaim.conf import NUMBER_OR_NONE
from django_taskclaim.querysets.manager import ClaimManager, ClaimQuerySet
from django_taskclaim.querysets.scope import Rows
from django_taskclaim.ranges import planning
from django_taskclaim.ranges.keys import RangeTarget

__all__ = ["RangeManager", "RangeQuerySet"]


M = TypeVar("M", bound=models.Model)

#: Rows of a range unless the caller or the model says otherwise.
CHUNK_SIZE = 100_000


class RangeQuerySet(ClaimQuerySet[M]):
    """A queryset of ranges; to inherit from, as ``ClaimQuerySet`` is."""

    def plan(
        self,
        *,
        chunk_size: int | None = None,
        limit: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Store ranges of *chunk_size* rows of the source, *limit* ranges at most, and return how many.

        Without a size it is the model's ``plan_ahead``, or 100,000. Ranges of a ``growing`` source are due later; those
        of earlier calls that have waited long enough become due. TypeError where that moment is not known,
        RuntimeError in a transaction of the caller's that does not see what others commit.

        Goes on behind the last planned key, so it may be repeated and broken off at any moment, and run twice at
        once. Commits as it goes, unless called in a transaction; *progress* is called with how many are stored so far.
        """
        self._for_write = True
        NUMBER_OR_NONE.check(chunk_size, "chunk_size")
        NUMBER_OR_NONE.check(limit, "limit")
        model: Any = self.model
        size = chunk_size or model.plan_ahead or CHUNK_SIZE
        return planning.plan(RangeTarget(model, self.db), size, limit, progress)

    vars(plan)["alters_data"] = True


if TYPE_CHECKING:
    # A manager's methods and a queryset's are typed differently by django-stubs.
    class RangeManager(RangeQuerySet[M], ClaimManager[M]):  # type: ignore[misc,override]
        """The same in words that type checkers understand: a manager and a queryset in one."""

else:

    class RangeManager(ClaimManager.from_queryset(RangeQuerySet)):
        """The manager that ``RangeMixin`` brings."""


class RowCounts(NamedTuple):
    """How many rows of the source the ranges have, about, and how many are done."""

    planned: int
    done: int


def row_counts(model: type[models.Model], alias: str) -> RowCounts:
    """Return the rows of all ranges of *model*."""
    rows: Rows = models.QuerySet(model, using=alias)
    totals = rows.aggregate(planned=Sum("rows_planned"), done=Sum("rows_done"))
    return RowCounts(totals["planned"] or 0, totals["done"] or 0)
