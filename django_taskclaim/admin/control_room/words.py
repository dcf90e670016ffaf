"""Numbers, durations and moments as people read them, in the language and the format of whoever looks."""

from datetime import datetime, timedelta

from django.utils import formats, timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_taskclaim.formatting import format_duration

_UNITS = (
    (10**9, gettext_lazy("%(number)s G")),
    (10**6, gettext_lazy("%(number)s M")),
    (10**3, gettext_lazy("%(number)s k")),
)


def number(value: float) -> str:
    """Return a whole number with the locale's separators."""
    return formats.number_format(round(value), 0, use_l10n=True, force_grouping=True)


def short(value: float) -> str:
    """Return a number with three digits at most: ``950``, ``12.4 k``, ``1.24 M``; small ones in full."""
    if value < 10_000:
        return number(value)
    size, unit = next(one for one in _UNITS if value >= one[0] * 0.9995)
    scaled = value / size
    places = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    text = formats.number_format(f"{scaled:.{places}f}", places, use_l10n=True)
    whole = text.rstrip("0").rstrip(".,٫") if places else text
    return str(unit) % {"number": whole}


def rate(per_second: float) -> str:
    """Return rows a second with as many digits as mean something."""
    if per_second >= 100:
        return short(per_second)
    places = 1 if per_second >= 0.1 or not per_second else 2
    return formats.number_format(f"{per_second:.{places}f}", places, use_l10n=True)


def percent(share: float) -> str:
    """Return a share as a percentage, never 100 before all is done and never 0 once something is."""
    tenths = int(share * 1000)
    if share > 0 and not tenths:
        return "< " + formats.number_format("0.1", 1, use_l10n=True) + " %"
    places = 0 if tenths in (0, 1000) else 1
    return formats.number_format(f"{tenths / 10:.{places}f}", places, use_l10n=True) + " %"


def seconds(value: float) -> str:
    """Return a duration of work: ``12 ms``, ``1.4 s``, ``3 min 20 s``."""
    if value < 0.9995:
        return _("%(number)s ms") % {"number": number(value * 1000)}
    if value < 60:
        shown = formats.number_format(f"{value:.1f}", 1, use_l10n=True)
        return _("%(number)s s") % {"number": shown}
    return format_duration(timedelta(seconds=value))


def local(moment: datetime) -> datetime:
    """Return the moment in the time zone of whoever looks."""
    return timezone.localtime(moment) if timezone.is_aware(moment) else moment


def clock(moment: datetime) -> str:
    """Return ``14:02``, with the day where that is not today."""
    here = local(moment)
    time = formats.time_format(here, "H:i")
    if here.date() == local(timezone.now()).date():
        return time
    return f"{formats.date_format(here, 'DATE_FORMAT')} {time}"


def clock_to_the_second(moment: datetime) -> str:
    """Return ``14:02:05``."""
    return formats.time_format(local(moment), "H:i:s")


def rows(count: int) -> str:
    """Return ``1,204 rows``."""
    return ngettext("%(n)s row", "%(n)s rows", count) % {"n": number(count)}


def ago(duration: timedelta) -> str:
    """Return ``4 min 10 s ago``."""
    return _("%(time)s ago") % {"time": format_duration(duration)}
