"""``RangeQuerySet`` and ``RangeManager``: what can be done with all ranges of a source."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.db import models
from django.db.models import Sum

from django_taskclaim.columns import claim_columns
from django_taskclaim.conf import NUMBER_OR_NONE
from django_taskclaim.querysets.manager import ClaimManager, ClaimQuerySet
from django_taskclaim.ranges import planning
from django_taskclaim.ranges.keys import RangeTarget
from django_taskclaim.ranges.walking import WORTH_SPLITTING, split_largest
from django_taskclaim.states import Status

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
        size = chunk_size or size_of_ranges(self.model)
        return planning.plan(RangeTarget.of(self.model, self.db), size, limit, progress)

    vars(plan)["alters_data"] = True

    def split(self, *, at_least: int = WORTH_SPLITTING) -> bool:
        """Split the running range with most rows left, of all of the model, and say whether there was one.

        Its holder goes on with the front part; the other part is a new open range. Both have *at_least* rows. Workers
        that find nothing open do this by themselves.
        """
        self._for_write = True
        NUMBER_OR_NONE.check(at_least, "at_least")
        return split_largest(RangeTarget.of(self.model, self.db), at_least)

    vars(split)["alters_data"] = True


def size_of_ranges(model: Any) -> int:
    """Return how many rows the ranges of *model* have unless the caller says otherwise."""
    return model.plan_ahead or CHUNK_SIZE


if TYPE_CHECKING:

    class _Manager(RangeQuerySet[M], ClaimManager[M]):  # type: ignore[misc,override]  # a manager and a queryset in one
        pass

else:
    _Manager = ClaimManager.from_queryset(RangeQuerySet)


class RangeManager(_Manager[M]):  # type: ignore[override]  # a manager and a queryset in one
    """The manager that ``RangeMixin`` brings."""


#: Characters of a strip.
WIDTH = 60

#: The mark of a part of the keys, the first that applies: no failed, running or paused range is hidden.
MARKS = {
    Status.FAILED: "x",
    Status.PROCESSING: ">",
    Status.PAUSED: "=",
    Status.OPEN: ".",
    Status.COMPLETE: "#",
}

#: More ranges than this are not looked at one by one.
MOST = 100_000


class Strip(NamedTuple):
    """How many rows of the source are planned and done, and the states of its ranges in the order of keys."""

    rows_planned: int
    rows_done: int
    #: From the first key to the last, each as many ranges; empty where there are too many to look at.
    states: list[Status]

    @property
    def text(self) -> str:
        """The states, a character each."""
        return "".join(MARKS[state] for state in self.states)


def strip(model: type[models.Model], alias: str, most: int = MOST) -> Strip:
    """Return the strip of the ranges of *model*, *most* at most."""
    rows: models.QuerySet[Any] = models.QuerySet(model, using=alias)
    totals = rows.aggregate(planned=Sum("rows_planned"), done=Sum("rows_done"))
    name = claim_columns(model).status.name
    states = list(rows.order_by("position").values_list(name, flat=True)[: most + 1])
    count = len(states) if len(states) <= most else 0
    cells = min(WIDTH, count)
    parts = [states[count * n // cells : count * (n + 1) // cells] for n in range(cells)]
    shown = [next(state for state in MARKS if state in part) for part in parts]
    return Strip(totals["planned"] or 0, totals["done"] or 0, shown)
