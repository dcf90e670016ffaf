"""Settings of a project that uses other people's apps, all of them at once."""

import os
import tempfile
from typing import Any

import oscar
from oscar.defaults import *  # noqa: F403

from tests.settings import *  # noqa: F403

AUTH_USER_MODEL = "third_party.Member"
SITE_ID = 1

INSTALLED_APPS = [
    "admin_actions",
    # Its catalogue is forked, as its users do to change a model.
    *(
        "tests.third_party.catalogue.apps.CatalogueConfig" if ".CatalogueConfig" in name else name
        for name in oscar.INSTALLED_APPS
    ),
    "mptt",
    "polymorphic",
    "import_export",
    "rest_framework",
    "easy_thumbnails",
    "filer",
    "helpdesk",
    "taggit",
    "modelcluster",
    "wagtail.users",
    "wagtail.images",
    "wagtail.documents",
    "wagtail.search",
    "wagtail.admin",
    "wagtail.contrib.search_promotions",
    "wagtail",
    "reversion",
    "simple_history",
    "pgtrigger",
    "pghistory",
    "django_taskclaim",
    "django_taskclaim.control",
    "tests.third_party.app",
]


class _NoMigrations(dict[str, Any]):
    """Tables are made from the models: hundreds of migrations of others would take minutes."""

    def __contains__(self, label: object) -> bool:
        return label not in {"taskclaim", "taskclaim_control"}

    def __missing__(self, label: str) -> None:
        return None


MIGRATION_MODULES = _NoMigrations()
PGHISTORY_INSTALL_CONTEXT_FUNC_ON_MIGRATE = True

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "tests.third_party.urls"
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}
WAGTAIL_SITE_NAME = "Tests"
WAGTAILADMIN_BASE_URL = "http://testserver"
HELPDESK_TEAMS_MODE_ENABLED = False
# Of the test run: the processes that it starts find the same files.
MEDIA_ROOT = os.environ.setdefault("TASKCLAIM_TEST_MEDIA", tempfile.mkdtemp(prefix="media-"))
OSCAR_THUMBNAILER = "oscar.core.thumbnails.EasyThumbnails"
