"""Limits of the whole fleet: rows that are processing at once, hours of the day, and what people are told."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_taskclaim.allowances import Hours
from tests.behaviour.fleet import claimed, now
from tests.behaviour.support import DEADLINE, ROW_LOCKS, at_once, elsewhere, held_open
from tests.factories import make
from tests.testapp.models import Child, Parent, Photo, PhotoProxy

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_learned")]

Rule = Callable[..., None]
Lapse = Callable[[Any], None]


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


# Hours


def test_rows_are_claimed_at_these_hours_alone(rule: Rule) -> None:
    make(Photo, 2)
    rule(Photo, hours=around(now(), -2, -1))
    assert claimed(1) == 0
    rule(Photo, hours=around(now(), -1, 1))
    assert claimed(1) == 1


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
