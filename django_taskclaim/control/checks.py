"""Checks of what this app needs; their ids are listed with the others in ``django_taskclaim.checks``."""

from django.core.checks import CheckMessage, register

from django_taskclaim.checks import first_models
from django_taskclaim.control.models import is_on
from django_taskclaim.findings import TAG, message


@register(TAG)
def check_routers(**kwargs: object) -> list[CheckMessage]:
    """E043 where the tables of this app may not go."""
    return [
        message(
            "E043",
            f"A router keeps the tables of taskclaim_control away from the database {alias!r}, which holds"
            f" {model._meta.label}: workers there follow no commands, and nothing is recorded.",
            f"Let allow_migrate({alias!r}, 'taskclaim_control') return True, and run: manage.py migrate"
            f" taskclaim_control --database {alias}",
        )
        for alias, model in first_models().items()
        if not is_on(alias)
    ]
