"""The figures of ``claimstatus``: what ``--fail-if`` compares and ``--format json`` contains.

The names of the figures and the grammar of conditions are part of the interface: new ones may come, none goes, none
changes its meaning.
"""

import operator
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import format_duration
from django_taskclaim.management.base import duration
from django_taskclaim.monitoring.overview import Overview
from django_taskclaim.states import Status

#: A number of rows or workers, a duration, or None where there is none of it.
Figure = int | timedelta | None

#: The figures that are durations, and all of them.
AGES = ("oldest_due", "oldest_expired", "paused_for")
FIGURES = (
    *("open", "due", "waiting", "processing", "complete", "failed", "paused", "total"),
    *("unfinished", "expired", "throttles", "workers"),
    *AGES,
)


def figures_of(seen: Overview) -> dict[str, Figure]:
    """Return all figures of one model."""

    def since(moment: datetime | None) -> timedelta | None:
        return None if moment is None else max(seen.now - as_utc(moment), timedelta(0))

    progress = seen.progress
    return {
        **{state.value: getattr(progress, state.value) for state in Status},
        "due": seen.due,
        "waiting": seen.waiting,
        "total": progress.total,
        "unfinished": progress.total - progress.finished,
        "expired": seen.expired,
        "throttles": len(seen.throttles),
        "workers": len(seen.living),
        "oldest_due": since(seen.due_since),
        "oldest_expired": since(seen.expired_since),
        "paused_for": since(seen.pause.paused_at if seen.pause else None),
    }


_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a figure with a number, or with an age, and its text."""

    figure: str
    compare: Callable[[Any, Any], bool]
    value: int | timedelta
    text: str

    def reason(self, figures: Mapping[str, Figure]) -> str:
        """Return ``failed is 3 (failed>0)`` where the condition holds, else nothing; what is None fulfils none."""
        found = figures[self.figure]
        if found is None or not self.compare(found, self.value):
            return ""
        shown = format_duration(found) if isinstance(found, timedelta) else f"{found:,}"
        return f"{self.figure} is {shown} ({self.text})"


def conditions(text: str) -> list[Condition]:
    """Parse ``oldest_due>15m,failed>0``; ArgumentTypeError, in one sentence, for what is no condition."""
    return [_condition(part) for part in text.split(",")]


def _condition(text: str) -> Condition:
    match = re.fullmatch(r"\s*(\w+)\s*([<>!=]+)\s*([\w.]+)\s*", text)
    if match is None:
        raise ArgumentTypeError(
            f"{text.strip()!r} is no condition; write failed>0, or several as in oldest_due>15m,workers<1"
        )
    figure, sign, value = match.groups()
    if figure not in FIGURES:
        raise ArgumentTypeError(f"there is no figure {figure!r}; there are {', '.join(FIGURES)}")
    if sign not in _OPERATORS:
        raise ArgumentTypeError(f"{sign!r} compares nothing; there are {', '.join(_OPERATORS)}")
    written = "".join(text.split())
    return Condition(figure, _OPERATORS[sign], _value(figure, value), written)


def _value(figure: str, text: str) -> int | timedelta:
    if figure in AGES:
        return timedelta(0) if text == "0" else duration(text)
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentTypeError(f"{figure} is compared with a whole number, not {text!r}")
    return int(text)
