from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "tests.chaos.app"
    label = "chaos"
