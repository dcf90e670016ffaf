"""Putting back expired rows: the living have had the time to renew theirs, and the dead lose theirs."""

from datetime import timedelta

import pytest
from django.db import DatabaseError, connection

from django_taskclaim.querysets.reaper import Reaper
from tests.commands import in_each_state, table_away
from tests.factories import make_claimed
from tests.querysets.support import (
    clock,
    execute,
    facts,
    lapse,
    set_raw,
    stored,
    table_of,
    wait_for,
)
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db(transaction=True)

#: Seconds, under the default lease.
RENEWAL_INTERVAL = 15


class Time:
    """The clock of this process, which stands still between two steps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("django_taskclaim.querysets.reaper.clock", time)
    return time


def put_back(reaper: Reaper, time: Time, seconds: float) -> int:
    """Let so much time go by, in which each answer comes promptly, and return how many rows were put back."""
    released = 0
    for _ in range(round(seconds)):
        time.now += 1
        released += reaper.turn() or 0
    return released


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs GENERATED ALWAYS")
def test_rows_come_back_whose_key_no_statement_may_write(time: Time) -> None:
    key = f"ALTER TABLE {table_of(Photo)} ALTER COLUMN id SET GENERATED"
    set_raw(make_claimed(Photo, 1)[0], "expires_at", clock("-1 DAY"))
    execute(f"{key} ALWAYS")
    try:
        assert put_back(Reaper(Photo, "default"), time, 20) == 1
    finally:
        execute(f"{key} BY DEFAULT")


@pytest.mark.promise(7)
def test_rows_of_the_dead_come_back_and_the_living_keep_theirs(time: Time) -> None:
    """What expires while others are waited for has a wait of its own, and not two."""
    dead, later, alive = make_claimed(Photo, 3)
    lapse([dead, alive])
    reaper = Reaper(Photo, "default")
    assert put_back(reaper, time, 5) == 0
    alive.claim.renew()
    # After all that the reaper has read of the clock, which SQLite tells in milliseconds.
    set_raw(later, "expires_at", clock("+0.01 SECOND"))
    wait_for(lambda: Photo.objects.expired().count() == 2)
    assert put_back(reaper, time, RENEWAL_INTERVAL - 6) == 0
    assert put_back(reaper, time, 3) == 1
    assert (facts(dead).status, facts(dead).iteration) == ("open", 1)
    assert facts(later).status == "processing"
    assert put_back(reaper, time, 8) == 1
    assert facts(later).status == "open"
    assert (facts(alive).status, facts(alive).iteration) == ("processing", 0)


@pytest.mark.promise(12)
@pytest.mark.parametrize("seconds", [60, 60 * 60 * 24])
def test_silences_and_errors_begin_the_wait_again(time: Time, seconds: int) -> None:
    """Nobody could renew while the database, or this process, stood still."""
    row, dead = make_claimed(Photo, 2)
    lapse([row, dead])
    reaper = Reaper(Photo, "default")
    assert put_back(reaper, time, 2) == 0
    time.now += seconds
    assert put_back(reaper, time, RENEWAL_INTERVAL // 3) == 0
    row.claim.renew()
    with table_away(Photo), pytest.raises(DatabaseError):
        put_back(reaper, time, 5)
    assert put_back(reaper, time, RENEWAL_INTERVAL - 1) == 0
    assert put_back(reaper, time, RENEWAL_INTERVAL * 2) == 1
    assert facts(row).status == "processing"


@pytest.mark.promise(7)
def test_a_call_that_reached_its_limit_is_repeated(time: Time) -> None:
    """However many rows the dead held, and however long their leases were."""
    lapse(make_claimed(Photo, 5))
    reaper = Reaper(Photo, "default", lease=lambda: timedelta(hours=1))
    while not reaper.turn(2):
        time.now += 1
    assert [reaper.turn(2) for _ in range(2)] == [2, 1]


# Rows in combinations that no verb leaves behind


@pytest.mark.promise(4)
@pytest.mark.parametrize("state", ["open", "complete"])
def test_a_row_that_does_not_run_is_not_put_back_whatever_lease_it_has(state: str) -> None:
    row = in_each_state(Photo)[state]
    set_raw(row, "claimed_by", "'somebody'")
    set_raw(row, "expires_at", clock("-1 HOUR"))
    before = stored(row)
    assert Photo.objects.release_expired() == 0
    assert stored(row) == before
    assert (row in Photo.objects.claim_batch(9)) is (state == "open")
