"""The Django app of the control page's data."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ControlConfig(AppConfig):
    """``django_taskclaim.control`` in INSTALLED_APPS."""

    name = "django_taskclaim.control"
    label = "taskclaim_control"
    verbose_name = _("Control of task claims")

    def ready(self) -> None:
        from django_taskclaim import worker
        from django_taskclaim.control import history

        history.listen()
        worker.more_duties.add("django_taskclaim.control.poller.duties")
