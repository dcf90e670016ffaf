"""The Django app of the control page's data."""

from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ControlConfig(AppConfig):
    """``django_taskclaim.control`` in INSTALLED_APPS."""

    name = "django_taskclaim.control"
    label = "taskclaim_control"
    verbose_name = _("Control of task claims")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_taskclaim.control import (  # noqa: F401 - the checks register themselves
            audit,
            checks,
            history,
        )
        from django_taskclaim.worker.attachments import attach

        history.listen()
        audit.listen()
        attach(_poller)


def _poller(service: Any) -> Any:
    # Only a worker has use for it.
    from django_taskclaim.control.models import is_on
    from django_taskclaim.control.poller import Poller

    return Poller(service) if is_on(service.options.using) else None
