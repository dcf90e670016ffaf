"""Settings of a project that has not installed the control app."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as USUAL

INSTALLED_APPS = [name for name in USUAL if name != "django_taskclaim.control"]
