"""Limits of the whole fleet: rows that run at once, a rate, hours of the day; and setting them."""

from datetime import datetime
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import isolate_apps

from django_taskclaim.handlers import handler
from django_taskclaim.limits import Grant, ModelLimits, opens_at, stops_of
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.switch import set_overrides
from tests.commands import shell
from tests.factories import make
from tests.limits.conftest import beside, claimed, pass_time
from tests.querysets.support import ROW_LOCKS, Rule, at_once, execute, lapse
from tests.testapp.models import Child, CompositeKey, Parent, Photo
from tests.worker.conftest import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_learned")]


# Rows at once


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_no_more_rows_run_at_once_for_all_holders_together(model: Any, rule: Rule) -> None:
    make(model, 9)
    first = model.objects.claim_batch(2, claimed_by="user:17")
    rule(model, max_running=3)
    assert len(model.objects.filter(note="").order_by("-note").claim_batch(7)) == 1
    assert model.objects.claim_batch(7) == []
    first[0].claim.complete()
    assert len(model.objects.claim_batch(7)) == 1
    # What a dead worker held counts until it is put back.
    lapse(list(model.objects.filter(status="processing")))
    assert model.objects.claim_batch(7) == []
    model.objects.release_expired()
    assert len(model.objects.claim_batch(7)) == 3


def test_a_limit_of_the_parent_binds_its_children(rule: Rule) -> None:
    rule(Child, max_running=5)
    rule(Parent, max_running=2)
    make(Child, 4)
    assert len(Child.objects.claim_batch(4)) == 2
    assert Parent.objects.claim_batch(4) == []
    # Where the parent has none any more, the child's own holds.
    set_overrides(Parent, max_running=0, using="default")
    assert stops_of(Child).limits == ModelLimits(max_running=5)


@isolate_apps("tests.testapp")
def test_children_of_one_table_have_a_rate_each(rule: Rule) -> None:
    class Sibling(Parent):
        class Meta:
            app_label = "testapp"

    for model in (Sibling, Child):
        rule(model, rate="1/h")
        grant = Grant(ClaimTarget.of(model, "default"))
        allowed = grant.begin(5, by_key=False)
        grant.charge(allowed, allowed)
        assert allowed == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize(
    ("limit", "expected"),
    [({"max_running": 5}, 5), ({"rate": "60/h"}, 1), ({"limit_per": {"country": 3}}, 6)],
)
def test_claims_that_meet_count_each_other(rule: Rule, limit: Any, expected: int) -> None:
    make(Photo, 24, country=lambda i: "AB"[i % 2])
    if "rate" in limit:
        rule(Photo, **limit)
        claimed(1)
        # There is room for one, however long nobody has asked.
        pass_time(3600)
    rule(Photo, **limit)
    found = at_once(*[lambda: Photo.objects.claim_batch(2)] * 8)
    assert sum(map(len, found)) == expected


