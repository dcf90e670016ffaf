"""Settings of a project that uses other people's apps, all of them at once."""

from typing import Any

from tests.settings import *  # noqa: F403

AUTH_USER_MODEL = "third_party.Member"
SITE_ID = 1

INSTALLED_APPS = ["admin_actions", "django.contrib.admin", "django.contrib.auth"]
INSTALLED_APPS += ["django.contrib.contenttypes", "django.contrib.sessions"]
INSTALLED_APPS += ["django.contrib.messages", "django.contrib.staticfiles"]
INSTALLED_APPS += ["treebeard", "mptt", "polymorphic", "taggit", "modelcluster"]
INSTALLED_APPS += ["wagtail.users", "wagtail.images", "wagtail.documents", "wagtail.search"]
INSTALLED_APPS += ["wagtail.admin", "wagtail", "reversion", "simple_history", "pgtrigger"]
INSTALLED_APPS += ["pghistory", "django_taskclaim", "django_taskclaim.control"]
INSTALLED_APPS += ["tests.third_party.app"]


class _NoMigrations(dict[str, Any]):
    """Tables are made from the models: hundreds of migrations of others would take minutes."""

    def __contains__(self, label: object) -> bool:
        return label not in {"taskclaim", "taskclaim_control"}

    def __missing__(self, label: str) -> None:
        return None


MIGRATION_MODULES = _NoMigrations()
PGHISTORY_INSTALL_CONTEXT_FUNC_ON_MIGRATE = True

ROOT_URLCONF = "tests.third_party.urls"
WAGTAIL_SITE_NAME = "Tests"
WAGTAILADMIN_BASE_URL = "http://testserver"
