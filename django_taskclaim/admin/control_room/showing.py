"""From figures to what the templates of one model's page show."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from django_taskclaim.admin.control_room import words
from django_taskclaim.admin.control_room.chart import charts
from django_taskclaim.admin.control_room.crew import lines
from django_taskclaim.admin.control_room.failures import GROUPS, Group, Sample, has_texts
from django_taskclaim.admin.control_room.figures import DAY, HOUR, look_at
from django_taskclaim.admin.control_room.forms import PauseForm, SettingsForm
from django_taskclaim.admin.control_room.pages import overview_url
from django_taskclaim.admin.control_room.progress import bar_of
from django_taskclaim.admin.control_room.ranges import ranges_of
from django_taskclaim.admin.control_room.rooms import Room
from django_taskclaim.admin.control_room.state import state_of
from django_taskclaim.control.actions import what_was_done
from django_taskclaim.fields import as_utc
from django_taskclaim.tables import EVERY_MODEL

#: Milliseconds between two refreshes.
EVERY = 2500

#: Parts of the page that say so while their figures were never known.
UNKNOWABLE = ("workers", "failed", "acts")


@dataclass(frozen=True, slots=True)
class FailureLine:
    """One group of failed rows."""

    id: str
    error: str
    message: str
    example: str
    hour: str
    day: str
    all: str
    #: ``(name, address)`` of some rows; the address is empty where the admin does not show them.
    samples: list[tuple[str, str]]
    retry_url: str
    first_url: str
    export_url: str
    has_more_than_first: bool


def shown(
    request: HttpRequest, room: Room, settings_form: SettingsForm | None = None
) -> dict[str, Any]:
    """Return the context of the live part of the page."""
    figures = look_at(room.model, room.alias, room.rows(request), room.onlooker(request))
    switch = figures.seen.switch if figures.seen else None
    past = (figures.hour or [], figures.day or []) if figures.work_goes_on else ()
    return {
        "room": room,
        "url": {page: room.url(page) for page in ("switch", "orders", "settings", "export")}
        | {"page": room.url(), "live": room.url("live")},
        "overview_url": overview_url(room.site),
        "every": EVERY,
        "as_of": words.clock_to_the_second(timezone.now()),
        "late_since": figures.late_since and words.clock_to_the_second(figures.late_since),
        "may_operate": room.may_operate(request),
        "may_configure": room.may_configure(request),
        "has_control": figures.has_control,
        "state": state_of(figures.seen, figures.workers),
        "pause_form": PauseForm(auto_id="tc-pause-%s"),
        "bar": bar_of(figures.seen, *past),
        "ranges": ranges_of(figures.ranges),
        "charts": charts(figures.hour, figures.day, figures.marks, figures.now)
        if figures.has_control
        else [],
        # What was never known is not shown as none.
        "unknown": {name for name in UNKNOWABLE if getattr(figures, name) is None},
        "workers": lines(
            room.model,
            figures.workers or [],
            figures.seen,
            figures.orders,
            figures.rates,
            now=figures.now,
            sees_all=room.shows_all(request),
        ),
        "findings": figures.findings,
        "has_error_texts": has_texts(room.model),
        "failures": _failures(room, figures.failed),
        "failures_capped": figures.failed is not None and figures.failed.capped,
        "failures_looked_at": words.number(figures.failed.looked_at) if figures.failed else "",
        "settings_form": settings_form
        or SettingsForm(room.model, stored=switch.overrides if switch else {}),
        "set_by": switch.set_by if switch else "",
        "set_at": words.clock(as_utc(switch.set_at)) if switch and switch.set_at else "",
        "acts": [_act(act) for act in figures.acts or []],
    }


def _failures(room: Room, failed: Sample | None) -> list[FailureLine]:
    groups = failed.groups[:GROUPS] if failed is not None else []
    return [_failure(room, group, failed) for group in groups if failed is not None]


def _failure(room: Room, group: Group, failed: Sample) -> FailureLine:
    return FailureLine(
        id=group.id,
        error=group.error.rpartition(".")[2],
        message=group.message,
        example=group.example,
        hour=words.number(group.hour) + ("" if failed.covers(HOUR) else "+"),
        day=words.number(group.day) + ("" if failed.covers(DAY) else "+"),
        all=words.number(group.all) + ("+" if failed.capped else ""),
        samples=[(row.name, room.row_url(row.key)) for row in group.samples],
        retry_url=room.url("retry", group=group.id),
        first_url=room.url("first", group=group.id),
        export_url=room.url("export", group=group.id),
        has_more_than_first=failed.capped or group.all > FIRST,
    )


#: So many rows are tried first.
FIRST = 10


def _act(act: Any) -> dict[str, object]:
    return {
        "at": words.clock(as_utc(act.at)),
        "who": act.by,
        "what": what_was_done(act.act),
        "rows": words.rows(act.rows) if act.rows else "",
        "key": act.key,
        "reason": act.reason,
        "all": "all" if act.model == EVERY_MODEL else "",
    }
