"""The tests' settings for workers that throttle themselves when tries fail, and ask their health checks often."""

import os

from tests.settings import *  # noqa: F403

TASKCLAIM = {
    "REAPER_INTERVAL": 0.5,
    "HEALTH_EVERY": 0.3,
    "BREAKER": 0.5,
    "BREAKER_OUTCOMES": 4,
    "BREAKER_REST": float(os.environ.get("TASKCLAIM_TEST_REST", "3600")),
}
