"""What ``named_lease`` and ``@synchronized`` promise to the code that calls them."""

import inspect
import pickle
import threading
import time
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from django_taskclaim import named_lease, synchronized
from django_taskclaim.exceptions import ClaimLost, LeaseUnavailable, TaskClaimError
from django_taskclaim.leases import LeaseRows, blocks
from django_taskclaim.models import NamedLease
from tests.behaviour.support import elsewhere, wait_for
from tests.leases.support import (
    ends_lost,
    held_by_another_thread,
    is_held,
    renewer_threads,
    set_expiry,
    stored,
)
from tests.test_readme import table

pytestmark = pytest.mark.django_db(transaction=True)

# Holding


def test_a_block_holds_the_lease_and_gives_it_back() -> None:
    with named_lease("report", lease=60) as held:
        assert is_held("report")
        assert stored("report").claimed_by == held.token.holder
        assert stored("report").iteration == held.token.iteration
        assert held.check()
        assert not held.lost
        assert timedelta(seconds=50) < held.remaining() <= timedelta(seconds=60)
    assert not is_held("report")
    assert stored("report").claimed_by is None
    assert stored("report").expires_at is None


def test_after_its_block_a_lease_is_held_no_more() -> None:
    with named_lease("report") as held:
        pass
    assert held.lost
    assert held.remaining() == timedelta()
    with pytest.raises(ClaimLost, match="its block has ended"):
        held.check()
    with pytest.raises(ClaimLost, match="its block has ended"):
        held.renew()


def test_an_exception_gives_the_lease_back_and_passes() -> None:
    with pytest.raises(ZeroDivisionError), named_lease("report"):
        _ = 1 / 0
    assert not is_held("report")


def test_each_hold_has_a_token_of_its_own_and_a_higher_iteration() -> None:
    tokens = []
    for _ in range(3):
        with named_lease("report") as held:
            tokens.append(held.token)
    iterations = [token.iteration for token in tokens]
    assert iterations == [iterations[0], iterations[0] + 1, iterations[0] + 2]
    assert len({token.holder for token in tokens}) == 3
    assert all("#" in token.holder for token in tokens)


def test_the_lease_is_as_long_as_asked_or_as_the_setting_says() -> None:
    for options, seconds in (({"lease": 30}, 30), ({"lease": timedelta(minutes=2)}, 120), ({}, 70)):
        with override_settings(TASKCLAIM={"LEASE": 70}), named_lease("report", **options):
            row = stored("report")
            # Two readings of the clock in one statement.
            assert abs((row.expires_at - row.claimed_at).total_seconds() - seconds) < 1


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_another_database_is_another_lease() -> None:
    with named_lease("report"), named_lease("report", using="other"):
        assert is_held("report")
        assert is_held("report", using="other")
    assert not is_held("report", using="other")


