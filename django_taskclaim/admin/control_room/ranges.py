"""Where in the keys of their source the ranges of a model stand, as a strip from the first key to the last."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from django.utils.translation import gettext as _

from django_taskclaim.admin.control_room import words
from django_taskclaim.ranges.strip import Strip
from django_taskclaim.states import Status

#: Units of the strip's whole width.
WIDTH = 1000.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the keys in one state: that of its ranges which most needs to be seen."""

    name: str
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class Ranges:
    """The strip, and how many rows of the source are done."""

    told: str
    parts: list[Part]


def ranges_of(found: Strip | None) -> Ranges | None:
    """Return the strip as the template shows it; None where there is none to show."""
    if found is None:
        return None
    told = _("%(done)s of about %(planned)s rows of the source done") % {
        "done": words.short(found.rows_done),
        "planned": words.short(found.rows_planned),
    }
    return Ranges(told, list(_parts(found.states)))


def _parts(states: Sequence[Status]) -> Iterator[Part]:
    x = 0.0
    for state, same in groupby(states):
        width = WIDTH * len(list(same)) / len(states)
        yield Part(state.value, f"{x:.2f}", f"{width:.2f}")
        x += width
