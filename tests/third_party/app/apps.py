from django.apps import AppConfig


class ThirdPartyConfig(AppConfig):
    name = "tests.third_party.app"
    label = "third_party"
