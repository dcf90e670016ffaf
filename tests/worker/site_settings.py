"""The tests' settings for the process of ``tests.worker.site``."""

from tests.settings import *  # noqa: F403

ROOT_URLCONF = "tests.worker.site"
ALLOWED_HOSTS = ["127.0.0.1"]
