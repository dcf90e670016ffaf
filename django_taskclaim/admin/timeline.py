"""The life of one row, as its history tells it where one is kept."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import models
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim.admin.localized import listed, moment, number
from django_taskclaim.admin.rows import WAITING, holder_text
from django_taskclaim.control.actions import EXPIRED
from django_taskclaim.control.reading import HANDED_TO, history
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import format_duration
from django_taskclaim.states import Status

#: How the events of a history are called, and the state whose colour they have; others go by their own names.
EVENTS: Mapping[str, tuple[Any, str]] = {
    "claimed": (gettext_lazy("claimed"), Status.PROCESSING.value),
    "renewed": (gettext_lazy("renewed"), Status.PROCESSING.value),
    "lost": (gettext_lazy("lost"), EXPIRED),
    "released": (gettext_lazy("given back"), Status.OPEN.value),
    "taken back": (gettext_lazy("taken back"), Status.OPEN.value),
    "handed over": (gettext_lazy("handed over"), Status.PROCESSING.value),
    "taken over": (gettext_lazy("taken over"), Status.PROCESSING.value),
    "expired": (gettext_lazy("lease expired"), EXPIRED),
    "completed": (gettext_lazy("complete"), Status.COMPLETE.value),
    "retried": (gettext_lazy("failed, to be tried again"), WAITING),
    "failed": (gettext_lazy("failed"), Status.FAILED.value),
    "reset": (gettext_lazy("reset"), Status.OPEN.value),
    "paused": (gettext_lazy("paused"), Status.PAUSED.value),
    "resumed": (gettext_lazy("resumed"), Status.OPEN.value),
    "pruned": (gettext_lazy("deleted, long after it was complete"), Status.COMPLETE.value),
}

#: Events that end a claim, so that it lasted until then.
_ENDS = EVENTS.keys() - {"claimed", "renewed"}

#: Those of them with which the next claim begins.
_PASSES = {"handed over", "taken over"}


def timeline(row: models.Model, alias: str) -> SafeString:
    """Return the history of the row as a list, oldest first; empty where none is kept."""
    steps = list(_steps(history(type(row), row.pk, using=alias)))
    if not steps:
        return SafeString("")
    items = format_html_join(
        "",
        '<li class="taskclaim-step taskclaim-is-{}"><time datetime="{}">{}</time> <b>{}</b> {}</li>',
        steps,
    )
    return format_html('<ol class="taskclaim-timeline">{}</ol>', items)


def _steps(events: list[Any]) -> Iterator[tuple[str, ...]]:
    """Yield of each event the state whose colour it has, its moment twice, what happened, and how."""
    since: datetime | None = None
    for event in events:
        at = as_utc(event.at)
        who = holder_text(event.holder) if event.holder else ""
        parts = [_("by %(holder)s") % {"holder": who}] if who else []
        if event.event == "claimed":
            since = at
        elif since is not None and event.event in _ENDS:
            parts.append(_after(at - since))
            since = at if event.event in _PASSES else None
        if event.times > 1:
            parts.append(_("%(times)s×") % {"times": number(event.times)})
        if event.detail:
            parts.append(_detail(event.event, str(event.detail)))
        what, kind = EVENTS.get(event.event, (event.event, Status.OPEN.value))
        yield kind, at.isoformat(), moment(at), str(what), listed(parts)


def _detail(event: str, detail: str) -> str:
    """Return what is stored of an event as it is shown: what is not a person's or an error's has translations."""
    if event == "expired":
        return _(detail)
    if event == "handed over":
        return _("to %(holder)s") % {"holder": holder_text(detail.removeprefix(HANDED_TO))}
    return detail


def _after(duration: timedelta) -> str:
    return _("after %(time)s") % {"time": format_duration(duration)}
