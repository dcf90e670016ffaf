"""How far a model's rows have got, as a bar of its states, and when they will be through."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from django_taskclaim.admin.localized import number, short
from django_taskclaim.completion import Archive, Clear, Delete
from django_taskclaim.formatting import format_duration
from django_taskclaim.monitoring.overview import Summary
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import Progress
from django_taskclaim.states import Status

#: Units of the bar's whole width; a state with any rows gets at least LEAST of them.
WIDTH, LEAST = 1000.0, 4.0

#: From so many rows on three digits of a sum are enough.
EXACTLY = 1_000_000

#: No forecast is made of less than this share.
FORESEEABLE = 0.01

#: What becomes of rows that are done, where they do not stay to be counted.
_OUTCOMES: dict[type, Any] = {
    Delete: gettext_lazy("rows that are done are deleted"),
    Archive: gettext_lazy("rows that are done are moved to the archive"),
    Clear: gettext_lazy("rows that are done are open again"),
}


@dataclass(frozen=True, slots=True)
class Segment:
    """One state in the bar and in the list below it."""

    name: str
    label: str
    count: int
    x: float
    width: float
    estimated: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """The states, and what they come to."""

    progress: Progress
    segments: list[Segment]
    estimated: bool
    #: What becomes of rows that are done, where they cannot be counted; the page then shows what is left.
    outcome: str
    #: ``between 40 min and 1 h 5 min left``, empty where nothing can be said.
    forecast: str

    @property
    def complete(self) -> str:
        return self._as_read(self.progress.complete)

    @property
    def total(self) -> str:
        return self._as_read(self.progress.total)

    @property
    def left(self) -> str:
        return self._as_read(self.progress.open + self.progress.processing)

    @property
    def share(self) -> float:
        """The share of rows that are complete."""
        return self.progress.complete / self.progress.total if self.progress.total else 0.0

    def _as_read(self, count: int) -> str:
        """Return a count in full while people can read it, and else in three digits, like the sum."""
        return number(count) if self.progress.total < EXACTLY else short(count)


def bar_of(seen: Summary | None, hour: Sequence[Any] = (), day: Sequence[Any] = ()) -> Bar | None:
    """Return the bar, None where nothing was ever counted. *hour* and *day* are slots of throughput."""
    if seen is None:
        return None
    completion = policy_for(seen.model).completion
    opens_again = isinstance(completion, Clear)
    return Bar(
        progress=seen.progress,
        segments=_segments(seen),
        estimated=bool(seen.estimated),
        outcome=str(_OUTCOMES.get(type(completion), "")),
        forecast=""
        if opens_again
        else forecast(seen.progress, _rates(hour, day), vanishing=not completion.keeps),
    )


def _segments(seen: Summary) -> list[Segment]:
    progress = seen.progress
    counts = [
        (Status.COMPLETE, pgettext("rows", "complete"), progress.complete),
        (Status.FAILED, pgettext("rows", "failed"), progress.failed),
        (Status.PROCESSING, pgettext("rows", "running"), progress.processing),
        (Status.OPEN, pgettext("rows", "waiting"), progress.open),
        (Status.PAUSED, pgettext("rows", "paused"), progress.paused),
    ]
    segments, x = [], 0.0
    widths = _widths([count for _status, _label, count in counts])
    for (status, label, count), width in zip(counts, widths, strict=True):
        is_estimate = status.value in seen.estimated
        segments.append(Segment(status.value, label, count, x, width, is_estimate))
        x += width
    return segments


def _widths(counts: Sequence[int]) -> list[float]:
    """Share out the width; what would be too narrow to see takes some of the others'."""
    total = sum(counts)
    if not total:
        return [0.0 for _ in counts]
    seen = [max(LEAST, WIDTH * count / total) if count else 0.0 for count in counts]
    return [width * WIDTH / sum(seen) for width in seen]


def _rates(hour: Sequence[object], day: Sequence[object]) -> list[float]:
    """Return rows a second while work went on: of the last minutes, the last hour and the last day.

    The last slot of each is not over, and what it has so far says little.
    """
    # Where work went on in a few of the day's long slots only, it may have filled none of them.
    spans = ((hour[-11:-1], 1), (hour[:-1], 1), (day[:-1], 6))
    return [rate for slots, least in spans if (rate := _running_rate(slots, least)) > 0]


def _running_rate(slots: Sequence[Any], least: int) -> float:
    """Average over the slots in which anything was finished, so that a night of pause does not count."""
    running = [slot.rate for slot in slots if slot.done or slot.failed]
    return sum(running) / len(running) if len(running) >= least else 0.0


def forecast(progress: Progress, rates: Sequence[float], *, vanishing: bool = False) -> str:
    """Return how long the rest will take, as a range; nothing for less than a hundredth done, unless rows vanish."""
    left = progress.open + progress.processing
    if not left or not rates or (progress.fraction < FORESEEABLE and not vanishing):
        return ""
    soonest, latest = (_rounded(left / rate) for rate in (max(rates), min(rates)))
    if latest <= soonest * 1.15:
        return _("about %(time)s left") % {"time": format_duration(latest)}
    return _("between %(soonest)s and %(latest)s left") % {
        "soonest": format_duration(soonest),
        "latest": format_duration(latest),
    }


def _rounded(seconds: float) -> timedelta:
    """Round to what is meant: five seconds, a minute, or ten of them."""
    step = 5 if seconds < 120 else 60 if seconds < 7200 else 600
    return timedelta(seconds=max(step, round(min(seconds, 3e9) / step) * step))
