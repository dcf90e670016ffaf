"""Throughput as coordinates of an SVG: no script draws it, so it is there without one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median_high

from django.utils.translation import gettext as _

from django_taskclaim.control.reading import Mark, Slot

#: The drawing's own units; it is stretched to the width of the page. What is not nothing is at least LEAST high.
WIDTH, HEIGHT, LEAST = 1000.0, 120.0, 3.0

#: Signs of the marks, so that colour is not the only difference.
SIGNS = {"pause": "❚❚", "resume": "▶", "throttle": "◔"}

#: So many marks are drawn and listed, the latest.
MARKS = 30


@dataclass(frozen=True, slots=True)
class Chart:
    """The last hour, or the last day."""

    id: str
    title: str
    #: Whether the database has never said.
    unknown: bool = False
    #: The slots in which anything came to its end, the latest first; empty where there was none.
    slots: list[Slot] = field(default_factory=list)
    #: Paths: rows a second, the share of tries that failed, and how long batches took.
    area: str = ""
    failing: str = ""
    p50: str = ""
    p95: str = ""
    #: Rows a second at most, and on average while work went on.
    top: float = 0.0
    average: float = 0.0
    #: Seconds that batches took.
    median: float = 0.0
    slowest: float = 0.0
    begins: datetime | None = None
    #: Each mark, its place on the axis and its sign.
    ticks: list[tuple[Mark, float, str]] = field(default_factory=list)


def charts(
    hour: Sequence[Slot] | None, day: Sequence[Slot] | None, marks: Sequence[Mark]
) -> list[Chart]:
    """Return the charts of the last hour and of the last day; None is what is not known."""
    return [
        _chart("hour", _("Last hour"), hour, marks),
        _chart("day", _("Last 24 hours"), day, marks),
    ]


def _chart(name: str, title: str, slots: Sequence[Slot] | None, marks: Sequence[Mark]) -> Chart:
    if slots is None:
        return Chart(name, title, unknown=True)
    worked = [slot for slot in slots if slot.tries]
    if not worked:
        return Chart(name, title)
    # The last slot is not over yet, so its rate means little.
    rates = [slot.rate for slot in worked if slot is not slots[-1]] or [worked[-1].rate]
    p50, p95 = ([getattr(slot, which) or 0.0 for slot in slots] for which in ("p50", "p95"))
    return Chart(
        id=name,
        title=title,
        slots=worked[::-1],
        area=_area([slot.rate for slot in slots], max(rates)),
        failing=_area([slot.failing for slot in slots], 1.0),
        p50=_area(p50, max(p95)),
        p95=_area(p95, max(p95)),
        top=max(rates),
        average=sum(rates) / len(rates),
        median=median_high(list(filter(None, p50)) or [0.0]),
        slowest=max(p95),
        begins=slots[0].at,
        ticks=_ticks(marks, slots),
    )


def _area(values: Sequence[float], top: float) -> str:
    """Return a step for each value, as high as its share of *top*: it is a figure of each slot, and no curve."""
    step = WIDTH / len(values)
    points = [f"M0 {HEIGHT:.0f}"]
    for index, value in enumerate(values):
        height = max(LEAST, HEIGHT * min(1.0, value / top) * 0.94) if value and top else 0.0
        y = f"{HEIGHT - height:.1f}"
        points.append(f"L{step * index:.1f} {y}L{step * (index + 1):.1f} {y}")
    return "".join([*points, f"L{WIDTH:.0f} {HEIGHT:.0f}Z"])


def _ticks(marks: Sequence[Mark], slots: Sequence[Slot]) -> list[tuple[Mark, float, str]]:
    begins = slots[0].at
    span = (slots[1].at - begins) * len(slots)
    inside = [mark for mark in marks if begins <= mark.at < begins + span]
    return [
        (mark, WIDTH * ((mark.at - begins) / span), SIGNS[mark.kind]) for mark in inside[-MARKS:]
    ]
