"""Fixtures of the tests of limits."""

from typing import Any

from django_taskclaim.db import DatabaseLater
from tests.querysets.conftest import let_lease_lapse, nothing_learned, rule, strategy  # noqa: F401 - fixtures
from tests.testapp.models import Photo
from tests.worker.conftest import start_worker  # noqa: F401 - a fixture


def claimed(number: int, **given: Any) -> int:
    """Claim photos and return how many were given."""
    return len(Photo.objects.claim_batch(number, **given))


def pass_time(seconds: float) -> None:
    """Let the rates believe that they were last asked so long before now."""
    from datetime import timedelta

    from django_taskclaim.models import RateLevel

    RateLevel.objects.update(at=DatabaseLater(timedelta(seconds=-seconds)))
