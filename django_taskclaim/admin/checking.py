"""What a project must have for the buttons to be seen."""

from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage

from django_taskclaim.checks.messages import message


def problems(admin: Any) -> list[CheckMessage]:
    """E021 and W021: the buttons are drawn by templates of ``admin_actions``, found before those of Django's admin."""
    names = [config.name for config in apps.get_app_configs()]
    hint = "Add 'admin_actions' to INSTALLED_APPS, before 'django.contrib.admin'."
    if "admin_actions" not in names:
        text = (
            "ClaimAdminMixin draws its buttons by the app 'admin_actions', which is not installed."
        )
        return [message("E021", text, hint, admin.__class__)]
    if "django.contrib.admin" in names and names.index("admin_actions") > names.index(
        "django.contrib.admin"
    ):
        text = (
            "The app 'admin_actions' comes after 'django.contrib.admin', so buttons are not seen."
        )
        return [message("W021", text, hint, admin.__class__)]
    return []