# Being refused


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_held_lease_is_refused_with_its_holder_and_expiry(
    use_tz: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(seconds: float) -> None:
        pytest.fail("waited")

    with (
        override_settings(USE_TZ=use_tz, TIME_ZONE="Asia/Kolkata"),
        named_lease("report", lease=60) as held,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(blocks, "time", SimpleNamespace(sleep=pause))
            with pytest.raises(LeaseUnavailable) as caught, named_lease("report"):
                pytest.fail("entered")
        error = caught.value
        assert isinstance(error, TaskClaimError)
        assert (error.name, error.holder) == ("report", held.token.holder)
        assert isinstance(error.expires_at, datetime)
        assert timezone.is_aware(error.expires_at) is use_tz
        left = error.expires_at - timezone.now()
        assert timedelta(seconds=30) < left < timedelta(seconds=65)
        assert str(error).startswith(f"Lease 'report' is held by {held.token.holder} until 2")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert held.check()


def test_threads_keep_each_other_out() -> None:
    with (
        held_by_another_thread("report"),
        pytest.raises(LeaseUnavailable),
        named_lease("report"),
    ):
        pytest.fail("entered")


def test_names_are_compared_byte_for_byte() -> None:
    names = ["user:Bob", "user:bob", "user:böb", "user:bob ", " user:bob", "%s", "x" * 200, "💚"]
    blocks = [named_lease(name) for name in names]
    for block in blocks:
        block.__enter__()
    assert all(is_held(name) for name in names)
    for name in names:
        with pytest.raises(LeaseUnavailable), named_lease(name):
            pytest.fail("entered")
    for block in blocks:
        block.__exit__(None, None, None)


@pytest.mark.parametrize("name", ["", "x" * 201, "nul\x00", "\ud800", None, 7, b"bytes", ["list"]])
def test_a_name_that_does_not_fit_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="of 1 to 200 characters"):
        named_lease(name)


@pytest.mark.parametrize(
    "options",
    [{"lease": 0}, {"lease": -1}, {"lease": "60"}, {"lease": True}, {"wait": -1}, {"wait": "1"}],
)
def test_a_lease_or_wait_that_is_no_duration_is_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        named_lease("report", **options)
    with pytest.raises(ValueError, match=next(iter(options))):
        synchronized("report", **options)


def test_one_call_is_one_block() -> None:
    block = named_lease("report")
    with block:
        pass
    with pytest.raises(RuntimeError, match="entered a second time"), block:
        pytest.fail("entered")


# Waiting


@pytest.mark.parametrize("wait", [30, timedelta(seconds=30)])
def test_waiting_ends_when_the_lease_is_given_back(wait: Any) -> None:
    with held_by_another_thread("report") as leave:
        threading.Timer(0.3, leave.set).start()
        with named_lease("report", wait=wait) as held:
            assert leave.is_set()
            assert held.check()


def test_waiting_ends_when_the_lease_of_a_dead_holder_ends() -> None:
    dead, _ = LeaseRows.on("default").take("report", "1@dead#1", timedelta(seconds=2))
    ended = stored("report").expires_at
    with named_lease("report", wait=30) as held:
        assert stored("report").claimed_at >= ended
        assert held.token.iteration == dead.iteration + 1
    assert not LeaseRows.on("default").renew("report", dead, timedelta(seconds=60))
    assert not LeaseRows.on("default").give_back("report", dead)


def test_waiting_has_an_end() -> None:
    with held_by_another_thread("report"):
        began = time.monotonic()
        with pytest.raises(LeaseUnavailable), named_lease("report", wait=1):
            pytest.fail("entered")
        # Well before the other thread gives it back.
        assert 1 <= time.monotonic() - began < 30


# Losing


def test_a_lease_taken_over_is_told_and_nothing_is_written_for_it() -> None:
    block = named_lease("report", lease=60)
    held = block.__enter__()
    set_expiry("report", "-1 SECOND")
    with named_lease("report", lease=60):
        with pytest.raises(ClaimLost, match="taken it over"):
            held.check()
        assert held.lost
        assert held.remaining() == timedelta()
        before = NamedLease.objects.values().get()
        with pytest.raises(ClaimLost, match=r"Lease 'report' \(token .*taken it over") as caught:
            block.__exit__(None, None, None)
        assert NamedLease.objects.values().get() == before
    assert caught.value.lost == ["report"]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_end_of_the_block_finds_a_loss_that_nobody_had_noticed() -> None:
    with ends_lost("report", lease=600) as held:
        set_expiry("report", "-1 SECOND")
        LeaseRows.on("default").take("report", "2@next#2", timedelta(seconds=60))
        assert not held.lost
    assert stored("report").claimed_by == "2@next#2"
    assert stored("report").iteration == held.token.iteration + 1


def test_a_renewal_that_finds_a_loss_tells_it() -> None:
    with ends_lost("report", lease=600) as held:
        set_expiry("report", "-1 SECOND")
        LeaseRows.on("default").take("report", "2@next#2", timedelta(seconds=60))
        with pytest.raises(ClaimLost, match="taken it over"):
            held.renew()
        assert held.lost


def test_a_renewal_that_the_end_of_the_block_overtook_tells_no_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with named_lease("report") as held:
        pass
    assert not held.renew_here()
    assert not [one for one in caplog.records if one.name == "django_taskclaim.leases"]


def test_expiry_alone_loses_nothing_while_nobody_takes_over() -> None:
    with named_lease("report", lease=600) as held:
        set_expiry("report", "-1 SECOND")
        assert held.renew()
        assert is_held("report")


def test_a_loss_does_not_hide_the_exception_on_its_way() -> None:
    def work() -> None:
        with named_lease("report", lease=600):
            set_expiry("report", "-1 SECOND")
            LeaseRows.on("default").take("report", "2@next#2", timedelta(seconds=60))
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        work()
    assert "Lease 'report'" in caught.value.__notes__[0]
    assert stored("report").claimed_by == "2@next#2"


# Transactions


def test_a_lease_is_refused_inside_a_transaction() -> None:
    with (
        transaction.atomic(),
        pytest.raises(RuntimeError, match="transaction is open"),
        named_lease("report"),
    ):
        pytest.fail("entered")
    transaction.set_autocommit(False)
    try:
        with pytest.raises(RuntimeError, match="transaction is open"), named_lease("report"):
            pytest.fail("entered")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert not NamedLease.objects.exists()
    assert renewer_threads() == []


def test_a_transaction_inside_the_block_is_no_obstacle() -> None:
    with named_lease("report", lease=60) as held, transaction.atomic():
        NamedLease.objects.create(name="something that is written")
        assert held.check()
        # On SQLite the open transaction is the only writer.
        assert held.renew() or connection.vendor == "sqlite"
        transaction.set_rollback(True)
    assert not is_held("report")


@pytest.mark.django_db(transaction=False)
def test_a_lease_works_in_test_case() -> None:
    """Its transaction is seen by no other connection, so nothing renews in the background there."""
    with named_lease("report", lease=60) as held:
        assert renewer_threads() == []
        assert held.check()
        assert held.renew()
        with pytest.raises(LeaseUnavailable), named_lease("report"):
            pytest.fail("entered")
    assert not is_held("report")


@synchronized("in a class", lease=60)
def add(one: int, *, other: int = 1) -> int:
    """Add."""
    assert is_held("in a class")
    return one + other


# The decorator


def test_a_synchronized_function_runs_under_the_lease() -> None:
    assert add(1, other=2) == 3
    assert not is_held("in a class")
    assert (add.__name__, add.__doc__) == ("add", "Add.")
    with held_by_another_thread("in a class"), pytest.raises(LeaseUnavailable):
        add(1)


def test_the_name_may_come_from_the_arguments() -> None:
    @synchronized(lambda number, **more: f"report:{number}")
    def report(number: int, *, deep: bool) -> bool:
        return is_held(f"report:{number}") and deep

    assert report(7, deep=True)
    with held_by_another_thread("report:8"):
        assert report(7, deep=True)
        with pytest.raises(LeaseUnavailable):
            report(8, deep=True)


def test_calls_wait_for_each_other() -> None:
    inside: list[int] = []

    @synchronized("calls", wait=30)
    def alone(number: int) -> None:
        inside.append(number)
        assert inside == [number]
        time.sleep(0.05)
        inside.remove(number)

    calls = [elsewhere(alone, number) for number in range(4)]
    for call in calls:
        call.result(40)


def test_a_generator_function_is_refused() -> None:
    def numbers() -> Any:
        yield 1

    async def more() -> Any:
        yield 1

    for function in (numbers, more):
        with pytest.raises(TypeError, match="generator function"):
            synchronized("numbers")(function)
    with pytest.raises(ValueError, match="1 to 200"):
        synchronized("")


def test_the_public_names_need_no_configured_django() -> None:
    import django_taskclaim

    assert {"named_lease", "synchronized"} <= set(django_taskclaim.__all__)


def test_the_arguments_are_all_told_with_their_defaults() -> None:
    told = {name: cell.strip("`") for name, cell in table("argument").items()}
    for function in (named_lease, synchronized):
        parameters = inspect.signature(function).parameters.values()
        assert told == {
            one.name: "" if one.default is one.empty else str(one.default) for one in parameters
        }


# The end of it


def test_nothing_stays_behind() -> None:
    with named_lease("report", lease=600) as held:
        assert held.renew()
        assert len(renewer_threads()) == 1
    wait_for(lambda: not renewer_threads())
