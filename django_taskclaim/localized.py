"""What ``wording`` says, in the language and the formats of whoever reads; in English it is the same."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import formats
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _

from django_taskclaim import wording

_UNITS = {
    "d": gettext_lazy("%(number)s d"),
    "h": gettext_lazy("%(number)s h"),
    "min": gettext_lazy("%(number)s min"),
    "s": gettext_lazy("%(number)s s"),
}


def number(value: float) -> str:
    """Return a whole number as its reader writes it: ``1,204``."""
    return formats.number_format(round(value), 0, use_l10n=True, force_grouping=True)


def lasting(duration: timedelta) -> str:
    """Return a duration in its two largest units: ``41 s``, ``4 min 10 s``, ``2 d 3 h``."""
    parts = wording.in_units(duration)
    return " ".join(str(_UNITS[unit]) % {"number": count} for count, unit in parts)


def listed(items: Sequence[Any], most: int = 5) -> str:
    """Return ``a, b and c``, or the first *most* and how many more there are."""
    words = [str(item) for item in items[:most]]
    if len(items) > most:
        words.append(_("%(number)s more") % {"number": number(len(items) - most)})
    if len(words) < 2:
        return "".join(words)
    return _("%(items)s and %(last)s") % {"items": _(", ").join(words[:-1]), "last": words[-1]}


def moment(value: datetime) -> str:
    """Return a moment to the second in the project's time zone, with the zone's name, and the day where not today."""
    local, _today = wording.here(value)
    return f"{_with_day(value, clock_format(seconds=True))} {wording.zone_of(local)}"


def clock_time(value: datetime) -> str:
    """Return a moment as people tell each other, ``14:20``; with the day where it is not today."""
    return _with_day(value, clock_format())


def _with_day(value: datetime, clock: str) -> str:
    local, today = wording.here(value)
    time = formats.time_format(local, clock)
    if local.date() == today:
        return time
    # In English by ISO 8601: it is also what commands print, and its readers differ in how they write a day.
    english = (get_language() or "en").startswith("en")
    return f"{formats.date_format(local, 'Y-m-d' if english else 'DATE_FORMAT')} {time}"


def clock_format(*, seconds: bool = False) -> str:
    """Return how the language writes the time of the day: by its own format where that counts to 24, else ``H:i``.

    No format of Django's has seconds and no date, so they follow the minutes behind the same sign.
    """
    own = formats.get_format("TIME_FORMAT")
    shape = own if own in {"H:i", "G:i", "H.i", "G.i"} else "H:i"
    return f"{shape}{shape[1]}s" if seconds else shape
