"""How the pages put durations, counts, holders and states into words, in the language of who reads."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.utils import formats, timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_taskclaim.admin.rows import WAITING
from django_taskclaim.control.actions import EXPIRED
from django_taskclaim.states import WORKER_MARK, Status

#: The words on the pills.
STATES: Mapping[str, Any] = {
    Status.OPEN.value: gettext_lazy("open"),
    WAITING: gettext_lazy("waiting"),
    Status.PROCESSING.value: gettext_lazy("processing"),
    EXPIRED: gettext_lazy("expired"),
    Status.COMPLETE.value: gettext_lazy("complete"),
    Status.FAILED.value: gettext_lazy("failed"),
    Status.PAUSED.value: gettext_lazy("paused"),
}


class Holder(NamedTuple):
    """A holder as people speak of it."""

    name: str
    host: str = ""

    def __str__(self) -> str:
        if not self.host:
            return self.name
        return _("%(worker)s on %(host)s") % {"worker": self.name, "host": self.host}


def holder_of(claimed_by: str) -> Holder:
    """Read a worker's ``<name>@<host>[:<pid>]#<random>``; other names are those of people."""
    process, mark, _batch = claimed_by.partition(WORKER_MARK)
    name, at, place = process.rpartition("@")
    if not mark or not at:
        return Holder(claimed_by)
    host, _colon, pid = place.rpartition(":")
    if not pid.isdigit():
        host = place
    if name.isdigit():
        return Holder(_("process %(pid)s") % {"pid": name}, host)
    return Holder(name, host)


def lasting(duration: timedelta) -> str:
    """Return a duration in its two largest units: ``41 s``, ``4 min``, ``2 h 3 min``."""
    seconds = max(round(abs(duration).total_seconds()), 0)
    if seconds < 60:
        return _("%(number)s s") % {"number": seconds}
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 60:
        return _("%(number)s min") % {"number": minutes}
    if hours < 24:
        return _two(_("%(number)s h"), hours, _("%(number)s min"), minutes % 60)
    return _two(_("%(number)s d"), days, _("%(number)s h"), hours % 24)


def _two(large: str, number: int, small: str, rest: int) -> str:
    first = large % {"number": amount(number)}
    return f"{first} {small % {'number': rest}}" if rest else first


def amount(number: int) -> str:
    """Return a number as its reader writes it: ``1,204``."""
    return formats.number_format(number, use_l10n=True, force_grouping=True)


def rows(number: int) -> str:
    """Return ``1 row``, ``1,204 rows``."""
    return ngettext("%(number)s row", "%(number)s rows", number) % {"number": amount(number)}


def moment(value: datetime) -> str:
    """Return a moment in the reader's time zone; the date only where it is not today."""
    local = timezone.localtime(value)
    today = timezone.localtime(datetime.now(UTC)).date()
    time = formats.time_format(local, "H:i:s")
    if local.date() == today:
        return time
    return f"{formats.date_format(local, 'DATE_FORMAT')}, {time}"


def listed(parts: Sequence[str]) -> str:
    """Return ``a, b, c``."""
    return _(", ").join(parts)
