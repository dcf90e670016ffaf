"""How far the ranges of a source have got, as a strip from its first key to its last."""

from typing import Any, NamedTuple

from django.db import models
from django.db.models import Sum

from django_taskclaim.columns import claim_columns
from django_taskclaim.states import Status

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
