"""How many photos a claim gets under the limits of the fleet, and the moment."""

from datetime import UTC, datetime
from typing import Any

from tests.testapp.models import Photo


def claimed(number: int, **given: Any) -> int:
    return len(Photo.objects.claim_batch(number, **given))


def now() -> datetime:
    return datetime.now(UTC)
