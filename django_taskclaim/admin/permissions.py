"""Who may look, who may act, who may turn the knobs. What is not allowed here is denied.

With ``django_taskclaim.control`` installed there are three permissions for all models together (``view_control``,
``operate``, ``configure``), and each counts only where the user may view, or change, the model as well. Without it the
model's own permissions decide, and there is nothing to configure.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from django.apps import apps
from django.contrib import admin
from django.contrib.auth import get_permission_codename
from django.db import models
from django.http import HttpRequest

#: The app whose permissions these are.
CONTROL = "taskclaim_control"

#: What a user may do to claims, and the permissions on the model of which each needs one.
NEEDS = {"view_control": ("view", "change"), "operate": ("change",), "configure": ("change",)}

Model: TypeAlias = type[models.Model] | None

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
    Admin: TypeAlias = Base | None
else:
    # Django's class takes no parameter while the program runs.
    Base, Admin = object, Any


def may(request: HttpRequest, what: str, model: Model, *, model_admin: Admin = None) -> bool:
    """Say whether the user may do *what*, one of NEEDS, to claims of *model*; with None, to those of all models.

    With *model_admin* that one is asked about the model, so that its own rules count. One with ``ClaimAdminMixin`` has
    the last word about ``operate``.
    """
    own = getattr(model_admin, "has_operate_permission", None)
    if what == "operate" and own is not None:
        return bool(own(request))
    return _granted(request, what, model, model_admin)


def _granted(
    request: HttpRequest, what: str, model: Model, model_admin: Admin, obj: object = None
) -> bool:
    """Say whether the user is on the staff, has the permission of the control app, and what it NEEDS on the model.

    Without the control app nobody may do anything to all models, or ``configure`` any, and on one model its own
    permissions count.
    """
    user: Any = getattr(request, "user", None)
    if user is None or not (user.is_active and user.is_staff):
        return False
    installed = apps.is_installed("django_taskclaim.control")
    if installed and not user.has_perm(f"{CONTROL}.{what}"):
        return False
    if model is None or (what == "configure" and not installed):
        return installed
    if model_admin is not None:
        asked = (getattr(model_admin, f"has_{verb}_permission") for verb in NEEDS[what])
        return any(has_permission(request, obj) for has_permission in asked)
    meta = model._meta
    named = (f"{meta.app_label}.{get_permission_codename(verb, meta)}" for verb in NEEDS[what])
    return any(user.has_perm(name) for name in named)


class OperatePermission(Base):
    """The permission that a ModelAdmin checks before each button, page and action of this app; override it."""

    def has_operate_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say whether the user may act on claims of the model, or of *obj*."""
        return _granted(request, "operate", self.model, self, obj)


def row_permission(
    request: HttpRequest, model_admin: Admin
) -> Callable[[models.Model], bool] | None:
    """Return what says whether the user may act on a row; None where the ModelAdmin makes no difference by row."""
    kind: Any = type(model_admin)
    own = getattr(kind, "has_operate_permission", None)
    if model_admin is None or (
        own in (None, OperatePermission.has_operate_permission)
        and kind.has_change_permission is admin.ModelAdmin.has_change_permission
    ):
        return None
    if own is None:
        return lambda row: _granted(request, "operate", type(row), model_admin, row)
    return partial(own, model_admin, request)
