"""Throughput of the last hour and of the last day, as the page draws it: no script is needed for that."""

from collections.abc import Sequence
from statistics import fmean, median_high
from typing import NamedTuple

from django_taskclaim.control.actions import PAUSE, RESUME
from django_taskclaim.control.models import OperatorAct
from django_taskclaim.control.reading import Slot
from django_taskclaim.fields import as_utc


class Chart(NamedTuple):
    """What slots of one length show."""

    #: The end of its id on the page.
    name: str
    title: str
    #: All of the time, oldest first, and those in which anything came to its end, the latest first.
    slots: Sequence[Slot]
    worked: list[Slot]
    #: Rows a second at most, and on average while work went on.
    top: float
    average: float
    #: Seconds that batches took.
    median: float
    slowest: float
    #: Where claims were paused or resumed, from 0 to 1.
    ticks: list[tuple[str, float]]


def chart(name: str, title: str, slots: Sequence[Slot], acts: Sequence[OperatorAct]) -> Chart:
    """Return what there is to draw, with the switches among *acts*."""
    worked = [slot for slot in reversed(slots) if slot.tries]
    # The last slot is not over yet, so its rate means little.
    rates = [slot.rate for slot in worked if slot is not slots[-1]]
    rates = rates or [slot.rate for slot in worked] or [0.0]
    medians = [slot.p50 for slot in worked if slot.p50]
    return Chart(
        name,
        title,
        slots,
        worked,
        top=max(rates),
        average=fmean(rates),
        median=median_high(medians or [0.0]),
        slowest=max((slot.p95 or 0.0 for slot in worked), default=0.0),
        ticks=_ticks(acts, slots),
    )


def _ticks(acts: Sequence[OperatorAct], slots: Sequence[Slot]) -> list[tuple[str, float]]:
    begins = slots[0].at
    span = (slots[1].at - begins) * len(slots)
    turned = [act for act in acts if act.act in (PAUSE.name, RESUME.name)]
    places = [(act.act, (as_utc(act.at) - begins) / span) for act in turned]
    return [(name, place) for name, place in places if 0 <= place < 1]
