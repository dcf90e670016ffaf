"""What the views ask of Django's permissions."""

from typing import Any

from django.apps import apps
from django.contrib.auth import get_backends, get_permission_codename

#: By these methods a backend answers for a single row. Django's own backends have no such answer.
_ANSWERS = ("has_perm", "get_all_permissions", "get_user_permissions", "get_group_permissions")


def may_change(user: Any, model: Any, row: Any = None) -> bool:
    """Say whether *user* has the change permission of *model*, and that of *row* where a backend knows single rows."""
    meta = model._meta
    permission = f"{meta.app_label}.{get_permission_codename('change', meta)}"
    if not user.has_perm(permission):
        return False
    return row is None or not backends_know_rows() or bool(user.has_perm(permission, row))


def may_operate(user: Any) -> bool:
    """Say whether *user* may take rows from others: with ``taskclaim_control.operate``, where that app is installed."""
    with_control = apps.is_installed("django_taskclaim.control")
    return not with_control or bool(user.has_perm("taskclaim_control.operate"))


def backends_know_rows() -> bool:
    """Say whether one of ``AUTHENTICATION_BACKENDS`` may have an answer for a single row."""
    return any(
        getattr(backend, name).__module__ != "django.contrib.auth.backends"
        for backend in get_backends()
        for name in _ANSWERS
        if hasattr(backend, name)
    )
