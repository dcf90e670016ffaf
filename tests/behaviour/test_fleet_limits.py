"""Limits of the whole fleet: a rate, rows that are processing at once, hours of the day."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_taskclaim import limits
from django_taskclaim.allowances import Hours, Rate
from django_taskclaim.dialects import DatabaseLater
from django_taskclaim.handlers import handler
from django_taskclaim.limits import FleetLimits, LimitsError, limits_of, set_limits
from django_taskclaim.models import FleetLimit
from django_taskclaim.policy import Policy
from django_taskclaim.querysets import fleet
from tests.behaviour.support import DEADLINE, ROW_LOCKS, at_once, elsewhere, execute, held_open
from tests.contention.conftest import Deadlock
from tests.factories import make
from tests.testapp.models import Child, Parent, Photo, PhotoProxy

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]
Lapse = Callable[[Any], None]


@pytest.fixture(autouse=True)
def _nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each test as a process that has never heard of a stored limit."""
    monkeypatch.setattr(fleet, "_stored", set())
    monkeypatch.setattr(fleet, "_asked", {})


def pass_time(seconds: float) -> None:
    """Let the rates believe that they were last asked so long before now."""
    FleetLimit.objects.update(filled_at=DatabaseLater(timedelta(seconds=-seconds)))


def level() -> float:
    """Return what the last claim left of the rate."""
    return FleetLimit.objects.get().level


def claimed(number: int, **given: Any) -> int:
    return len(Photo.objects.claim_batch(number, **given))


# Rows at once


def test_no_more_rows_run_at_once(claimable: Any, rule: Rule) -> None:
    rule(claimable, max_running=3)
    make(claimable, 7)
    first = claimable.objects.claim_batch(2)
    assert len(claimable.objects.claim_batch(7)) == 1
    assert claimable.objects.claim_batch(7) == []
    first[0].claim.complete()
    assert len(claimable.objects.claim_batch(7)) == 1


@pytest.mark.usefixtures("strategy")
def test_whoever_holds_a_row_counts(rule: Rule) -> None:
    make(Photo, 6)
    claimed(1, claimed_by="user:17")
    claimed(1)
    rule(Photo, max_running=3)
    assert len(PhotoProxy.objects.claim_batch(6, claimed_by="user:18")) == 1
    assert Photo.objects.filter(pk__gt=0).order_by("-pk").claim_batch(6) == []


def test_what_a_dead_worker_held_counts_until_it_is_put_back(
    rule: Rule, let_lease_lapse: Lapse
) -> None:
    rule(Photo, max_running=2)
    make(Photo, 4)
    let_lease_lapse(Photo.objects.claim_batch(4))
    assert claimed(4) == 0
    Photo.objects.release_expired()
    assert claimed(4) == 2


def test_what_a_person_holds_comes_back_all_the_same(rule: Rule) -> None:
    rule(Photo, max_running=2)
    make(Photo, 6)
    mine = {"claimed_by": "user:17", "include_held": True}
    first = Photo.objects.claim_batch(3, **mine)
    assert len(first) == 2
    assert Photo.objects.claim_batch(3, **mine) == first


def test_a_limit_of_the_parent_binds_its_children(rule: Rule) -> None:
    rule(Child, max_running=5)
    rule(Parent, max_running=2)
    make(Child, 4)
    assert len(Child.objects.claim_batch(4)) == 2
    assert Parent.objects.claim_batch(4) == []


def test_it_goes_with_a_limit_per_key(rule: Rule) -> None:
    rule(Photo, max_running=3, limit_per={"country": 2})
    make(Photo, 6, country=lambda i: "AAAABB"[i])
    assert [row.country for row in Photo.objects.claim_batch(6)] == ["A", "A", "B"]
    assert claimed(6) == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.usefixtures("strategy")
def test_claims_that_meet_count_each_other(rule: Rule) -> None:
    rule(Photo, max_running=5)
    make(Photo, 24)
    found = at_once(*[lambda: Photo.objects.claim_batch(2)] * 8)
    assert sum(map(len, found)) == 5


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
def test_a_claim_waits_for_one_that_is_not_committed(rule: Rule) -> None:
    rule(Photo, max_running=2)
    make(Photo, 6)
    with held_open(lambda: Photo.objects.claim_batch(2, durable=False)):
        waiting = elsewhere(Photo.objects.claim_batch, 2)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
    # It was rolled back, so there is room again.
    assert len(waiting.result(DEADLINE)) == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="its one writer sees all that is committed")
