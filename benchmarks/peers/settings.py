"""Settings of the peers: those that run on the database in ``DATABASE_URL``, each as its documentation sets it up."""

import os
from typing import Any

import dj_database_url

DATABASES: dict[str, Any] = {"default": dj_database_url.parse(os.environ["DATABASE_URL"])}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
    }
HAS_NOTIFY = DATABASES["default"]["ENGINE"].endswith("postgresql")

SECRET_KEY = "used by benchmarks only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGGING_CONFIG = None

INSTALLED_APPS = ["django_ox", "django_tasks_db", "django_q", "benchmarks.peers"]
if HAS_NOTIFY:
    INSTALLED_APPS.append("reliable_outbox")

TASKS = {
    "default": {"BACKEND": "django_tasks_db.DatabaseBackend"},
    "ox": {"BACKEND": "django_ox.backend.OxBackend"},
}
Q_CLUSTER = {
    "name": "peers",
    "orm": "default",
    "workers": 4,
    "bulk": int(os.environ.get("BENCHMARK_BATCH", "1")),
    "queue_limit": 500,
    # Successes are not saved: less to write.
    "save_limit": -1,
    "poll": 0.1,
    "timeout": 60,
    "retry": 120,
    "catch_up": False,
    "scheduler": False,
    "log_level": "ERROR",
}
RELIABLE_OUTBOX = {"AUTODISCOVER": ["benchmarks.peers.jobs"]}
