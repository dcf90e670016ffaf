"""The figures of ``claimstatus``: what ``--fail-if`` compares and ``--format json`` contains, and the speed.

The names of the figures and the grammar of conditions are part of the interface: new ones may come, none goes, none
changes its meaning.
"""

import operator
import re
from argparse import ArgumentTypeError
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from django_taskclaim.completion import Clear
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import format_duration
from django_taskclaim.management.base import duration
from django_taskclaim.monitoring.overview import Overview
from django_taskclaim.policy import policy_for

#: A number of rows or workers, a duration, or None where there is none of it.
Figure = int | timedelta | None

_COUNTS: Mapping[str, Callable[[Overview], int]] = {
    "open": attrgetter("progress.open"),
    "due": attrgetter("due"),
    "waiting": attrgetter("waiting"),
    "processing": attrgetter("progress.processing"),
    "complete": attrgetter("progress.complete"),
    "failed": attrgetter("progress.failed"),
    "paused": attrgetter("progress.paused"),
    "total": attrgetter("progress.total"),
    "unfinished": lambda seen: seen.progress.total - seen.progress.finished,
    "expired": attrgetter("expired"),
    "throttles": lambda seen: len(seen.throttles),
    "workers": lambda seen: len(seen.living),
}

#: Each age, and since when it counts.
_AGES: Mapping[str, Callable[[Overview], datetime | None]] = {
    "oldest_due": attrgetter("due_since"),
    "oldest_expired": attrgetter("expired_since"),
    "paused_for": lambda seen: seen.pause.paused_at if seen.pause else None,
}

FIGURES = (*_COUNTS, *_AGES)


def figures_of(seen: Overview) -> dict[str, Figure]:
    """Return all figures of one model."""
    figures: dict[str, Figure] = {name: count(seen) for name, count in _COUNTS.items()}
    for name, since in _AGES.items():
        moment = since(seen)
        figures[name] = None if moment is None else max(seen.now - as_utc(moment), timedelta(0))
    return figures


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}


class Condition(NamedTuple):
    """One comparison of a figure with a number, or with an age."""

    figure: str
    sign: str
    value: int | timedelta
    text: str

    def reason(self, figures: Mapping[str, Figure]) -> str:
        """Return ``failed is 3 (failed>0)`` where the condition holds, else nothing; what is None fulfils none."""
        found = figures[self.figure]
        if found is None or not _COMPARISONS[self.sign](found, self.value):
            return ""
        shown = format_duration(found) if isinstance(found, timedelta) else f"{found:,}"
        return f"{self.figure} is {shown} ({self.text})"


def conditions(text: str) -> list[Condition]:
    """Parse ``oldest_due>15m,failed>0``; ArgumentTypeError, in one sentence, for what is no condition."""
    return [_condition("".join(part.split())) for part in text.split(",")]


def _condition(text: str) -> Condition:
    match = re.fullmatch(r"(\w+)([<>]=?|!?=)([\w.]+)", text)
    if match is None:
        raise ArgumentTypeError(
            f"{text!r} is no condition; write failed>0, or several as in oldest_due>15m,workers<1"
        )
    figure, sign, value = match.groups()
    if figure not in FIGURES:
        raise ArgumentTypeError(f"there is no figure {figure!r}; there are {', '.join(FIGURES)}")
    if figure in _AGES:
        return Condition(figure, sign, timedelta(0) if value == "0" else duration(value), text)
    if not (value.isascii() and value.isdecimal()):
        raise ArgumentTypeError(f"{figure} is compared with a whole number, not {value!r}")
    return Condition(figure, sign, int(value), text)


class Speed:
    """How fast rows of each model are done, by the last looks.

    Where rows are estimated, or do not stay, it counts what the workers report that serve this model alone.
    """

    #: How far it goes back, and how much it needs at least: workers report every few seconds.
    MOST, LEAST = timedelta(seconds=30), timedelta(seconds=10)

    def __init__(self) -> None:
        self._looks: dict[Any, deque[tuple[datetime, int]]] = defaultdict(deque)

    def describe(self, seen: Overview) -> str:
        """Note one more look, and say how fast it goes and how long the rest takes; empty where that is unknown."""
        completion, done = policy_for(seen.model).completion, seen.progress.finished
        is_reported = bool(seen.estimated) or not completion.keeps
        if is_reported:
            alone = [worker for worker in seen.workers if len(worker.model_labels) == 1]
            done = sum(worker.rows_done + worker.rows_failed for worker in alone)
        looks = self._looks[seen.model, seen.alias, is_reported]
        if looks and done < looks[-1][1]:
            # A worker has left with what it reported, or rows were opened again.
            looks.clear()
        looks.append((seen.now, done))
        # Two looks stay, however far apart they are.
        while len(looks) > 2 and seen.now - looks[0][0] > self.MOST:
            looks.popleft()
        span, count = seen.now - looks[0][0], done - looks[0][1]
        if span < self.LEAST or not count:
            return ""
        rate, rest = count / span.total_seconds(), seen.progress.open + seen.progress.processing
        text = f"{rate:,.1f} rows/s over the last {format_duration(span)}"
        if not rest or isinstance(completion, Clear):
            return text
        return f"{text}, about {format_duration(timedelta(seconds=min(rest / rate, 1e9)))} left"
