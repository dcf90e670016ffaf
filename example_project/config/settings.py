"""Settings of the example: SQLite in a file, or the database that DATABASE_URL names."""

import os
import sys
from pathlib import Path
from typing import Any

import dj_database_url

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = BASE_DIR / "var"
VAR_DIR.mkdir(exist_ok=True)

SECRET_KEY = "an example on loopback has nothing to keep secret"
# Django's own server brings the admin's style sheets only so; a worker would collect every query it sends.
DEBUG = "runserver" in sys.argv
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    # Before the admin, whose templates it replaces: it draws the buttons.
    "admin_actions",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_taskclaim",
    "django_taskclaim.control",
    "photos",
    # Before the package's, one of whose templates it extends.
    "articles",
    "django_taskclaim.contrib.review",
]

LOGIN_URL = "login"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

ROOT_URLCONF = "config.urls"
STATIC_URL = "static/"

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

DATABASES: dict[str, Any] = {
    "default": dj_database_url.parse(
        os.environ.get("DATABASE_URL") or f"sqlite:///{VAR_DIR / 'example.sqlite3'}"
    )
}

if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = {
        # Seconds a writer waits for its turn: SQLite has one writer at a time.
        "timeout": 20,
        # A transaction that reads first and writes later fails at once when another has written.
        "transaction_mode": "IMMEDIATE",
        # Readers do not wait for the writer; a power cut may cost the last commits, a crash none.
        "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
    }

# Records of django_taskclaim as JSON, in one file for all processes: the demo reads its account there.
RECORDS = VAR_DIR / "records.jsonl"
# The demo has a site of its own, whose requests must not disturb the picture in the terminal.
SITE_LOG = "console" if DEBUG else "records"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {"format": "{asctime} {process} {levelname} {name}: {message}", "style": "{"},
        "json": {"()": "config.records.JsonFormatter"},
    },
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "plain"},
        "records": {"class": "logging.FileHandler", "filename": RECORDS, "formatter": "json"},
    },
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {
        "django_taskclaim": {"handlers": ["records"], "level": "DEBUG"},
        "django.request": {"handlers": [SITE_LOG], "propagate": False},
        "django.server": {"handlers": [SITE_LOG], "level": "INFO", "propagate": False},
    },
}

# Dead workers' rows are looked for each second, so that a demo of a minute shows them coming back.
TASKCLAIM = {"REAPER_INTERVAL": 1}
