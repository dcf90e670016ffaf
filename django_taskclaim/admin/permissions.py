"""Who may look, who may act, who may turn the knobs. What is not allowed here is denied; the site asks for the login.

With ``django_taskclaim.control`` installed there are three permissions for all models together (``view_control``,
``operate``, ``configure``), and each counts only where the user may view, or change, the model as well. Without it the
model's own permissions decide, and there is nothing to configure.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from django.apps import apps
from django.contrib import admin
from django.db import models
from django.http import HttpRequest

from django_taskclaim.columns import deleted_with, has_ranges
from django_taskclaim.control.models import APP, LABEL

#: What a user may do to claims, and the permission of a ModelAdmin that each needs.
NEEDS = {"view_control": "view_or_change", "operate": "change", "configure": "change"}

Admin: TypeAlias = "admin.ModelAdmin[Any] | None"


def may(
    request: HttpRequest,
    what: str,
    model: type[models.Model] | None,
    *,
    model_admin: Admin = None,
    obj: object = None,
) -> bool:
    """Say whether the user may do *what*, one of NEEDS, to claims of *model* or of *obj*; with None, to all models'.

    Or whether the user may "delete" rows of the model: who may, may ``operate`` and has the permission of the model,
    and of all models of the site whose rows go with them, as Django's own page for deleting asks. Nobody may delete
    ranges: their rows of the source would not be planned again.

    With *model_admin* that one is asked about the model, so that its own rules count. One with ``ClaimAdminMixin`` has
    the last word about ``operate``.
    """
    own = getattr(model_admin, "has_operate_permission", None)
    if what == "operate" and own is not None:
        return bool(own(request, obj))
    if model is not None:
        model_admin = model_admin or admin.ModelAdmin(model, admin.site)
    if what == "delete" and model_admin is not None:
        admins, beside = model_admin.admin_site._registry, deleted_with(model_admin.model, set())
        return (
            not has_ranges(model_admin.model)
            and may(request, "operate", model, model_admin=model_admin, obj=obj)
            and model_admin.has_delete_permission(request, obj)
            and all(admins[one].has_delete_permission(request) for one in beside if one in admins)
        )
    return _granted(request, what, model_admin, obj)


def _granted(request: HttpRequest, what: str, model_admin: Admin, obj: object) -> bool:
    """Say whether the user has the permission of the control app, and what it NEEDS of *model_admin*.

    Without the control app nobody may do anything to all models (None), or ``configure`` any, and on one model its own
    permissions count.
    """
    installed = apps.is_installed(APP)
    if installed and not request.user.has_perm(f"{LABEL}.{what}"):
        return False
    if model_admin is None or (what == "configure" and not installed):
        return installed
    return bool(getattr(model_admin, f"has_{NEEDS[what]}_permission")(request, obj))


class OperatePermission(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic when it runs
    """The permission that a ModelAdmin checks before each button, page and action of this app; override it."""

    def has_operate_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say whether the user may act on claims of the model, or of *obj*."""
        return _granted(request, "operate", self, obj)


def row_permission(
    request: HttpRequest, what: str, model_admin: Admin
) -> Callable[[models.Model], bool] | None:
    """Return what says whether the user may do *what* to a row; None where all rows are alike to the ModelAdmin."""
    if model_admin is None:
        return None
    kind, ours = type(model_admin), OperatePermission.has_operate_permission
    own = getattr(kind, "has_operate_permission", ours), kind.has_change_permission
    plain = ours, admin.ModelAdmin.has_change_permission
    deletes_any = kind.has_delete_permission is admin.ModelAdmin.has_delete_permission
    if own == plain and (what != "delete" or deletes_any):
        return None
    return lambda row: may(request, what, type(row), model_admin=model_admin, obj=row)
