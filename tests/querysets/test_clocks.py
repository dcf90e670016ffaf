"""Only the database's clock decides: no worker's clock and no setting of a time zone shifts a lease."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.factories import make, make_claimed
from tests.processes import output_of, wrong_clock
from tests.querysets.support import clock, facts, set_raw
from tests.testapp.models import Photo

pytestmark = pytest.mark.promise(6)

DAY = timedelta(days=1)

#: What a worker with a wrong clock does: reap, claim, renew, and put back with a delay.
WRONG_CLOCK = """
import django
django.setup()
from tests.testapp.models import Photo
Photo.objects.release_expired()
due = Photo.objects.due().count()
claimed, delayed = Photo.objects.claim_batch(5, lease=3600)
claimed.claim.renew(7200)
delayed.claim.release(delay=3600)
print(due, claimed.pk, delayed.pk)
"""


@pytest.mark.parametrize("shift", [DAY, pytest.param(-DAY, marks=pytest.mark.once)])
def test_a_worker_with_a_wrong_clock_decides_as_any_other(
    shift: timedelta, process_env: dict[str, str]
) -> None:
    """It leaves alone what stands or waits, and takes what has expired or is due."""
    standing, ended = make_claimed(Photo, 2, lease=36_000)
    set_raw(ended, "expires_at", clock("-1 MINUTE"))
    waiting, due = make(Photo, 2)
    set_raw(waiting, "not_before", clock("+10 HOUR"))
    set_raw(due, "not_before", clock("-1 MINUTE"))
    env = process_env | wrong_clock(shift.total_seconds())
    found, claimed, delayed = map(int, output_of("-c", WRONG_CLOCK, env=env).split())
    assert found == 2
    assert {claimed, delayed} == {ended.pk, due.pk}
    assert facts(standing).claimed_by == standing.claim.token.holder
    assert facts(waiting).status == "open"
    rows = Photo.objects.in_bulk()
    assert_ahead(rows[claimed].expires_at, hours=2)
    assert_ahead(rows[delayed].not_before, hours=1)


def assert_ahead(moment: Any, *, hours: int) -> None:
    assert abs(moment - timezone.now() - timedelta(hours=hours)) < timedelta(minutes=20)


@pytest.mark.parametrize(
    ("zone", "use_tz"), [("America/New_York", True), ("Australia/Lord_Howe", False)]
)
def test_no_time_zone_shifts_a_lease(zone: str, use_tz: bool, process_env: dict[str, str]) -> None:
    """``clock_probe`` asks in a process of its own, for each zone that the server may have."""
    env = process_env | {
        "TASKCLAIM_TEST_USE_TZ": "1" if use_tz else "0",
        "TASKCLAIM_TEST_TIME_ZONE": zone,
    }
    said = output_of("-m", "tests.querysets.clock_probe", env=env)
    assert said == f"{use_tz} {zone}"
