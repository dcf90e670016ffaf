"""Throughput as the coordinates of an SVG: no script draws it, so it is there without one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from django_taskclaim.admin.control_room import words
from django_taskclaim.fields import as_utc

#: The drawing's own units; it is stretched to the width of the page.
WIDTH, HEIGHT = 1000.0, 120.0

#: Signs of the marks, so that colour is not all that tells them apart.
SIGNS = {"pause": "❚❚", "resume": "▶", "throttle": "◔", "failures": "✕"}

#: So many marks are drawn and listed, the latest.
MARKS = 30


@dataclass(frozen=True, slots=True)
class Tick:
    """Something that happened, at its place on the axis."""

    x: str
    percent: str
    kind: str
    sign: str
    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One slot in the table that says the same as the drawing."""

    at: str
    rate: str
    done: str
    failed: str
    p50: str
    p95: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The last hour, or the last day."""

    id: str
    title: str
    #: Paths: rows a second as an area, failures on top of it, durations as lines.
    area: str = ""
    failed: str = ""
    p50: str = ""
    p95: str = ""
    top: str = ""
    longest: str = ""
    average: str = ""
    median: str = ""
    slowest: str = ""
    begins: str = ""
    ends: str = ""
    ticks: list[Tick] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    empty: bool = True
    #: Whether the database has never said.
    unknown: bool = False


def charts(
    hour: Sequence[object] | None,
    day: Sequence[object] | None,
    marks: Sequence[object],
    now: datetime,
) -> list[Chart]:
    """Return the charts of the last hour and of the last day, which end *now*; None is what is not known."""
    return [
        _chart("hour", _("Last hour"), hour, marks, now),
        _chart("day", _("Last 24 hours"), day, marks, now),
    ]


def _chart(
    name: str, title: str, slots: Sequence[Any] | None, marks: Sequence[Any], now: datetime
) -> Chart:
    if slots is None:
        return Chart(name, title, unknown=True)
    if len(slots) < 2 or not any(slot.done or slot.failed for slot in slots):
        return Chart(name, title)
    begins, step = as_utc(slots[0].at), as_utc(slots[1].at) - as_utc(slots[0].at)
    ends = _end(as_utc(slots[-1].at), step, now)
    # In slots: the last one is not over.
    count = (ends - begins) / step
    rates = [float(slot.rate) for slot in slots]
    slow = [float(slot.p95 or 0) for slot in slots]
    worked = [slot for slot in slots if slot.done or slot.failed]
    # What the last slot has so far says little.
    telling = [slot.rate for slot in worked if slot is not slots[-1]] or [worked[-1].rate]
    top, longest = max(telling) or 1.0, max(slow) or 1.0
    return Chart(
        id=name,
        title=title,
        area=_area([rate / top for rate in rates], count),
        failed=_bars([_failing(slot) for slot in slots], count),
        p50=_line([float(slot.p50 or 0) / longest for slot in slots], count),
        p95=_line([value / longest for value in slow], count),
        top=words.rate(max(telling)),
        longest=words.seconds(longest),
        average=words.rate(sum(telling) / len(telling)),
        median=words.seconds(_middle([float(slot.p50) for slot in worked if slot.p50])),
        slowest=words.seconds(max(slow)),
        begins=words.clock(begins),
        ends=words.clock(ends),
        ticks=_ticks(marks, begins, ends),
        rows=[_row(slot) for slot in reversed(worked)],
        empty=False,
    )


def _failing(slot: Any) -> float:
    """Return the share of a slot's rows that failed."""
    return float(slot.failed) / (slot.done + slot.failed) if slot.failed else 0.0


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
    """Join neighbouring slots that have a value; a gap stays a gap."""
    path, drawing = [], False
    for index, share in enumerate(shares):
        if share:
            path.append(f"{'L' if drawing else 'M'}{_x(index + 0.5, count):.1f} {_y(share):.1f}")
            # A lone slot would be invisible.
            path.extend([] if drawing else [f"H{_x(index + 0.75, count):.1f}"])
        drawing = bool(share)
    return "".join(path)


def _ticks(marks: Sequence[Any], begins: datetime, ends: datetime) -> list[Tick]:
    inside = [mark for mark in marks if begins <= as_utc(mark.at) < ends]
    return [_tick(mark, begins, ends - begins) for mark in inside[-MARKS:]]


def _tick(mark: Any, begins: datetime, span: timedelta) -> Tick:
    share = (as_utc(mark.at) - begins) / span
    return Tick(
        x=f"{WIDTH * share:.1f}",
        percent=f"{100 * share:.2f}",
        kind=mark.kind,
        sign=SIGNS.get(mark.kind, "•"),
        at=words.clock(as_utc(mark.at)),
        text=mark.text or mark.kind,
    )


def _row(slot: Any) -> Row:
    return Row(
        at=words.clock(as_utc(slot.at)),
        rate=words.rate(slot.rate),
        done=words.number(slot.done),
        failed=words.number(slot.failed),
        p50=words.seconds(slot.p50) if slot.p50 else "–",
        p95=words.seconds(slot.p95) if slot.p95 else "–",
    )
