"""Where the control room is: its overview in the app "taskclaim" of an AdminSite, each page beside its model's list.

The overview is the list of ``Control``, a proxy without rows of its own, so that the index and the sidebar of any
AdminSite show it. Importing ``django_taskclaim.admin`` registers it on Django's default site; for another one call
``register(site)``.

    /admin/taskclaim/control/                       the overview
    /admin/<app>/<model>/control/                   a model whose ModelAdmin has ``ClaimAdminMixin``
    /admin/taskclaim/control/<app>.<model>/         any other claimable model, one with a composite key too

A model's page is named ``<app>_<model>_control`` on any site.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.contrib.admin import AdminSite, ModelAdmin
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils import timezone
from django.utils.translation import gettext as _

from django_taskclaim.admin.confirming import Crumb, ask_to_turn
from django_taskclaim.admin.control_room.snapshot import (
    in_time,
    outcome,
    segments,
    shared,
    state_of,
)
from django_taskclaim.admin.control_room.views import (
    Page,
    Routes,
    overview_url,
    page_response,
    site_paths,
)
from django_taskclaim.admin.permissions import may_operate
from django_taskclaim.models import Control
from django_taskclaim.monitoring.overview import Summary, summaries
from django_taskclaim.switch import claimable_models

if TYPE_CHECKING:
    Base = ModelAdmin[Any]
else:
    # Django's class takes no parameter while the program runs.
    Base = ModelAdmin


def pages_of(site: AdminSite) -> list[Page]:
    """Return every claimable model as the site knows it, in the order of their names."""
    registered: dict[Any, Any] = site._registry
    pages = [Page(model, site, registered.get(model)) for model in claimable_models()]
    return sorted(pages, key=lambda page: page.name)


class ControlAdmin(Base):
    """The overview in the place of a list. There is nothing to add, change or delete."""

    #: Those that have a page: a model defined once the addresses are known has none.
    pages: Sequence[Page] = ()

    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site
        self.pages = pages_of(site)

        routes: Routes = [
            ("", self.show, "changelist"),
            ("live/", self.live, "live"),
            ("pause/", partial(self.turn, off=True), "pause"),
            ("resume/", partial(self.turn, off=False), "resume"),
        ]
        found = site_paths(site, "", "taskclaim_control", routes)
        for page in self.pages:
            # A ModelAdmin with our mixin has the page among its own addresses.
            if not getattr(page.model_admin, "has_control_page", False):
                found += page.urls(f"{page.model._meta.label_lower}/")
        return found

    def open_to(self, request: HttpRequest) -> list[Page]:
        """Return the pages that the user may see."""
        return [page for page in self.pages if page.may_view(request)]

    def show(self, request: HttpRequest) -> HttpResponse:
        """Answer with the whole overview."""
        return self._answer(request, "overview.html")

    def live(self, request: HttpRequest) -> HttpResponse:
        """Answer with the part of the overview that changes."""
        return self._answer(request, "overview_live.html")

    def _answer(self, request: HttpRequest, template: str) -> HttpResponse:
        pages = self.open_to(request)
        if not pages:
            raise PermissionDenied
        # Those who may see the same models share what was read of them.
        places = tuple((page.model, page.alias) for page in pages)
        found = shared(request, places, partial(_read_all, places))
        lines = [_line(page, found.known.get(page.model)) for page in pages]
        title = _("Control room")
        return page_response(
            request,
            self.admin_site,
            template,
            title,
            [Crumb(title)],
            here=overview_url(self.admin_site),
            models=lines,
            may_operate_all=may_operate(request, None),
            all_are_paused=any(one.pause and one.pause.is_for_all for one in found.known.values()),
            as_of=found.as_of,
            is_late=found.is_late,
        )

    def turn(self, request: HttpRequest, *, off: bool) -> HttpResponseBase:
        """Ask, and then stop the claims of every model on every database, or let them flow again.

        Models that were paused by name stay so.
        """
        back = overview_url(self.admin_site)
        return ask_to_turn(
            request,
            None,
            off=off,
            allowed=may_operate(request, None),
            back=back,
            crumbs=[Crumb(_("Control room"), back)],
            site=self.admin_site,
        )

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return bool(self.open_to(request))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


class _Found(NamedTuple):
    """What was read for the overview; a model is missing whose database did not answer in time."""

    as_of: datetime
    known: dict[type[models.Model], Summary]
    is_late: bool


def _read_all(places: Sequence[tuple[type[models.Model], str]]) -> _Found:
    as_of, known = timezone.now(), dict[type[models.Model], Summary]()

    def read(alias: str) -> bool:
        there = [model for model, place in places if place == alias]
        known.update((seen.model, seen) for seen in summaries(there, alias))
        return True

    in_times = [in_time(alias, partial(read, alias)) for alias in {alias for _, alias in places}]
    return _Found(as_of, known, not all(in_times))


def _line(page: Page, seen: Summary | None) -> dict[str, Any]:
    return {
        "page": page,
        "state": state_of(seen),
        "seen": seen,
        "segments": segments(seen.progress) if seen else [],
        "outcome": outcome(page.model),
        "silent": len(seen.workers) - len(seen.living) if seen else 0,
    }


def register(site: AdminSite) -> None:
    """Give a site the control room; once is enough."""
    if not site.is_registered(Control):
        site.register(Control, ControlAdmin)


register(admin.site)
