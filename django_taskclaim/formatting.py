"""How durations, moments and numbers are written: in plain English, for every place where a person reads them."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta

from django.db.models.deletion import ProtectedError, RestrictedError
from django.utils import timezone

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def format_number(value: float) -> str:
    """Return a whole number with its thousands apart: ``1,204``."""
    return f"{round(value):,}"


def format_duration(duration: timedelta) -> str:
    """Return a duration in its two largest units: ``41 s``, ``4 min 10 s``, ``2 d 3 h``."""
    seconds = round(abs(duration).total_seconds())
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count) or "0 s"


def format_moment(value: datetime) -> str:
    """Return a moment in the project's time zone, with the zone's name; the date only where it is not today."""
    local, today = _local(value)
    shape = "%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S"
    return f"{local.strftime(shape)} {local.strftime('%Z') or timezone.get_current_timezone_name()}"


def format_clock_time(value: datetime) -> str:
    """Return a moment without its seconds, ``14:20``; with the date where it is not today."""
    local, today = _local(value)
    return local.strftime("%H:%M" if local.date() == today else "%Y-%m-%d %H:%M")


def _local(value: datetime) -> tuple[datetime, date]:
    """Return the moment in the present time zone, and which day is today there; naive ones stay as they are."""
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    # Not localdate(): without USE_TZ it raises ValueError.
    return local, datetime.now(local.tzinfo).date()


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return ``1 row``, ``1,204 rows``."""
    return f"{format_number(number)} {singular if number == 1 else plural or singular + 's'}"


def plain(text: str) -> str:
    """Return *text* in one line that sends no codes to a terminal: what cannot be printed becomes a space."""
    return "".join(character if character.isprintable() else " " for character in text)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, plain, or its name where it says nothing."""
    # Beside their text these have every object that is protected.
    is_protected = isinstance(error, (ProtectedError, RestrictedError))
    text = str(error.args[0] if is_protected else error)
    return plain((text.strip() or type(error).__name__).splitlines()[0])


def with_source(key: str, source: str) -> str:
    """Return the key of a row and, of a companion, that of its source: ``7 (source front-page)``."""
    return f"{key} (source {source})" if source and source != key else key


def listed(items: Sequence[object], most: int = 5) -> str:
    """Return ``a, b and c``, or the first *most* and how many more there are."""
    words = [str(item) for item in items[:most]]
    if len(items) > most:
        words.append(f"{len(items) - most} more")
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
