"""The life of one row: what its history tells where one is kept, else what the row itself knows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import models
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim.admin.localized import listed, moment, number
from django_taskclaim.admin.rows import WAITING, RowFacts, holder_of
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


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened, or is about to."""

    at: datetime | None
    what: str
    text: str = ""
    #: The state whose colour the step has.
    kind: str = Status.OPEN.value


def timeline(row: models.Model, facts: RowFacts, alias: str) -> SafeString:
    """Return the life of the row as a list, oldest first; empty where nothing has happened yet."""
    events = history(type(row), row.pk, using=alias)
    steps = list(_from_history(events) if events else _from_row(facts))
    if not steps:
        return SafeString("")
    items = format_html_join(
        "",
        '<li class="taskclaim-step taskclaim-is-{}">{}<b>{}</b> {}</li>',
        ((step.kind, _time(step.at), step.what, step.text) for step in steps),
    )
    return format_html('<ol class="taskclaim-timeline">{}</ol>', items)


def _time(at: datetime | None) -> str:
    if at is None:
        return ""
    return format_html('<time datetime="{}">{}</time> ', at.isoformat(), moment(at))


def _from_history(events: list[Any]) -> Iterator[Step]:
    since: datetime | None = None
    for event in events:
        at = as_utc(event.at)
        who = str(holder_of(event.holder)) if event.holder else ""
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
        yield Step(at, str(what), listed(parts), kind)


def _detail(event: str, detail: str) -> str:
    """Return what is stored of an event as it is shown: what is not a person's or an error's has translations."""
    if event == "expired":
        return _(detail)
    if event == "handed over":
        return _("to %(holder)s") % {"holder": holder_of(detail.removeprefix(HANDED_TO))}
    return detail


def _after(duration: timedelta) -> str:
    return _("after %(time)s") % {"time": format_duration(duration)}


def _from_row(facts: RowFacts) -> Iterator[Step]:
    """Tell what the columns still know; each claim overwrites what they knew of the one before."""
    if facts.iteration:
        times = _("%(times)s× so far") % {"times": number(facts.iteration)}
        yield Step(None, _("put back"), times)
    done = facts.status == Status.COMPLETE
    if facts.completed_at is not None and not done:
        # Open again since: by its completion policy.
        yield Step(facts.completed_at, _("last completed"), kind=Status.COMPLETE.value)
    if facts.claimed_at is not None:
        who = _("by %(holder)s") % {"holder": holder_of(facts.holder)}
        yield Step(facts.claimed_at, _("claimed"), who, Status.PROCESSING.value)
    if facts.is_held and facts.expires_at is not None:
        yield _lease(facts, facts.expires_at)
    if facts.completed_at is not None and done:
        began = facts.claimed_at
        spent = _after(facts.completed_at - began) if began is not None else ""
        yield Step(facts.completed_at, _("complete"), spent, Status.COMPLETE.value)
    if facts.status == Status.FAILED:
        yield Step(None, _("failed"), kind=Status.FAILED.value)
    if facts.kind == WAITING and facts.wait is not None and not facts.open_ended:
        wait = _("in %(time)s") % {"time": format_duration(facts.wait)}
        yield Step(facts.not_before, _("due again"), wait, WAITING)


def _lease(facts: RowFacts, end: datetime) -> Step:
    left = facts.left or timedelta()
    if left > timedelta():
        text = _("in %(time)s, unless it is renewed") % {"time": format_duration(left)}
        return Step(end, _("lease ends"), text)
    text = _("%(time)s ago; the row returns by itself") % {"time": format_duration(left)}
    return Step(end, _("lease ended"), text, EXPIRED)
