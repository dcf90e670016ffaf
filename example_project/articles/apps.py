"""The app whose rows people work through."""

from django.apps import AppConfig


class ArticlesConfig(AppConfig):
    """Articles and the editors who review them."""

    name = "articles"
    default_auto_field = "django.db.models.BigAutoField"
