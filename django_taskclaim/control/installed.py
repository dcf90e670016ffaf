"""Whether this app is there to be used: everything else in it must be importable where it is not installed."""

from django.apps import apps
from django.db import router

NAME = "django_taskclaim.control"


def is_installed() -> bool:
    """Say whether the app is in INSTALLED_APPS, so that its models may be imported."""
    return apps.is_installed(NAME)


def is_on(using: str) -> bool:
    """Say whether the tables of this app are to be found on the database *using*; asks no database."""
    return is_installed() and router.allow_migrate(using, "taskclaim_control")
