"""The figures of ``claimstatus``: what ``--fail-if`` compares and ``--format json`` contains.

The names of the figures and the grammar of conditions are part of the interface: new ones may come, none goes, none
changes its meaning.
"""

import operator
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import format_duration
from django_taskclaim.management.base import duration
from django_taskclaim.monitoring.overview import Overview

#: A number of rows or workers, a duration, or None where there is none of it.
Figure = int | timedelta | None

_FIGURES: Mapping[str, Callable[[Overview], Figure]] = {
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
    "oldest_due": lambda seen: _age(seen, seen.due_since),
    "oldest_expired": lambda seen: _age(seen, seen.expired_since),
    "paused_for": lambda seen: _age(seen, seen.pause.paused_at if seen.pause else None),
}
FIGURES = tuple(_FIGURES)
_AGES = ("oldest_due", "oldest_expired", "paused_for")


def _age(seen: Overview, since: datetime | None) -> timedelta | None:
    return None if since is None else max(seen.now - as_utc(since), timedelta(0))


def figures_of(seen: Overview) -> dict[str, Figure]:
    """Return all figures of one model."""
    return {name: read(seen) for name, read in _FIGURES.items()}


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
