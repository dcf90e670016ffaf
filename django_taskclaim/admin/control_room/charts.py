"""Throughput, and the ranges of a source, as coordinates of an SVG: no script draws it, so it is there without one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby

from django.utils.translation import gettext as _

from django_taskclaim.control.reading import Mark, Slot
from django_taskclaim.states import Status

#: The drawing's own units; it is stretched to the width of the page.
WIDTH, HEIGHT = 1000.0, 120.0

#: Signs of the marks, so that colour is not all that tells them apart.
SIGNS = {"pause": "❚❚", "resume": "▶", "throttle": "◔", "failures": "✕"}

#: So many marks are drawn and listed, the latest.
MARKS = 30


@dataclass(frozen=True, slots=True)
class Tick:
    """Something that happened, at its place on the axis."""

    x: float
    sign: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class Chart:
    """The last hour, or the last day."""

    id: str
    title: str
    #: Whether the database has never said.
    unknown: bool = False
    #: The slots in which anything came to its end, the latest first; empty where there was none.
    slots: list[Slot] = field(default_factory=list)
    #: Paths: rows a second as an area, failures on top of it, durations as lines.
    area: str = ""
    failed: str = ""
    p50: str = ""
    p95: str = ""
    #: Rows a second at most, and on average while work went on.
    top: float = 0.0
    average: float = 0.0
    #: Seconds that batches took.
    median: float = 0.0
    slowest: float = 0.0
    begins: datetime | None = None
    ends: datetime | None = None
    ticks: list[Tick] = field(default_factory=list)


def charts(
    hour: Sequence[Slot] | None, day: Sequence[Slot] | None, marks: Sequence[Mark], now: datetime
) -> list[Chart]:
    """Return the charts of the last hour and of the last day, which end *now*; None is what is not known."""
    return [
        _chart("hour", _("Last hour"), hour, marks, now),
        _chart("day", _("Last 24 hours"), day, marks, now),
    ]


def _chart(
    name: str, title: str, slots: Sequence[Slot] | None, marks: Sequence[Mark], now: datetime
) -> Chart:
    if slots is None:
        return Chart(name, title, unknown=True)
    worked = [slot for slot in slots if slot.done or slot.failed]
    if len(slots) < 2 or not worked:
        return Chart(name, title)
    begins, step = slots[0].at, slots[1].at - slots[0].at
    ends = _end(slots[-1].at, step, now)
    # In slots: the last one is not over.
    count = (ends - begins) / step
    # What the last slot has so far says little.
    over = [slot.rate for slot in worked if slot is not slots[-1]] or [worked[-1].rate]
    slowest = max(slot.p95 or 0.0 for slot in slots)
    top, longest = max(over) or 1.0, slowest or 1.0
    return Chart(
        id=name,
        title=title,
        slots=worked[::-1],
        area=_area([slot.rate / top for slot in slots], count),
        failed=_bars([_failing(slot) for slot in slots], count),
        p50=_line([(slot.p50 or 0.0) / longest for slot in slots], count),
        p95=_line([(slot.p95 or 0.0) / longest for slot in slots], count),
        top=max(over),
        average=sum(over) / len(over),
        median=_middle([slot.p50 for slot in worked if slot.p50]),
        slowest=slowest,
        begins=begins,
        ends=ends,
        ticks=_ticks(marks, begins, ends),
    )


def _failing(slot: Slot) -> float:
    """Return the share of a slot's rows that failed."""
    return slot.failed / (slot.done + slot.failed) if slot.failed else 0.0


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _end(last: datetime, step: timedelta, now: datetime) -> datetime:
    """Return where the last slot ends, which has only begun; the figures may be older than *now*."""
    return min(max(now, last + timedelta(seconds=1)), last + step)


def _x(index: float, count: float) -> float:
    return WIDTH * min(1.0, index / count)


def _y(share: float) -> float:
    return HEIGHT * (1 - min(1.0, share) * 0.94)


def _area(shares: Sequence[float], count: float) -> str:
    """Return steps: what is shown is a count for each slot, not a curve."""
    points = [f"M0 {HEIGHT:.0f}"]
    for index, share in enumerate(shares):
        y = f"{_y(share):.1f}"
        points.append(f"L{_x(index, count):.1f} {y}L{_x(index + 1, count):.1f} {y}")
    return "".join([*points, f"L{WIDTH:.0f} {HEIGHT:.0f}Z"])


def _bars(shares: Sequence[float], count: float) -> str:
    return "".join(
        f"M{_x(index, count):.1f} {HEIGHT:.0f}v{-max(3.0, HEIGHT * share * 0.94):.1f}"
        f"H{_x(index + 1, count):.1f}V{HEIGHT:.0f}Z"
        for index, share in enumerate(shares)
        if share
    )


def _line(shares: Sequence[float], count: float) -> str:
    """Return steps, as wide as their slots; a gap stays a gap."""
    path, drawing = [], False
    for index, share in enumerate(shares):
        if share:
            start = f"{'L' if drawing else 'M'}{_x(index, count):.1f} {_y(share):.1f}"
            path.append(f"{start}H{_x(index + 1, count):.1f}")
        drawing = bool(share)
    return "".join(path)


def _ticks(marks: Sequence[Mark], begins: datetime, ends: datetime) -> list[Tick]:
    inside = [mark for mark in marks if begins <= mark.at < ends]
    return [
        Tick(WIDTH * ((mark.at - begins) / (ends - begins)), SIGNS.get(mark.kind, "•"), mark)
        for mark in inside[-MARKS:]
    ]


def strip_parts(states: Sequence[Status]) -> Iterator[tuple[str, float, float]]:
    """Yield the name, the place and the width of each part of the keys in one state, from the first key to the last."""
    x = 0.0
    for state, same in groupby(states):
        width = WIDTH * len(list(same)) / len(states)
        yield state.value, x, width
        x += width
