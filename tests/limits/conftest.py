"""Fixtures of the tests of limits."""

import json
from datetime import timedelta
from typing import Any

from django.utils import timezone

from django_taskclaim.db import DatabaseLater
from django_taskclaim.models import RateLevel
from tests.querysets.conftest import nothing_learned, rule, strategy  # noqa: F401 - fixtures
from tests.testapp.models import Photo
from tests.worker.conftest import start_worker  # noqa: F401 - a fixture


def claimed(number: int, **given: Any) -> int:
    """Claim photos and return how many were given."""
    return len(Photo.objects.claim_batch(number, **given))


def pass_time(seconds: float) -> None:
    """Let the rates believe that they were last asked so long before now."""
    RateLevel.objects.update(at=DatabaseLater(timedelta(seconds=-seconds)))


def beside(first: int, last: int) -> str:
    """Return a window from so many hours beside now to so many, in the zone of the settings."""
    ends = [timezone.localtime() + timedelta(hours=n) for n in (first, last)]
    return "-".join(f"{end:%H:%M}" for end in ends)


def under(**limits: Any) -> dict[str, str]:
    """Return the environment of a worker whose handler has these options."""
    return {"TASKCLAIM_TEST_LIMITS": json.dumps(limits)}
