"""Who may look, who may act, who may turn the knobs. What is not allowed here is denied.

With ``django_taskclaim.control`` installed there are three permissions for all models together (``view_control``,
``operate``, ``configure``), and each counts only where the user may view, or change, the model as well. Without it the
model's own permissions decide, and there is nothing to configure.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from django.apps import apps
from django.contrib import admin
from django.contrib.auth import get_permission_codename
from django.db import models
from django.http import HttpRequest

#: The app whose permissions these are.
CONTROL = "taskclaim_control"

Model: TypeAlias = type[models.Model] | None

if TYPE_CHECKING:
    Admin: TypeAlias = admin.ModelAdmin[Any] | None
else:
    # Django's class takes no parameter while the program runs.
    Admin = Any


def may_view(
    request: HttpRequest, model: Model, *, model_admin: Admin = None, obj: object = None
) -> bool:
    """Say whether the user may see how the claims of *model* are getting on; with None, that of models in general."""
    if not _granted(request, "view_control"):
        return False
    if model is None:
        return _with_control()
    if model_admin is not None:
        return model_admin.has_view_or_change_permission(request, obj)
    return _on_model(request, model, "view") or _on_model(request, model, "change")


def may_operate(
    request: HttpRequest, model: Model, *, model_admin: Admin = None, obj: object = None
) -> bool:
    """Say whether the user may act on rows of *model*, or turn its switch; with None, on all models at once.

    With *model_admin* that one is asked about the model, and about *obj*, so that its own rules count.
    """
    return _granted(request, "operate") and _may_change(request, model, model_admin, obj)


class OperatePermission:
    """The permission that a ModelAdmin checks before each button, page and action of this app; override it."""

    model: type[models.Model]

    def has_operate_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say whether the user may act on claims of the model, or of *obj*."""
        return may_operate(request, self.model, model_admin=self, obj=obj)  # type: ignore[arg-type]


def may_act(request: HttpRequest, model: Model, model_admin: Admin, obj: object = None) -> bool:
    """Say whether the user may operate; a ModelAdmin with ``ClaimAdminMixin`` has the last word."""
    own = getattr(model_admin, "has_operate_permission", None)
    if own is not None:
        return bool(own(request, obj))
    return may_operate(request, model, model_admin=model_admin, obj=obj)


def row_permission(
    request: HttpRequest, model_admin: Admin
) -> Callable[[models.Model], bool] | None:
    """Return what says whether the user may act on a row; None where the ModelAdmin makes no difference by row."""
    kind: Any = type(model_admin)
    ours = OperatePermission.has_operate_permission
    if model_admin is None or (
        kind.has_change_permission is admin.ModelAdmin.has_change_permission
        and getattr(kind, "has_operate_permission", ours) is ours
    ):
        return None
    return lambda row: may_act(request, type(row), model_admin, row)


def may_configure(request: HttpRequest, model: Model, *, model_admin: Admin = None) -> bool:
    """Say whether the user may change the overrides of *model*; never where the control app is not installed."""
    granted = _with_control() and _granted(request, "configure")
    return granted and _may_change(request, model, model_admin)


def _may_change(request: HttpRequest, model: Model, model_admin: Admin, obj: object = None) -> bool:
    """Say so of rows of *model*, of all models with None; that takes the permissions of the control app."""
    if model is None:
        return _with_control()
    if model_admin is not None:
        return model_admin.has_change_permission(request, obj)
    return _on_model(request, model, "change")


def _with_control() -> bool:
    return apps.is_installed("django_taskclaim.control")


def _granted(request: HttpRequest, codename: str) -> bool:
    """Say whether the user is on the staff, and has the permission where the control app is installed."""
    user: Any = getattr(request, "user", None)
    if user is None or not (user.is_active and user.is_staff):
        return False
    return not _with_control() or bool(user.has_perm(f"{CONTROL}.{codename}"))


def _on_model(request: HttpRequest, model: type[models.Model], verb: str) -> bool:
    user: Any = request.user
    meta = model._meta
    return bool(user.has_perm(f"{meta.app_label}.{get_permission_codename(verb, meta)}"))
