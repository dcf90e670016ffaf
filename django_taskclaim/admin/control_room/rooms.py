"""The pages of one model: where they are, who may do what there."""

from typing import Any

from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.utils import quote
from django.db import models
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.text import capfirst

from django_taskclaim.admin.control_room.figures import database_of
from django_taskclaim.admin.permissions import Admin, may_configure, may_operate, may_view
from django_taskclaim.admin.sweeping import Sieve


class Room:
    """One claimable model on one AdminSite, with its ModelAdmin where it has one."""

    def __init__(self, model: type[models.Model], site: AdminSite, model_admin: Admin) -> None:
        self.model = model
        self.site = site
        self.model_admin = model_admin

    @property
    def alias(self) -> str:
        """The database that the page tells of."""
        return database_of(self.model)

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

    def url(self, page: str = "", **kwargs: Any) -> str:
        return reverse(f"{self.site.name}:{self.url_name(page)}", kwargs=kwargs)

    def may_view(self, request: HttpRequest) -> bool:
        return may_view(request, self.model, model_admin=self.model_admin)

    def may_operate(self, request: HttpRequest, obj: Any = None) -> bool:
        """Say whether the user may act on the model, or on *obj*; a ModelAdmin of ours has the last word."""
        own = getattr(self.model_admin, "has_operate_permission", None)
        if own is not None:
            return bool(own(request, obj))
        return may_operate(request, self.model, model_admin=self.model_admin, obj=obj)

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

    def beside(self, model: type[models.Model]) -> "Room":
        """Return the room of another model on the same site."""
        return Room(model, self.site, self.site._registry.get(model))

    def sieve(self, request: HttpRequest, rows: "models.QuerySet[Any]") -> Sieve | None:
        """Return what keeps rows back that the user may not act on; None where the admin makes no difference by row."""
        if not _tells_rows_apart(self.model_admin):
            return None

        def sieve(keys: list[Any]) -> set[Any]:
            found = rows.filter(pk__in=keys)
            return {row.pk for row in found if self.may_operate(request, row)}

        return sieve

    def onlooker(self, request: HttpRequest) -> str:
        """Return who looks, and through which site: what one was told is not told to another."""
        return f"{request.user.pk} on {self.site.name}"

    def row_url(self, key: Any) -> str:
        """Return the address of one row in the admin; empty where it has none."""
        meta = self.model._meta
        try:
            return reverse(
                f"{self.site.name}:{meta.app_label}_{meta.model_name}_change", args=[quote(key)]
            )
        except NoReverseMatch:
            return ""

    def list_url(self) -> str:
        """Return the address of the model's list in the admin; empty where it has none."""
        meta = self.model._meta
        try:
            return reverse(f"{self.site.name}:{meta.app_label}_{meta.model_name}_changelist")
        except NoReverseMatch:
            return ""


def _tells_rows_apart(model_admin: Admin) -> bool:
    """Say whether a ModelAdmin has its own say on who may act on which row."""
    from django_taskclaim.admin.mixin import ClaimAdminMixin

    kind: Any = type(model_admin)
    if model_admin is None:
        return False
    ours = getattr(kind, "has_operate_permission", ClaimAdminMixin.has_operate_permission)
    return (
        kind.has_change_permission is not ModelAdmin.has_change_permission
        or ours is not ClaimAdminMixin.has_operate_permission
    )
