"""Limits of the whole fleet that are set while it all runs: from when they hold, and which are refused."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_taskclaim import limits
from django_taskclaim.allowances import Rate
from django_taskclaim.handlers import handler
from django_taskclaim.limits import FleetLimits, LimitsError, limits_of, set_limits
from django_taskclaim.models import FleetLimit
from django_taskclaim.policy import Policy
from django_taskclaim.querysets import fleet
from tests.behaviour.fleet import claimed
from tests.behaviour.support import execute
from tests.contention.conftest import Deadlock
from tests.factories import make
from tests.testapp.models import Photo, PhotoProxy

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_learned")]

Rule = Callable[..., None]


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
