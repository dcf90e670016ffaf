"""The app that has a table to get through."""

from django.apps import AppConfig


class PhotosConfig(AppConfig):
    """Photos and the claims on them."""

    name = "photos"
    default_auto_field = "django.db.models.BigAutoField"