@pytest.mark.promise(14)
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="its one writer sees all that is committed")
def test_a_transaction_that_does_not_see_new_commits_is_refused(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(Photo, max_running=2)
    make(Photo, 2)
    with transaction.atomic():
        if connection.vendor == "postgresql":
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        else:
            monkeypatch.setattr(connection, "isolation_level", "repeatable read")
        with pytest.raises(RuntimeError, match="READ COMMITTED"):
            Photo.objects.claim_batch(1, durable=False)
    assert Photo.objects.open().count() == 2


# Rates


@pytest.mark.usefixtures("strategy")
def test_a_rate_lets_rows_come_one_after_the_other(rule: Rule) -> None:
    """What was not claimed, or was rolled back, costs nothing."""
    rule(Photo, rate="60/h")
    assert claimed(5) == 0
    make(Photo, 5)
    with transaction.atomic():
        assert claimed(2, durable=False) == 1
        transaction.set_rollback(True)
    assert [claimed(5), claimed(5)] == [1, 0]
    pass_time(65)
    assert [claimed(5), claimed(5)] == [1, 0]


def test_what_was_not_used_is_kept_for_three_seconds_only(rule: Rule) -> None:
    """So no minute exceeds the rate by more than five per cent."""
    rule(Photo, rate="200/m")
    make(Photo, 40)
    claimed(1)
    pass_time(3600)
    assert claimed(40) == 10


def test_a_rate_that_is_set_anew_does_not_give_rows_away(rule: Rule) -> None:
    """What was claimed a moment ago counts, and setting the same rate again allows no more."""
    make(Photo, 9)
    claimed(1)
    set_overrides(Photo, rate="1/h", using="default")
    assert [claimed(5), claimed(5)] == [1, 0]
    for rate in ("1/h", "2/h"):
        set_overrides(Photo, rate=rate, using="default")
        assert claimed(5) == 0
    set_overrides(Photo, rate="", using="default")
    assert claimed(1) == 1
    set_overrides(Photo, rate="1/h", using="default")
    assert claimed(5) == 0


# Hours


def test_rows_are_claimed_at_these_hours_alone(rule: Rule) -> None:
    make(Photo, 2)
    rule(Photo, hours=beside(-2, -1))
    assert claimed(1) == 0
    rule(Photo, hours=beside(-1, 1))
    assert claimed(1) == 1


@pytest.mark.once
@pytest.mark.promise(6)
@pytest.mark.parametrize(
    ("text", "at", "opens"),
    [
        # Berlin is at +1 in winter.
        ("08:00-18:00", "2026-01-15 07:00", None),
        ("08:00-18:00", "2026-01-15 17:00", "2026-01-16 07:00"),
        ("22:00-06:00", "2026-01-16 05:00", "2026-01-16 21:00"),
        # 02:00 to 03:00 does not come on 2026-03-29.
        ("02:30-04:00", "2026-03-29 00:59", "2026-03-29 01:00"),
        ("02:10-02:50", "2026-03-29 00:30", "2026-03-30 00:10"),
        # … and comes twice on 2026-10-25.
        ("02:00-03:00", "2026-10-25 01:59", None),
        ("02:10-02:50", "2026-10-25 00:55", "2026-10-25 01:10"),
    ],
)
@override_settings(TIME_ZONE="Europe/Berlin")
def test_hours_are_those_of_a_clock_on_the_wall(text: str, at: str, opens: str | None) -> None:
    """The moments are in UTC."""
    expected = None if opens is None else datetime.fromisoformat(f"{opens}+00:00")
    assert opens_at(text, datetime.fromisoformat(f"{at}+00:00")) == expected


# What people are told


@pytest.mark.parametrize("limit", [{"max_running": 1}, {"rate": "30/h"}, {"rate": "0.0000001/d"}])
def test_an_empty_answer_names_the_limit_and_when_it_ends(rule: Rule, limit: Any) -> None:
    (value,) = limit.values()
    make(Photo, 3)
    rule(Photo, **limit)
    claimed(1)
    why = Photo.objects.why_empty("user:2")
    assert why.stopped.startswith("2 kept back")
    assert str(value) in str(why)


# Set while it all runs


def test_what_is_set_goes_before_what_the_handler_says(rule: Rule) -> None:
    rule(Photo, max_running=1)
    make(Photo, 6)
    assert claimed(6) == 1
    set_overrides(Photo, max_running=3, using="default")
    assert stops_of(Photo).limits == ModelLimits(max_running=3)
    assert claimed(6) == 2
    # Zero lifts the handler's limit, None gives back to it.
    set_overrides(Photo, max_running=0, using="default")
    assert not stops_of(Photo).limits
    assert claimed(1) == 1
    set_overrides(Photo, max_running=None, using="default")
    assert stops_of(Photo).limits == ModelLimits(max_running=1)
    assert claimed(1) == 0


def test_a_limit_that_another_process_sets_is_never_broken(process_env: dict[str, str]) -> None:
    """This process has looked a moment ago, and has not heard of it."""
    make(Photo, 6)
    assert claimed(1) == 1
    words = ["claimlimit", "testapp.Photo", "--max-running", "2", "--database", "default"]
    assert shell(process_env, *words).returncode == 0
    counts = []

    def ask() -> int:
        counts.append(claimed(6))
        return sum(counts)

    wait_until(ask)
    assert (sum(counts), claimed(6)) == (1, 0)


@pytest.mark.once
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": "fast"}, "number of rows a second"),
        ({"max_running": -1}, "whole number from 1"),
        ({"hours": "22:00-25:00"}, "times of the day that differ"),
        ({"hours": "06:00-06:00"}, "times of the day that differ"),
    ],
)
def test_a_wrong_limit_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        handler(Photo, **given)(lambda row: None)
    with pytest.raises(ValueError, match=message):
        set_overrides(Photo, **given, using="default")
    assert not stops_of(Photo).limits
