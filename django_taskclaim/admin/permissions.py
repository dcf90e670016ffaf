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
    Base = admin.ModelAdmin[Any]
    Admin: TypeAlias = Base | None
else:
    # Django's class takes no parameter while the program runs.
    Base, Admin = object, Any


def may_view(
    request: HttpRequest, model: Model, *, model_admin: Admin = None, obj: object = None
) -> bool:
    """Say whether the user may see how the claims of *model* are getting on; with None, that of models in general."""
    return _may(request, "view_control", model, model_admin, obj, ("view", "change"))


def may_operate(
    request: HttpRequest, model: Model, *, model_admin: Admin = None, obj: object = None
) -> bool:
    """Say whether the user may act on rows of *model*, or turn its switch; with None, on all models at once.

    With *model_admin* that one is asked about the model, and about *obj*, so that its own rules count. One with
    ``ClaimAdminMixin`` has the last word.
    """
    own = getattr(model_admin, "has_operate_permission", None)
    if own is not None:
        return bool(own(request, obj))
    return _may(request, "operate", model, model_admin, obj, ("change",))


def may_configure(request: HttpRequest, model: Model, *, model_admin: Admin = None) -> bool:
    """Say whether the user may change the overrides of *model*; never where the control app is not installed."""
    granted = apps.is_installed("django_taskclaim.control")
    return granted and _may(request, "configure", model, model_admin, None, ("change",))


def _may(
    request: HttpRequest, codename: str, model: Model, model_admin: Admin, obj: object, verbs: Any
) -> bool:
    """Say whether the user is on the staff, has the permission of the control app, and one of *verbs* on the model.

    Without the control app nobody may do anything to all models, and on one model its own permissions count.
    """
    user: Any = getattr(request, "user", None)
    if user is None or not (user.is_active and user.is_staff):
        return False
    installed = apps.is_installed("django_taskclaim.control")
    if installed and not user.has_perm(f"{CONTROL}.{codename}"):
        return False
    if model is None:
        return installed
    if model_admin is not None:
        asked = (getattr(model_admin, f"has_{verb}_permission") for verb in verbs)
        return any(has_permission(request, obj) for has_permission in asked)
    meta = model._meta
    named = (f"{meta.app_label}.{get_permission_codename(verb, meta)}" for verb in verbs)
    return any(user.has_perm(name) for name in named)


class OperatePermission(Base):
    """The permission that a ModelAdmin checks before each button, page and action of this app; override it."""

    def has_operate_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say whether the user may act on claims of the model, or of *obj*."""
        return _may(request, "operate", self.model, self, obj, ("change",))


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
    return lambda row: may_operate(request, type(row), model_admin=model_admin, obj=row)
