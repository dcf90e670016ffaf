"""The tests' settings for workers that throttle themselves: while there are rows of UuidKey, or when tries fail."""

import os

from django_taskclaim.throttling import ReplicaLag, Sql
from tests.settings import *  # noqa: F403

TASKCLAIM = {
    "REAPER_INTERVAL": 0.5,
    "HEALTH_CHECKS": [Sql("SELECT COUNT(*) FROM testapp_uuidkey", at_most=0, name="rows")],
    "HEALTH_EVERY": 0.3,
    "BREAKER": {"outcomes": 4, "rest": float(os.environ.get("TASKCLAIM_TEST_REST", "60"))},
}

if os.environ.get("TASKCLAIM_TEST_REFUSED"):
    TASKCLAIM["HEALTH_CHECKS"] = [ReplicaLag(using="other")]