def test_a_transaction_that_does_not_see_new_commits_is_refused(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(Photo, max_running=2)
    make(Photo, 2)
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        else:
            monkeypatch.setattr(connection, "isolation_level", "repeatable read")
        with pytest.raises(RuntimeError, match=r"max_running.*READ COMMITTED"):
            Photo.objects.claim_batch(1, durable=False)


# Rates


@pytest.mark.usefixtures("strategy")
def test_a_rate_lets_rows_come_one_after_the_other(rule: Rule) -> None:
    rule(Photo, rate="600/h")
    make(Photo, 5)
    assert [claimed(5), claimed(5)] == [1, 0]
    pass_time(6.5)
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
    with kept_waiting():
        assert claimed(80) == 30
    assert level() == 0
    # The 20 would come now; a busy machine may have been away for a moment.
    assert claimed(80) < 15


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
    rule(Photo, rate="600/h")
    make(Photo, 5)
    assert claimed(1) == 1
    pass_time(-3600)
    # Nothing is due yet, but from here on it is counted.
    assert claimed(5) == 0
    ahead = FleetLimit.objects.get().filled_at - now()
    assert ahead < timedelta(minutes=1)
    pass_time(6.5)
    assert [claimed(5), claimed(5)] == [1, 0]


def test_a_clock_that_is_a_moment_behind_changes_nothing(rule: Rule) -> None:
    rule(Photo, rate="600/h")
    make(Photo, 2)
    claimed(1)
    pass_time(-2)
    before = FleetLimit.objects.get().filled_at
    assert claimed(5) == 0
    assert FleetLimit.objects.get().filled_at == before


# Hours


def test_rows_are_claimed_at_these_hours_alone(rule: Rule) -> None:
    make(Photo, 2)
    rule(Photo, hours=around(now(), -2, -1))
    assert claimed(1) == 0
    rule(Photo, hours=around(now(), -1, 1))
    assert claimed(1) == 1


def now() -> datetime:
    return datetime.now(UTC)


def around(moment: datetime, first: int, last: int) -> str:
    """Return a window from so many hours beside *moment* to so many, in the zone of the settings."""
    from django.utils import timezone

    ends = [timezone.localtime(moment + timedelta(hours=n)) for n in (first, last)]
    return "-".join(f"{end:%H:%M}" for end in ends)


@pytest.mark.parametrize(
    ("text", "at", "opens"),
    [
        # Berlin is at +1 in winter.
        ("08:00-18:00", "2026-01-15 06:59", "2026-01-15 07:00"),
        ("08:00-18:00", "2026-01-15 07:00", None),
        ("08:00-18:00", "2026-01-15 17:00", "2026-01-16 07:00"),
        ("22:00-06:00", "2026-01-15 20:30", "2026-01-15 21:00"),
        ("22:00-06:00", "2026-01-15 23:00", None),
        ("22:00-06:00", "2026-01-16 04:59", None),
        ("22:00-06:00", "2026-01-16 05:00", "2026-01-16 21:00"),
        ("18:00-24:00", "2026-01-15 22:59", None),
        ("18:00-24:00", "2026-01-15 23:00", "2026-01-16 17:00"),
        # 02:00 to 03:00 does not come on 2026-03-29.
        ("02:30-04:00", "2026-03-29 00:59", "2026-03-29 01:00"),
        ("02:30-04:00", "2026-03-29 01:59", None),
        ("02:30-04:00", "2026-03-29 02:00", "2026-03-30 00:30"),
        ("02:10-02:50", "2026-03-29 00:30", "2026-03-30 00:10"),
        ("22:00-06:00", "2026-03-29 03:59", None),
        ("22:00-06:00", "2026-03-29 04:00", "2026-03-29 20:00"),
        # … and comes twice on 2026-10-25.
        ("02:00-03:00", "2026-10-24 23:59", "2026-10-25 00:00"),
        ("02:00-03:00", "2026-10-25 00:59", None),
        ("02:00-03:00", "2026-10-25 01:59", None),
        ("02:00-03:00", "2026-10-25 02:00", "2026-10-26 01:00"),
        ("02:10-02:50", "2026-10-25 00:55", "2026-10-25 01:10"),
        ("22:00-06:00", "2026-10-25 04:59", None),
        ("22:00-06:00", "2026-10-25 05:00", "2026-10-25 21:00"),
    ],
)
@override_settings(TIME_ZONE="Europe/Berlin")
def test_hours_are_those_of_a_clock_on_the_wall(text: str, at: str, opens: str | None) -> None:
    """The moments are in UTC."""
    expected = None if opens is None else datetime.fromisoformat(f"{opens}+00:00")
    assert Hours.parse(text).opens_at(datetime.fromisoformat(f"{at}+00:00")) == expected


# What people are told


def test_people_are_told_what_keeps_rows_back(rule: Rule) -> None:
    make(Photo, 3)
    rule(Photo, max_running=1)
    claimed(1, claimed_by="user:1")
    why = Photo.objects.why_empty("user:2")
    assert (why.kept_back, why.kept_back_by, why.limit, why.ready) == (2, "max_running", "1", 0)
    assert str(why).startswith("2 kept back, for no more than 1 may run at once; 1 held by others")


def test_people_are_told_when_a_rate_lets_the_next_one(rule: Rule) -> None:
    make(Photo, 3)
    rule(Photo, rate="30/h")
    claimed(1)
    why = Photo.objects.why_empty()
    assert (why.kept_back, why.kept_back_by, why.limit) == (2, "rate", "30/h")
    assert why.next_allowed is not None
    assert abs(why.next_allowed - now() - timedelta(minutes=2)) < timedelta(seconds=30)
    assert str(why).startswith("2 kept back by the rate 30/h, next ")


def test_people_are_told_when_the_hours_begin(rule: Rule) -> None:
    make(Photo, 1)
    rule(Photo, hours=around(now(), 1, 2))
    why = Photo.objects.why_empty()
    assert why.opens is not None
    assert timedelta(0) < why.opens - now() <= timedelta(hours=1, minutes=1)
    assert str(why).startswith("outside the hours ")


# Set while it all runs


def test_what_is_set_goes_before_what_the_handler_says(rule: Rule) -> None:
    rule(Photo, max_running=1)
    make(Photo, 6)
    assert claimed(6) == 1
    set_limits(Photo, max_running=3, by="ada", using="default")
    assert limits_of(Photo) == [FleetLimits(max_running=3, set_by="ada", is_set=True)]
    assert claimed(6) == 2
    set_limits(Photo, max_running=0, using="default")
    assert limits_of(Photo) == []
    assert claimed(1) == 1
    set_limits(Photo, max_running=None, using="default")
    assert limits_of(Photo) == [FleetLimits(max_running=1)]
    assert claimed(1) == 0


def test_what_is_not_named_stays(rule: Rule) -> None:
    set_limits(Photo, rate="100/m", hours="22:00-06:00", using="default")
    set_limits(Photo, rate="50/m", using="default")
    (held,) = limits_of(Photo)
    assert (held.rate, held.max_running, str(held.hours)[:11]) == ("50/m", None, "22:00-06:00")


def test_a_model_without_limits_keeps_to_the_first_one_from_the_moment_it_is_set() -> None:
    make(Photo, 6)
    assert claimed(1) == 1
    set_limits(Photo, max_running=2, using="default")
    assert claimed(6) == 1
    set_limits(Photo, max_running=None, using="default")
    assert claimed(6) == 4


def test_who_sets_the_first_limit_in_a_transaction_claims_within_it_at_once() -> None:
    """As in a ``TestCase``, which never commits: nobody would tell the process afterwards."""
    assert claimed(1) == 0
    make(Photo, 6)
    set_limits(Photo, max_running=2, using="default")
    assert claimed(6) == 2


def test_a_process_that_has_not_heard_of_a_limit_does_not_break_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(Photo, 6)
    assert claimed(1) == 1
    set_limits(Photo, max_running=2, using="default")
    # As another process is, which looked a moment ago.
    monkeypatch.setattr(fleet, "_stored", set())
    monkeypatch.setattr(fleet, "ASK_EVERY", 1e9)
    fleet._asked["default", "testapp.photo"] = fleet.clock()
    assert claimed(6) == 0
    monkeypatch.setattr(fleet, "ASK_EVERY", 0.0)
    assert claimed(6) == 1


def test_a_look_that_is_out_of_date_does_not_break_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that reads the switch may say so last although it has asked before the limit was set."""
    make(Photo, 6)
    set_limits(Photo, max_running=2, using="default")
    usual = fleet.take_as_limited

    def meanwhile(*asked: Any) -> Any:
        fleet.know_stored("default", "testapp.photo", there=False)
        return usual(*asked)

    monkeypatch.setattr("django_taskclaim.querysets.claiming.take_as_limited", meanwhile)
    assert claimed(6) == 2


def test_models_without_limits_pay_nothing(django_assert_num_queries: Any) -> None:
    make(Photo, 4)
    with django_assert_num_queries(plain_statements()):
        claimed(2)
    set_limits(PhotoProxy, max_running=9, using="default")
    assert claimed(1) == 1


def plain_statements() -> int:
    """Return how many statements a claim is, its savepoint in the test's transaction among them."""
    return {"postgresql": 3, "sqlite": 3}.get(connection.vendor, 6)


def test_a_claim_refused_by_its_rate_costs_two_statements_more(
    rule: Rule, django_assert_max_num_queries: Any
) -> None:
    rule(Photo, rate="1/h")
    make(Photo, 3)
    claimed(1)
    with django_assert_max_num_queries(4):
        assert claimed(1) == 0


# Databases that do not answer


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_database_that_fails_is_named_and_the_others_are_limited() -> None:
    make(Photo, 3)
    execute("ALTER TABLE taskclaim_fleetlimit RENAME TO taskclaim_away", using="default")
    try:
        with pytest.raises(LimitsError) as failed:
            set_limits(Photo, max_running=2)
    finally:
        execute("ALTER TABLE taskclaim_away RENAME TO taskclaim_fleetlimit", using="default")
    assert list(failed.value.errors) == ["default"]
    assert failed.value.done == ["other"]
    assert str(failed.value).startswith("The limits were set on other, but not on default: ")
    assert limits_of(Photo) == []
    assert limits_of(Photo, using="other") == [FleetLimits(max_running=2, is_set=True)]


@pytest.mark.django_db(transaction=True)
def test_contention_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, usual = [Deadlock(), Deadlock()], limits.settled

    def contended(*given: Any) -> Any:
        if losses:
            raise losses.pop()
        return usual(*given)

    monkeypatch.setattr(limits, "settled", contended)
    assert set_limits(Photo, rate="5/s", using="default") == ["default"]
    assert not losses
    assert limits_of(Photo)[0].rate == "5/s"


# What is refused


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rate": "fast"}, "number of rows in a second"),
        ({"rate": "0/m"}, "number of rows in a second"),
        ({"rate": "10/w"}, "number of rows in a second"),
        ({"rate": 10}, "number of rows in a second"),
        ({"rate": "1e9/m"}, "number of rows in a second"),
        ({"max_running": 0}, "whole number from 1"),
        ({"max_running": True}, "whole number from 1"),
        ({"max_running": "20"}, "whole number from 1"),
        ({"hours": "22-06"}, "window such as"),
        ({"hours": "22:00-25:00"}, "window such as"),
        ({"hours": ("22:00", "06:00")}, "window such as"),
        ({"hours": "06:00-06:00"}, "ends where it begins"),
    ],
)
def test_a_wrong_limit_is_refused_in_a_sentence(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        handler(Photo, **given)(lambda row: None)
    if given != {"max_running": 0}:
        with pytest.raises(ValueError, match=told):
            set_limits(Photo, **given, using="default")
    assert not FleetLimit.objects.exists()


def test_a_limit_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"no limit speed; there are rate, max_running, hours"):
        set_limits(Photo, speed="100/m", using="default")


def test_a_policy_takes_what_is_parsed_already() -> None:
    assert Policy(own_rate=Rate.parse("5/s")).own_rate == Rate("5/s", 5.0)
