"""Throughput as the page draws it, no script is needed for that, and what it lets expect."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from statistics import fmean, median_high
from typing import NamedTuple

from django.utils.translation import gettext as _

from django_taskclaim.completion import Clear
from django_taskclaim.control.actions import PAUSE, RESET, RESUME
from django_taskclaim.control.models import OperatorAct
from django_taskclaim.control.reading import DAY, HOUR, Slot
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import format_duration
from django_taskclaim.monitoring.overview import Overview
from django_taskclaim.policy import policy_for

#: How far back a chart may look, by the name in the address; the first if none is named.
RANGES = {"1h": HOUR, "6h": 6 * HOUR, "24h": DAY, "7d": 7 * DAY}

#: Acts that a chart has marks for.
MARKED = (PAUSE.name, RESUME.name, RESET.name)

#: No forecast is made of less than this share.
FORESEEABLE = 0.01


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
    #: What people did meanwhile, oldest first, and where it stands in the chart, in percent.
    marks: list[tuple[OperatorAct, float]]

    @property
    def ticks(self) -> Sequence[Slot]:
        """The slots whose time stands below the chart."""
        return self.slots[:: len(self.slots) // 4]


def chart(slots: Sequence[Slot], acts: Sequence[OperatorAct]) -> Chart:
    """Return what there is to draw, with marks for some of the *acts*, which come newest first."""
    worked = [slot for slot in reversed(slots) if slot.tries]
    rates = [slot.rate for slot in worked] or [0.0]
    # The last slot is not over yet, so its rate means little.
    over = [slot.rate for slot in worked if slot is not slots[-1]]
    begins = slots[0].at
    span = (slots[1].at - begins) * len(slots)
    marked = [act for act in reversed(acts) if act.act in MARKED]
    places = [(act, round(100 * ((as_utc(act.at) - begins) / span), 2)) for act in marked]
    return Chart(
        slots,
        worked,
        top=max(rates),
        average=fmean(over or rates),
        median=median_high([slot.p50 for slot in worked if slot.p50] or [0.0]),
        slowest=max((slot.p95 or 0.0 for slot in worked), default=0.0),
        marks=[(act, place) for act, place in places if 0 <= place < 100],
    )


def forecast(seen: Overview, hour: Sequence[Slot], day: Sequence[Slot]) -> str:
    """Return about how long the rest will take, as fast as it went in the last slots in which rows were worked on.

    Nothing without a living worker that may claim, and until a hundredth is done, unless done rows vanish.
    """
    progress, completion = seen.progress, policy_for(seen.model).completion
    is_early = not completion.note and progress.fraction < FORESEEABLE
    rests = seen.pause is not None or not seen.living or not progress.left
    if rests or is_early or isinstance(completion, Clear):
        return ""
    # Of ten minutes, else of an hour, else of a day. The last slot is not over yet, and work did not fill the one in
    # which it began; those without a try, such as a night of pause, do not count.
    for slots in (hour[-11:-1], hour[:-1], day[:-1]):
        rates = [slot.rate for before, slot in pairwise(slots) if before.tries and slot.tries]
        if any(rates):
            seconds = min(progress.left / fmean(rates), 3e9)
            step = 5 if seconds < 120 else 60 if seconds < 7200 else 600
            left = timedelta(seconds=max(step, round(seconds / step) * step))
            return _("about %(time)s left") % {"time": format_duration(left)}
    return ""
