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
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin import AdminSite, ModelAdmin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver

from django_taskclaim.admin.confirming import in_no_transaction
from django_taskclaim.admin.control_room.page import Page
from django_taskclaim.admin.control_room.views import Overview, urls_of
from django_taskclaim.models import Control
from django_taskclaim.switch import claimable_models

if TYPE_CHECKING:
    Base = ModelAdmin[Any]
else:
    # Django's class takes no parameter while the program runs.
    Base = ModelAdmin


def page_urls(model_admin: "ModelAdmin[Any]") -> list[URLPattern]:
    """Return the patterns of the page of a model whose ModelAdmin has our mixin."""
    page = Page(model_admin.model, model_admin.admin_site, model_admin)
    return urls_of(page, "control/")


def has_own_page(model_admin: object) -> bool:
    """Say whether a ModelAdmin mounts the page of its model itself."""
    return bool(getattr(model_admin, "has_control_page", False))


def pages_of(site: AdminSite) -> list[Page]:
    """Return every claimable model as the site knows it, in the order of their names."""
    registered: dict[Any, Any] = site._registry
    pages = [Page(model, site, registered.get(model)) for model in claimable_models()]
    return sorted(pages, key=lambda page: page.name)


class ControlAdmin(Base):
    """The overview in the place of a list. There is nothing to add, change or delete."""

    #: Those that have a page: a model defined once the addresses are known has none.
    pages: Sequence[Page] = ()

    @property
    def overview(self) -> Overview:
        return Overview(self.admin_site, self.pages)

    def get_urls(self) -> list[URLPattern | URLResolver]:  # type: ignore[override]
        self.pages = pages_of(self.admin_site)
        pages: list[URLPattern | URLResolver] = [*self.overview.urls()]
        for page in self.pages:
            if not has_own_page(page.model_admin):
                pages += urls_of(page, f"{page.model._meta.label_lower}/")
        listed = [url for url in super().get_urls() if _name(url) == "taskclaim_control_changelist"]
        return [*pages, *listed]

    @in_no_transaction
    def changelist_view(self, request: HttpRequest, extra_context: object = None) -> HttpResponse:
        return self.overview.show(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return bool(self.overview.open_to(request))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


def _name(url: object) -> str:
    return str(getattr(url, "name", ""))


def register(site: AdminSite) -> None:
    """Give a site the control room; once is enough."""
    if not site.is_registered(Control):
        site.register(Control, ControlAdmin)


register(admin.site)
