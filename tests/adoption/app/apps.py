from django.apps import AppConfig


class AdoptionConfig(AppConfig):
    """Installed by the tests that adopt its tables, see ``conftest``."""

    name = "tests.adoption.app"
    label = "adoption"
    default_auto_field = "django.db.models.BigAutoField"
