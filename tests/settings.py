"""Settings of the tests; ``DATABASE_URL`` chooses the database (see ``tests.servers``).

``OTHER_DATABASE_URL`` and ``TASKCLAIM_TEST_…`` serve the processes that tests start: they must see the same
databases, sometimes another clock, and no pages.
"""

import os
import sys
from pathlib import Path, PurePath
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from tests import servers

# The example's articles are tested here as well, on every database; last, so that nothing is hidden by its other apps.
sys.path.append(str(Path(__file__).resolve().parent.parent / "example_project"))


def database(url: str, purpose: str) -> dict[str, Any]:
    """Return one entry of ``DATABASES`` for *url*, with a test database named after *purpose*."""
    entry: dict[str, Any] = dict(dj_database_url.parse(url))
    vendor = entry["ENGINE"].rpartition(".")[2]
    try:
        options, test = VENDORS[vendor](entry, purpose)
    except KeyError:
        raise ImproperlyConfigured(
            f"DATABASE_URL names the engine {entry['ENGINE']!r}; the tests know {', '.join(VENDORS)}."
        ) from None
    entry["OPTIONS"] = options | entry.get("OPTIONS", {})
    entry["TEST"] = test
    return entry


def sqlite(entry: dict[str, Any], purpose: str) -> tuple[dict[str, Any], dict[str, Any]]:
    # In a file, because a database in memory belongs to one process alone.
    options = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
    }
    return options, {"NAME": str(PurePath(entry["NAME"]).with_name(f"test_{purpose}.sqlite3"))}


def postgresql(entry: dict[str, Any], purpose: str) -> tuple[dict[str, Any], dict[str, Any]]:
    # A cluster made under LANG=C would give SQL_ASCII, which template0 lets us overrule.
    test = {"NAME": test_name(entry, purpose), "CHARSET": "UTF8", "TEMPLATE": "template0"}
    return {"connect_timeout": 10}, test


def mysql(entry: dict[str, Any], purpose: str) -> tuple[dict[str, Any], dict[str, Any]]:
    test = {"NAME": test_name(entry, purpose), "CHARSET": "utf8mb4"}
    return {"connect_timeout": 10, "charset": "utf8mb4"}, test


def test_name(entry: dict[str, Any], purpose: str) -> str:
    """Name a test database after the URL's, so that runs of several tox environments do not meet."""
    environment = os.environ.get("TOX_ENV_NAME", "").replace("-", "_")
    parts = ("test", entry["NAME"], environment, "" if purpose == "default" else purpose)
    return "_".join(part for part in parts if part)


VENDORS = {"sqlite3": sqlite, "postgresql": postgresql, "mysql": mysql}

DATABASE_URL = servers.database_url()

DATABASES = {
    "default": database(DATABASE_URL, "default"),
    # Another database on the same server, for everything that a router or ``using`` decides.
    "other": database(os.environ.get("OTHER_DATABASE_URL", DATABASE_URL), "other"),
}

USE_TZ = os.environ.get("TASKCLAIM_TEST_USE_TZ", "1") == "1"
TIME_ZONE = os.environ.get("TASKCLAIM_TEST_TIME_ZONE", "UTC")

SECRET_KEY = "used by tests only"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
ROOT_URLCONF = "tests.urls"

INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth"]
# Before the admin, whose templates it replaces.
INSTALLED_APPS += ["admin_actions", "django.contrib.admin", "django.contrib.sessions"]
INSTALLED_APPS += ["django.contrib.messages", "django.contrib.staticfiles"]
INSTALLED_APPS += ["django_taskclaim", "django_taskclaim.control", "tests.testapp"]
INSTALLED_APPS += ["tests.chaos.app", "articles", "django_taskclaim.contrib.review"]
INSTALLED_APPS += ["tests.companions.app"]

if "postgres" in DATABASE_URL:
    # Partitions, and an audit by row triggers; see tests.surroundings.
    INSTALLED_APPS += ["pgtrigger", "pghistory", "tests.surroundings.app"]
    # For apps without migrations; nothing of Django's own is changed for it.
    PGTRIGGER_INSTALL_ON_MIGRATE = True
    PGTRIGGER_MIGRATIONS = PGTRIGGER_SCHEMA_EDITOR = False

if os.environ.get("TASKCLAIM_TEST_PAGES") == "":
    # A worker shows no page. Without these its process needs a fifth less to start.
    PAGES = ("admin_actions", "admin", "sessions", "messages", "staticfiles")
    INSTALLED_APPS = [app for app in INSTALLED_APPS if app.rpartition(".")[2] not in PAGES]

DATABASE_ROUTERS = ["tests.companions.app.routers.FarAway"]

LOGIN_URL = "login"
# What makes passwords safe takes most of the time of a test that makes users.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

if log := os.environ.get("TASKCLAIM_TEST_LOG"):
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"json": {"class": "tests.jsonlog.JsonLines", "path": log}},
        "loggers": {"django_taskclaim": {"handlers": ["json"], "level": "DEBUG"}},
    }

TASKCLAIM = {
    key: float(number)
    for key in ("REAPER_INTERVAL", "LEASE")
    if (number := os.environ.get(f"TASKCLAIM_TEST_{key}"))
}
