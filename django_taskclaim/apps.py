"""The Django app: registers the checks, and finds the handlers once all apps are ready."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class TaskClaimConfig(AppConfig):
    """``django_taskclaim`` in INSTALLED_APPS."""

    name = "django_taskclaim"
    label = "taskclaim"
    verbose_name = _("Task claims")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_taskclaim import checks  # noqa: F401 - registers them

        autodiscover_modules("claims")
