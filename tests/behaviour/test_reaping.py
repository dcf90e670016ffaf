"""Looking for expired rows again and again: what lives has had the time to renew before its rows are put back."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError

from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import reaping
from django_taskclaim.querysets.reaping import Reaper
from django_taskclaim.querysets.scope import Desk
from tests.behaviour.support import facts, set_raw, stored_moment
from tests.factories import make
from tests.testapp.models import Photo
from tests.worker.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

#: Seconds, under the default lease.
RENEWAL_INTERVAL = 15

Lapse = Callable[[Any], None]


class Time:
    """The clock of this process, which stands still between two steps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(reaping, "clock", time)
    return time


def put_back(reaper: Reaper, time: Time, seconds: float) -> int:
    """Let so much time go by, in which each answer comes promptly, and return how many rows were put back."""
    released = 0
    for _ in range(round(seconds)):
        time.now += 1
        released += reaper.turn() or 0
    return released


def claimed(number: int = 1) -> list[Any]:
    make(Photo, number)
    return list(Photo.objects.claim_batch(number))


def test_rows_of_the_dead_come_back_a_renewal_interval_after_a_look(
    time: Time, shape: Any, let_lease_lapse: Lapse
) -> None:
    make(shape, 1)
    (row,) = shape.objects.claim_batch(1)
    let_lease_lapse(row)
    reaper = Reaper(shape, "default")
    assert put_back(reaper, time, policy_for(shape).renewal_interval.total_seconds()) == 0
    assert facts(row).status == "processing"
    assert put_back(reaper, time, 3) == 1
    assert (facts(row).status, facts(row).iteration) == ("open", 1)


def test_rows_that_are_renewed_meanwhile_stay(time: Time, let_lease_lapse: Lapse) -> None:
    dead, alive = claimed(2)
    let_lease_lapse([dead, alive])
    reaper = Reaper(Photo, "default")
    assert put_back(reaper, time, 5) == 0
    alive.claim.renew()
    assert put_back(reaper, time, RENEWAL_INTERVAL) == 1
    assert (facts(alive).status, facts(alive).iteration) == ("processing", 0)


def refuse() -> None:
    raise OperationalError("the server is away")


@pytest.mark.parametrize("seconds", [60, 60 * 60 * 24])
def test_a_silence_counts_for_no_renewal_interval(
    time: Time, let_lease_lapse: Lapse, seconds: int
) -> None:
    """Nobody could renew while the database, or this process, stood still."""
    (row,) = claimed()
    let_lease_lapse(row)
    reaper = Reaper(Photo, "default")
    assert put_back(reaper, time, 2) == 0
    time.now += seconds
    assert put_back(reaper, time, RENEWAL_INTERVAL // 3) == 0
    row.claim.renew()
    assert put_back(reaper, time, RENEWAL_INTERVAL * 3) == 0


def test_an_error_begins_the_wait_again(
    time: Time, let_lease_lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = claimed()
    let_lease_lapse(row)
    reaper = Reaper(Photo, "default")
    assert put_back(reaper, time, RENEWAL_INTERVAL - 2) == 0
    with monkeypatch.context() as away:
        away.setattr(reaper, "_read", refuse)
        with pytest.raises(OperationalError):
            put_back(reaper, time, 5)
    assert put_back(reaper, time, RENEWAL_INTERVAL) == 0
    assert put_back(reaper, time, RENEWAL_INTERVAL) == 1


def test_a_statement_that_is_carried_out_late_takes_nothing_that_expired_meanwhile(
    time: Time, let_lease_lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stands still between the question and its answer: leases end that nobody could renew."""
    dead, alive = claimed(2)
    let_lease_lapse(dead)
    usual = reaping.release_expired

    def late(rows: Any, limit: int | None, cutoff: datetime) -> int:
        soon = stored_moment(cutoff + timedelta(milliseconds=1))
        set_raw(alive, "expires_at", "%s", [soon])
        wait_until(lambda: Photo.objects.expired().count() == 2)
        return usual(rows, limit, cutoff)

    monkeypatch.setattr(reaping, "release_expired", late)
    reaper = Reaper(Photo, "default")
    while not (released := reaper.turn()):
        time.now += 1
    assert released == 1
    assert facts(alive).status == "processing"


@pytest.mark.parametrize("lease", [60, 3600])
def test_a_call_that_reached_its_limit_is_repeated_at_once(
    time: Time, let_lease_lapse: Lapse, lease: int
) -> None:
    """However many rows the dead held, and however long their leases were."""
    let_lease_lapse(claimed(5))
    reaper = Reaper(Photo, "default", lease=lambda: timedelta(seconds=lease))
    while not reaper.turn(2, until_done=True):
        time.now += 1
    assert [reaper.turn(2, until_done=True) for _ in range(2)] == [2, 1]


@pytest.mark.parametrize("lease", [60, 600, 3600])
def test_what_expires_while_others_are_waited_for_has_a_wait_of_its_own(
    time: Time, let_lease_lapse: Lapse, lease: int
) -> None:
    """So each row comes back a renewal interval and a reaper interval after its lease, and not two of the former."""
    rows = claimed(5)
    reaper = Reaper(Photo, "default", lease=lambda: timedelta(seconds=lease))
    clock = Desk.of(Photo, "default").dialect.current_time
    expired: list[float] = []
    took: list[float] = []
    while len(took) < len(rows):
        if len(expired) < len(rows) and time.now - 1000 >= len(expired) * lease / 25:
            read = clock()
            wait_until(lambda read=read: clock() > read, every=0.001)
            set_raw(rows[len(expired)], "expires_at", "%s", [stored_moment(clock())])
            expired.append(time.now)
        time.now += 0.25
        for _ in range(reaper.turn() or 0):
            took.append(time.now - expired[len(took)])
    assert max(took) <= lease / 4 + 10 + 1
