"""What ``claimstatus --fail-if`` understands: ``oldest_due>15m,failed>0,workers<1``.

    conditions = condition *( "," condition )
    condition  = figure operator value
    operator   = ">" | ">=" | "<" | "<=" | "=" | "!="
    value      = whole number | duration

Blanks may stand between the parts. A figure is compared with its own kind: a whole number for rows and workers,
a duration for ages (``90``, ``500ms``, ``15m``, ``2h``, ``1d``; without a unit seconds). The figures, and whether they
are numbers or ages, are those of ``figures.figures_of``; ``FIGURES`` tells what each means.

One condition that holds for one model is enough to fail. An age that there is none of (no row is due, the switch is
on) fulfils no condition. ``workers`` is asked only of models that have a handler, unless the model was named: rows that
people claim need no worker.

The grammar is part of the interface: monitors are configured with it, so what is understood today stays understood.
"""

import operator
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from django_taskclaim.formatting import format_duration
from django_taskclaim.management.arguments import duration
from django_taskclaim.management.figures import (
    Figure,
    Look,
    ages_are_known,
    figures_of,
    wants_workers,
)
from django_taskclaim.states import Status

#: Every figure that can be compared, and what it is.
FIGURES: Mapping[str, str] = {
    "open": "open rows, due or not",
    "due": "open rows that could be claimed now",
    "waiting": "open rows that are not due yet",
    "processing": "running rows",
    "complete": "rows that ended well",
    "failed": "rows that ended badly",
    "paused": "rows set aside one by one",
    "total": "all rows",
    "unfinished": "open, running and paused rows",
    "expired": "running rows whose lease has ended",
    "throttles": "automatic stops in force, one for each process and cause",
    "workers": "living worker processes that serve the model",
    "oldest_due": "for how long the row has been due that is so for longest",
    "oldest_expired": "how long ago the first of the leases ended that have expired",
    "paused_for": "for how long the model has been paused",
}

#: Those that are durations.
AGES = frozenset({"oldest_due", "oldest_expired", "paused_for"})

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}

_CONDITION = re.compile(r"\s*(?P<figure>\w+)\s*(?P<sign>[<>!=]+)\s*(?P<value>[\w.]+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison, as it was written and as it is meant."""

    figure: str
    sign: str
    value: int | timedelta
    text: str

    def holds(self, figures: Mapping[str, Figure]) -> bool:
        """Say whether these figures fulfil the condition."""
        found = figures[self.figure]
        return found is not None and _OPERATORS[self.sign](found, self.value)

    def told(self, figures: Mapping[str, Figure]) -> str:
        """Say what was found beside what was asked: ``failed is 3 (failed>0)``."""
        found = figures[self.figure]
        shown = format_duration(found) if isinstance(found, timedelta) else f"{found or 0:,}"
        return f"{self.figure} is {shown} ({self.text})"


def conditions(text: str) -> list[Condition]:
    """Return what *text* spells; ArgumentTypeError, in one sentence, for what it does not."""
    return [_condition(part) for part in text.split(",")]


def reasons_to_fail(look: Look, asked: Sequence[Condition], *, named: bool) -> list[str]:
    """Return a sentence for each model for which conditions hold; *named* models are asked for workers in any case."""
    reasons = []
    for seen in look.seen:
        figures = figures_of(seen, look.workers[seen.alias])
        if not (named or wants_workers(seen.model)):
            figures["workers"] = None
        told = [one.told(figures) for one in asked if one.holds(figures)]
        if told:
            reasons.append(f"{seen.model._meta.label}: {', '.join(told)}")
    return reasons


def incomplete(look: Look) -> list[str]:
    """Return a sentence for each model with rows that are not complete."""
    reasons = []
    for seen in look.seen:
        counts = {state: getattr(seen.progress, state.value) for state in Status}
        left = [
            f"{n:,} {state.value}" for state, n in counts.items() if n and state != Status.COMPLETE
        ]
        if left:
            reasons.append(f"{seen.model._meta.label} is not complete: {', '.join(left)}")
    return reasons


def untold_ages(look: Look, asked: Sequence[Condition]) -> Iterator[str]:
    """Say of which models ``oldest_due`` is asked although only rows that were put off tell since when they are due."""
    if all(one.figure != "oldest_due" for one in asked):
        return
    for seen in look.seen:
        if seen.due and not ages_are_known(seen.model):
            yield (
                f"{seen.model._meta.label}: oldest_due knows of rows that were put off only; a column with auto_now_add"
                " would tell of the others."
            )


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(
            f"{text.strip()!r} is no condition; write failed>0, or several as in oldest_due>15m,workers<1"
        )
    figure, sign = match["figure"], match["sign"]
    if figure not in FIGURES:
        raise ArgumentTypeError(f"there is no figure {figure!r}; {_meant(figure)}")
    if sign not in _OPERATORS:
        raise ArgumentTypeError(f"{sign!r} compares nothing; there are {', '.join(_OPERATORS)}")
    written = "".join(text.split())
    return Condition(figure, sign, _value(figure, match["value"]), written)


def _value(figure: str, text: str) -> int | timedelta:
    if figure in AGES:
        return timedelta(0) if text == "0" else duration(text)
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentTypeError(
            f"{figure} is a number of something, and {text!r} is no whole number"
        )
    return int(text)


def _meant(figure: str) -> str:
    close = get_close_matches(figure.lower(), FIGURES, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(FIGURES)}"
