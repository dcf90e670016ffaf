"""How commands and messages put durations, moments and counts into words."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def lasting(duration: timedelta) -> str:
    """Return a duration in its two largest units: ``41 s``, ``4 min 10 s``, ``2 d 3 h``."""
    seconds = round(abs(duration).total_seconds())
    parts: list[str] = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part) or "0 s"


def moment(value: datetime) -> str:
    """Return a moment in the project's time zone, with the zone's name; the date only where it is not today."""
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    today = timezone.localdate() if timezone.is_aware(value) else datetime.now().date()
    zone = local.strftime("%Z") or timezone.get_current_timezone_name()
    shape = "%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S"
    return f"{local.strftime(shape)} {zone}"


def clock_time(value: datetime) -> str:
    """Return a moment as people tell each other, ``14:20``; with the date where it is not today."""
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    today = timezone.localdate() if timezone.is_aware(value) else datetime.now().date()
    return local.strftime("%H:%M" if local.date() == today else "%Y-%m-%d %H:%M")


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return ``1 row``, ``1,204 rows``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its name where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def listed(items: Sequence[Any], most: int = 5) -> str:
    """Return ``a, b and c``, or the first *most* and how many more there are."""
    words = [str(item) for item in items[:most]]
    if len(items) > most:
        words.append(f"{len(items) - most} more")
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
