"""Throughput of the last hour and of the last day, as the page draws it: no script is needed for that."""

from collections.abc import Sequence
from statistics import fmean, median_high
from typing import NamedTuple

from django_taskclaim.control.reading import Mark, Slot

#: So many marks are drawn and listed, the latest.
MARKS = 30

#: Signs of the marks, so that colour is not the only difference.
SIGNS = {"pause": "❚❚", "resume": "▶", "throttle": "◔"}


class Tick(NamedTuple):
    """A mark, its sign, and its place on the axis from 0 to 1."""

    mark: Mark
    sign: str
    place: float


class Chart(NamedTuple):
    """What slots of one length show."""

    #: All of the time, oldest first, and those in which anything came to its end, the latest first.
    slots: Sequence[Slot]
    worked: list[Slot]
    #: Rows a second at most, and on average while work went on.
    top: float
    average: float
    #: Seconds that batches took.
    median: float
    slowest: float
    ticks: list[Tick]


def chart(slots: Sequence[Slot], marks: Sequence[Mark]) -> Chart | None:
    """Return what there is to draw; None where nothing was finished."""
    worked = [slot for slot in reversed(slots) if slot.tries]
    if not worked:
        return None
    # The last slot is not over yet, so its rate means little.
    rates = [slot.rate for slot in worked if slot is not slots[-1]] or [worked[0].rate]
    medians = [slot.p50 for slot in worked if slot.p50]
    return Chart(
        slots,
        worked,
        top=max(rates),
        average=fmean(rates),
        median=median_high(medians or [0.0]),
        slowest=max(slot.p95 or 0.0 for slot in worked),
        ticks=_ticks(marks, slots),
    )


def _ticks(marks: Sequence[Mark], slots: Sequence[Slot]) -> list[Tick]:
    begins = slots[0].at
    span = (slots[1].at - begins) * len(slots)
    places = [(mark, (mark.at - begins) / span) for mark in marks]
    inside = [(mark, place) for mark, place in places if 0 <= place < 1]
    return [Tick(mark, SIGNS[mark.kind], place) for mark, place in inside[-MARKS:]]
