from django.apps import AppConfig


class GuardedConfig(AppConfig):
    """An app that is history alone: the model has gone from the code, and its migrations are what is left."""

    name = "tests.operations.guarded"
    label = "guarded"
