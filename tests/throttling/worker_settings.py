"""The tests' settings for workers that throttle themselves: while there are rows of UuidKey, or when tries fail."""

import os
import threading

from django_taskclaim.throttling import ReplicaLag, Sql
from tests.settings import *  # noqa: F403


def broken(using: str) -> None:
    raise RuntimeError("no connection to the moon")


def hanging(using: str) -> None:
    threading.Event().wait()


ROWS = Sql("SELECT COUNT(*) FROM testapp_uuidkey", at_most=0, name="rows")

TASKCLAIM = {
    "REAPER_INTERVAL": 0.5,
    "HEALTH_CHECKS": {
        "rows": [ROWS],
        "odd": [broken, hanging, ROWS],
        "refused": [ReplicaLag(using="other")],
    }[os.environ.get("TASKCLAIM_TEST_CHECKS", "rows")],
    "HEALTH_EVERY": 0.3,
    "BREAKER": 0.5,
    "BREAKER_OUTCOMES": 4,
    "BREAKER_REST": float(os.environ.get("TASKCLAIM_TEST_REST", "3600")),
}
