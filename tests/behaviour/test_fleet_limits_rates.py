"""A rate of the whole fleet: rows come one after the other, whoever claims and whatever the clock does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_taskclaim.dialects import DatabaseLater
from django_taskclaim.fields import CRASHED
from django_taskclaim.limits import set_limits
from django_taskclaim.models import FleetLimit
from django_taskclaim.overview import database_time
from django_taskclaim.querysets import claiming, fleet
from tests.behaviour.fleet import claimed, now
from tests.behaviour.support import ROW_LOCKS, at_once, set_raw, stored_moment
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_learned")]

Rule = Callable[..., None]


def pass_time(seconds: float) -> None:
    """Let the rates believe that they were last asked so long before now."""
    FleetLimit.objects.update(filled_at=DatabaseLater(timedelta(seconds=-seconds)))


def level() -> float:
    """Return what the last claim left of the rate."""
    return FleetLimit.objects.get().level


@pytest.mark.usefixtures("strategy")
def test_a_rate_lets_rows_come_one_after_the_other(rule: Rule) -> None:
    rule(Photo, rate="60/h")
    make(Photo, 5)
    assert [claimed(5), claimed(5)] == [1, 0]
    pass_time(65)
    assert [claimed(5), claimed(5)] == [1, 0]


def test_what_was_not_used_is_kept_for_a_moment_only(rule: Rule) -> None:
    """Three seconds' worth, so that no minute exceeds the rate by more than five per cent."""
    rule(Photo, rate="200/m")
    make(Photo, 40)
    assert claimed(1) == 1
    pass_time(3600)
    assert claimed(40) == 10
    assert level() == 0


def test_a_claim_that_asks_for_fewer_leaves_the_rest(rule: Rule) -> None:
    rule(Photo, rate="200/m")
    make(Photo, 40)
    claimed(1)
    pass_time(3600)
    assert claimed(4) == 4
    assert level() == 6


@pytest.fixture
def kept_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Let claims have asked two seconds ago what holds, as where the machine stands still in the middle of one."""
    usual = fleet.standing

    def long_ago(desk: Any) -> fleet.Standing:
        seen = usual(desk)
        return fleet.Standing(seen.now - timedelta(seconds=2), seen.terms, seen.levels)

    @contextmanager
    def waiting() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(fleet, "standing", long_ago)
            yield

    return waiting


def test_what_comes_while_a_claim_is_kept_waiting_is_not_kept_beside_all(
    rule: Rule, kept_waiting: Any
) -> None:
    """By ``claimed_at`` no minute exceeds the rate: 30 rows and the 20 of these two seconds would be 50 in one."""
    rule(Photo, rate="600/m")
    make(Photo, 80)
    claimed(1)
    pass_time(3600)
    before = database_time("default")
    with kept_waiting():
        assert claimed(80) == 30
    # The 20 are neither left nor still to come.
    assert level() == 0
    assert FleetLimit.objects.get().filled_at >= before


def test_what_comes_meanwhile_is_not_lost_where_there_is_room(
    rule: Rule, kept_waiting: Any
) -> None:
    rule(Photo, rate="600/m")
    make(Photo, 80)
    claimed(1)
    FleetLimit.objects.update(level=10, filled_at=DatabaseLater(timedelta(0)))
    with kept_waiting():
        assert claimed(5) == 5
    assert claimed(80) >= 25


def test_rows_that_were_not_claimed_cost_nothing(rule: Rule) -> None:
    rule(Photo, rate="1/h")
    assert claimed(5) == 0
    make(Photo, 2)
    assert [claimed(5), claimed(5)] == [1, 0]


def test_a_claim_that_is_rolled_back_costs_nothing(rule: Rule) -> None:
    rule(Photo, rate="1/h")
    make(Photo, 2)
    with transaction.atomic():
        assert claimed(2, durable=False) == 1
        transaction.set_rollback(True)
    assert claimed(2) == 1


@pytest.mark.parametrize(("alone", "got"), [(1.0, 1), (0.0, 8)])
def test_rows_put_back_because_of_a_crashed_one_cost_nothing(
    rule: Rule, monkeypatch: pytest.MonkeyPatch, alone: float, got: int
) -> None:
    monkeypatch.setattr(claiming, "CRASHED_FIRST", alone)
    rule(Photo, rate="200/m")
    _, *others = make(Photo, 10)
    assert claimed(1) == 1
    set_raw(others[0], "not_before", "%s", [stored_moment(CRASHED)])
    pass_time(3600)
    assert claimed(10) == got
    assert level() == 10 - got


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
def test_claims_that_meet_share_a_rate(rule: Rule) -> None:
    rule(Photo, rate="200/h")
    make(Photo, 24)
    claimed(1)
    # There is room for one and a half at most, however long nobody has asked.
    pass_time(3600)
    found = at_once(*[lambda: Photo.objects.claim_batch(2)] * 8)
    assert sum(map(len, found)) == 1


def test_under_a_new_rate_one_row_may_be_claimed_at_once() -> None:
    make(Photo, 3)
    claimed(1)
    set_limits(Photo, rate="1/h", using="default")
    assert [claimed(5), claimed(5)] == [1, 0]
    why = Photo.objects.why_empty()
    assert why.next_allowed is not None
    assert abs(why.next_allowed - now() - timedelta(hours=1)) < timedelta(minutes=1)


def test_a_lower_rate_begins_with_what_the_one_before_would_let_be_claimed(rule: Rule) -> None:
    """Nobody claims for minutes, then the rate is lowered: the minutes were at the old one."""
    rule(Photo, rate="600/m")
    make(Photo, 9)
    claimed(1)
    pass_time(600)
    set_limits(Photo, rate="1/h", using="default")
    assert [claimed(5), claimed(5)] == [1, 0]
    # What was claimed a moment ago counts, and saying the same again lets nothing more be claimed.
    set_limits(Photo, rate="1/h", using="default")
    set_limits(Photo, rate="2/h", using="default")
    assert claimed(5) == 0
    set_limits(Photo, rate="", using="default")
    assert claimed(1) == 1
    set_limits(Photo, rate="1/h", using="default")
    assert [claimed(5), claimed(5)] == [1, 0]


def test_a_clock_that_jumps_back_keeps_nobody_waiting_for_the_moment_it_was_at(rule: Rule) -> None:
    """As that of a server which takes over may: rows flow in from the moment that it shows."""
    rule(Photo, rate="60/h")
    make(Photo, 5)
    assert claimed(1) == 1
    pass_time(-3600)
    # Nothing is due yet, but from here on it is counted.
    assert claimed(5) == 0
    ahead = FleetLimit.objects.get().filled_at - now()
    assert ahead < timedelta(minutes=1)
    pass_time(65)
    assert [claimed(5), claimed(5)] == [1, 0]


def test_a_clock_that_is_a_moment_behind_changes_nothing(rule: Rule) -> None:
    rule(Photo, rate="600/h")
    make(Photo, 2)
    claimed(1)
    pass_time(-2)
    before = FleetLimit.objects.get().filled_at
    assert claimed(5) == 0
    assert FleetLimit.objects.get().filled_at == before
