"""The overview of all models that the user may see, and the switch that stops everything."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET

from django_taskclaim.admin.confirming import Crumb, in_no_transaction
from django_taskclaim.admin.control_room import words
from django_taskclaim.admin.control_room.asking import Asking
from django_taskclaim.admin.control_room.pages import (
    TEMPLATES,
    crumbs_context,
    overview_url,
    require_question,
)
from django_taskclaim.admin.control_room.progress import Bar, bar_of
from django_taskclaim.admin.control_room.rooms import Room
from django_taskclaim.admin.control_room.showing import EVERY
from django_taskclaim.admin.control_room.state import State, state_of
from django_taskclaim.admin.permissions import may_operate
from django_taskclaim.admin.switching import ask_to_turn
from django_taskclaim.monitoring.overview import Worker, overview, workers


@dataclass(frozen=True, slots=True)
class Line:
    """One model of the overview."""

    name: str
    label: str
    url: str
    state: State
    bar: Bar | None
    living: str
    silent: str
    late_since: datetime | None


class Overall:
    """The pages that are about all models of one AdminSite."""

    def __init__(self, site: AdminSite, rooms: Sequence[Room]) -> None:
        self.site = site
        self.rooms = rooms

    def urls(self) -> list[URLPattern]:
        """Return the patterns beside the overview itself, which is the changelist of ``Control``."""
        views = {
            "live": require_GET(self.live),
            "pause": require_question(self.pause),
            "resume": require_question(self.resume),
        }
        return [
            path(
                f"{name}/",
                self.site.admin_view(in_no_transaction(view)),
                name=f"taskclaim_control_{name}",
            )
            for name, view in views.items()
        ]

    def open_to(self, request: HttpRequest) -> list[Room]:
        """Return the rooms that the user may look into."""
        return [room for room in self.rooms if room.may_view(request)]

    def show(self, request: HttpRequest) -> HttpResponse:
        """Answer with the whole page."""
        return self._answer(request, "overview.html")

    def live(self, request: HttpRequest) -> HttpResponse:
        """Answer with the part of it that changes."""
        return self._answer(request, "overview_live.html")

    def _answer(self, request: HttpRequest, template: str) -> HttpResponse:
        rooms = self.open_to(request)
        if not rooms:
            raise PermissionDenied
        request.current_app = self.site.name
        lines = _lines(rooms)
        late = [line.late_since for line in lines if line.late_since is not None]
        url = {name: self._url(name) for name in ("live", "pause", "resume")}
        context = {
            **(self.site.each_context(request) if template == "overview.html" else {}),
            **crumbs_context([Crumb(_("Control room"))]),
            "title": _("Control room"),
            "every": EVERY,
            "url": url,
            "lines": lines,
            "may_operate_all": may_operate(request, None),
            "all_are_paused": any(line.state.all_are_paused for line in lines),
            "as_of": words.clock_to_the_second(timezone.now()),
            "late_since": words.clock_to_the_second(min(late)) if late else "",
        }
        return TemplateResponse(request, f"{TEMPLATES}/{template}", context)

    def _url(self, name: str) -> str:
        return reverse(f"{self.site.name}:taskclaim_control_{name}")

    def pause(self, request: HttpRequest) -> HttpResponseBase:
        """Ask, and then stop the claims of every model, on every database."""
        return self._ask(request, off=True)

    def resume(self, request: HttpRequest) -> HttpResponseBase:
        """Ask, and then let claims flow again; models that were paused by name stay so."""
        return self._ask(request, off=False)

    def _ask(self, request: HttpRequest, *, off: bool) -> HttpResponseBase:
        return ask_to_turn(
            request,
            None,
            off=off,
            allowed=may_operate(request, None),
            back=overview_url(self.site),
            crumbs=[Crumb(_("Control room"), overview_url(self.site))],
            site=self.site,
        )


def _silent(count: int) -> str:
    told = ngettext("%(n)s silent worker", "%(n)s silent workers", count)
    return told % {"n": words.number(count)} if count else ""


def _lines(rooms: Sequence[Room]) -> list[Line]:
    """Ask about each model; together they may take no longer than one page."""
    total = Asking("", "")
    known = {alias: _workers(alias, total.left) for alias in {room.alias for room in rooms}}
    return [_line(room, known[room.alias], total.left) for room in rooms]


def _workers(alias: str, left: timedelta) -> list[Worker] | None:
    return Asking(alias, "*", left).ask("workers", lambda: workers(alias)).value


def _line(room: Room, known: Sequence[Worker] | None, left: timedelta) -> Line:
    asking = Asking(room.alias, room.model._meta.label_lower, left)
    seen = asking.ask("overview", lambda: overview(room.model, room.alias, exact=False)).value
    serving = [worker for worker in known or () if worker.serves(room.model)]
    living = sum(worker.alive for worker in serving)
    silent = len(serving) - living
    return Line(
        name=room.name,
        label=room.label,
        url=room.url(),
        state=state_of(seen, None if known is None else serving),
        bar=bar_of(seen),
        living=words.number(living),
        silent=_silent(silent),
        late_since=asking.late_since,
    )
