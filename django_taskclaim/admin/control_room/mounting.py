"""Where the control room is: in the app "taskclaim" of an AdminSite, with a page for each claimable model.

The overview is the list of ``Control``, a proxy without rows of its own, so that the index and the sidebar of any
AdminSite show it. Importing ``django_taskclaim.admin`` registers it on Django's default site, and a ModelAdmin with
``ClaimAdminMixin`` on its own; for another one call ``register(site)``.

    /admin/taskclaim/control/                       the overview
    /admin/taskclaim/control/<app>.<model>/         the page of a model
"""

from functools import partial

from django.apps import apps
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path

from django_taskclaim.admin.control_room.views import ModelPage, OverviewPage
from django_taskclaim.columns import has_claim_columns
from django_taskclaim.connecting import in_no_transaction
from django_taskclaim.models import Control


class ControlAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic when it runs
    """The overview in the place of a list. There is nothing to add, change or delete."""

    def get_urls(self) -> list[URLPattern]:
        # Pages that only read are outside transactions, too: on SQLite a transaction makes every writer wait.
        view = self.admin_site.admin_view(in_no_transaction(partial(self.answer)))
        # No label is a slug: it has a dot.
        routes = ("", "<slug:page>/", "<label>/", "<label>/<slug:page>/")
        return [path(route, view, name="taskclaim_control_changelist") for route in routes]

    def answer(self, request: HttpRequest, label: str = "", page: str = "") -> HttpResponseBase:
        """Answer an address of the overview, or of the page of the model with this label."""
        if not label:
            return OverviewPage(self.admin_site).answer(request, page)
        try:
            model = apps.get_model(label)
        except (LookupError, ValueError):
            raise Http404 from None
        if not has_claim_columns(model):
            raise Http404
        return ModelPage(self.admin_site, model).answer(request, page)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return any(OverviewPage(self.admin_site).pages(request))

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        # Else the index would say "Change", where it says "View".
        return False


def register(site: AdminSite) -> None:
    """Give a site the control room; once is enough."""
    if not site.is_registered(Control):
        site.register(Control, ControlAdmin)


register(admin.site)
