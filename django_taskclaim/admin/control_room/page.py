"""The page of one model: where it is, and who may do what there."""

from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.db import models, router
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.text import capfirst

from django_taskclaim.admin.permissions import Admin, may_act, may_configure, may_view


class Page:
    """The page of one claimable model on one AdminSite, with its ModelAdmin where it has one."""

    def __init__(self, model: type[models.Model], site: AdminSite, model_admin: Admin) -> None:
        self.model = model
        self.site = site
        self.model_admin = model_admin

    @property
    def alias(self) -> str:
        """The database that the page tells of."""
        return router.db_for_write(self.model)

    @property
    def name(self) -> str:
        """The plural of what the rows are called."""
        return str(capfirst(str(self.model._meta.verbose_name_plural)))

    @property
    def label(self) -> str:
        return self.model._meta.label

    def url_name(self, page: str = "") -> str:
        """Return the name of one of the pages without the site's namespace."""
        meta = self.model._meta
        return f"{meta.app_label}_{meta.model_name}_control{'_' if page else ''}{page}"

    def url(self, page: str = "", **kwargs: object) -> str:
        return reverse(f"{self.site.name}:{self.url_name(page)}", kwargs=kwargs)

    def may_view(self, request: HttpRequest) -> bool:
        return may_view(request, self.model, model_admin=self.model_admin)

    def may_operate(self, request: HttpRequest) -> bool:
        return may_act(request, self.model, self.model_admin)

    def may_configure(self, request: HttpRequest) -> bool:
        return may_configure(request, self.model, model_admin=self.model_admin)

    def rows(self, request: HttpRequest) -> "models.QuerySet[Any]":
        """Return the rows that the user may see one by one; counts are of all of them."""
        if self.model_admin is not None:
            return self.model_admin.get_queryset(request).using(self.alias)
        return models.QuerySet(self.model, using=self.alias)

    def shows_all(self, request: HttpRequest) -> bool:
        """Say whether the user may see every row there is."""
        query = self.rows(request).query
        return not (query.where or query.is_sliced or query.combinator)

    def beside(self, model: type[models.Model]) -> "Page":
        """Return the page of another model on the same site."""
        return Page(model, self.site, self.site._registry.get(model))

    def row_url(self, key: Any) -> str:
        """Return the address of one row in the admin; empty where it has none."""
        return self._admin_url("change", quote(key))

    def list_url(self) -> str:
        """Return the address of the model's list in the admin; empty where it has none."""
        return self._admin_url("changelist")

    def _admin_url(self, page: str, *args: str) -> str:
        meta = self.model._meta
        return address(self.site, f"{meta.app_label}_{meta.model_name}_{page}", *args)


def address(site: AdminSite, name: str, *args: str) -> str:
    """Return the address of a page of the site; empty where it has none."""
    try:
        return reverse(f"{site.name}:{name}", args=args)
    except NoReverseMatch:
        return ""


def overview_url(site: AdminSite) -> str:
    """Return the address of the overview; empty on a site that has none."""
    return address(site, "taskclaim_control_changelist")
