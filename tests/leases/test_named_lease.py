"""What ``named_lease`` and ``@synchronized`` promise to the code that calls them."""

import pickle
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from django_taskclaim import named_lease
from django_taskclaim.exceptions import ClaimLost, LeaseUnavailable
from django_taskclaim.leases import forget
from django_taskclaim.models import NamedLease
from django_taskclaim.states import Token
from tests.leases.support import (
    TABLE,
    ends_lost,
    expire,
    is_held,
    renewer_threads,
    set_moment,
    stored,
)
from tests.meanwhile import autocommit_off
from tests.querysets.support import DEADLINE, at_once, elsewhere, execute, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def assert_refused(name: str, **options: Any) -> LeaseUnavailable:
    with pytest.raises(LeaseUnavailable) as caught, named_lease(name, **options):
        pytest.fail("entered")
    return caught.value


# Holding


def test_a_block_holds_the_lease_and_gives_it_back() -> None:
    """Also after an exception; each hold has a token of its own and a higher iteration."""
    tokens = []
    for number in range(3):
        block = named_lease("report", lease=60)
        assert not block.lost
        with suppress(ZeroDivisionError), block as held:
            tokens.append(held.token)
            assert is_held("report")
            assert stored("report").claimed_by == held.token.holder
            assert held.check()
            assert not held.lost
            _ = 1 / (number - 1)
        assert not is_held("report")
        assert (stored("report").claimed_by, stored("report").expires_at) == (None, None)
        assert held.lost
        with pytest.raises(ClaimLost, match="its block has ended"):
            held.check()
    first = tokens[0].iteration
    assert [token.iteration for token in tokens] == [first, first + 1, first + 2]
    assert len({token.holder for token in tokens}) == 3


@pytest.mark.promise(1)
def test_of_eight_who_ask_at_once_one_gets_the_lease() -> None:
    """For a new name, and after its lease has expired."""
    asked = threading.Barrier(8)

    def ask() -> Token | None:
        try:
            with named_lease("report", lease=600) as held:
                asked.wait(DEADLINE)
                return held.token
        except LeaseUnavailable:
            asked.wait(DEADLINE)
            return None

    def winner() -> Token:
        (token,) = [token for token in at_once(*[ask] * 8) if token is not None]
        return token

    first = winner()
    with ends_lost("report", lease=600) as held:
        expire("report")
        assert winner().iteration == held.token.iteration + 1 == first.iteration + 2


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_held_lease_is_refused_with_its_holder_and_expiry(use_tz: bool) -> None:
    with (
        override_settings(USE_TZ=use_tz, TIME_ZONE="Asia/Kolkata"),
        named_lease("report", lease=3600) as held,
    ):
        error = assert_refused("report")
        assert (error.name, error.holder) == ("report", held.token.holder)
        assert error.expires_at == stored("report").expires_at
        assert timezone.is_aware(error.expires_at) is use_tz
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_names_are_compared_byte_for_byte() -> None:
    names = ["user:Bob", "user:bob", "user:böb", "user:bob ", " user:bob", "%s", "x" * 200, "💚"]
    blocks = [named_lease(name) for name in names]
    for block in blocks:
        block.__enter__()
    for name in names:
        assert_refused(name)
    for block in blocks:
        block.__exit__(None, None, None)


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in ("", "x" * 201, "nul\x00", "\ud800", None)),
        *(("report", {"lease": lease}) for lease in (0, "sixty")),
        ("report", {"wait": -1}),
    ],
)
def test_a_wrong_name_lease_or_wait_is_refused(name: Any, options: Any) -> None:
    words = next(iter(options), "1 to 200")
    with pytest.raises(ValueError, match=words):
        named_lease(name, **options)


# Waiting


def test_waiting_has_an_end() -> None:
    with named_lease("report"):
        assert_refused("report", wait=0.5)


# Losing


@pytest.mark.promise(3)
def test_a_lease_that_was_taken_over_is_lost_and_nothing_is_written_for_it() -> None:
    """The first look at it finds that; at the latest the end of the block raises it."""
    block = named_lease("report", lease=600)
    held = block.__enter__()
    expire("report")
    with named_lease("report", lease=600) as next_one:
        before = NamedLease.objects.values().get()
        with pytest.raises(ClaimLost, match="taken it over"):
            held.check()
        assert held.lost
        with pytest.raises(ClaimLost, match=r"'report': the lease .* is gone") as caught:
            block.__exit__(None, None, None)
        assert NamedLease.objects.values().get() == before
        assert next_one.check()
    assert caught.value.lost == ["report"]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_loss_does_not_hide_the_exception_of_the_block() -> None:
    def work() -> None:
        with named_lease("report", lease=600):
            expire("report")
            with named_lease("report"):
                _ = 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        work()
    assert "'report': the lease" in caught.value.__notes__[0]


def test_expiry_alone_loses_nothing_while_nobody_takes_over() -> None:
    with named_lease("report", lease=2) as held:
        expire("report")
        wait_for(lambda: is_held("report"))
        assert held.check()


# Transactions


@pytest.mark.promise(2)
def test_a_lease_is_refused_inside_a_transaction() -> None:
    """Switched-off autocommit counts as one; TestCase does not, and nothing renews in the background there."""

    def assert_not_entered() -> None:
        with pytest.raises(RuntimeError, match="transaction is open"), named_lease("report"):
            pytest.fail("entered")

    with transaction.atomic():
        assert_not_entered()
    with autocommit_off():
        assert_not_entered()
        transaction.rollback()
    assert not NamedLease.objects.exists()
    assert renewer_threads() == []


@pytest.mark.django_db(transaction=False)
def test_a_lease_works_in_test_case() -> None:
    with named_lease("report", lease=60) as held:
        assert renewer_threads() == []
        assert held.check()
        assert_refused("report")
    assert not is_held("report")


# Forgetting names that nobody uses


def forget_unused() -> int:
    return forget("default", timedelta(hours=1), 100)


def used(name: str, hours: int) -> int:
    """Let a lease have been taken hours ago, its count begun when it may have; return its highest count."""
    with named_lease(name):
        pass
    set_moment(name, "claimed_at", f"-{hours} HOUR")
    execute(f"UPDATE {TABLE} SET iteration = iteration - %s WHERE name = %s", [hours * 3600, name])
    return int(stored(name).iteration)


def test_names_are_forgotten_after_a_while_unused() -> None:
    """A name that is used again goes on above every count it had, so no token is issued twice."""
    highest = used("old", 2)
    used("young", 0)
    with named_lease("held", lease=600):
        set_moment("held", "claimed_at", "-2 HOUR")
        assert forget_unused() == 1
        assert is_held("held")
    assert set(NamedLease.objects.values_list("name", flat=True)) == {"young", "held"}
    with named_lease("old") as held:
        assert held.token.iteration > highest


def test_a_name_whose_count_is_ahead_of_the_clock_is_not_forgotten() -> None:
    """It changed hands more than once a second; a new count would begin below its old tokens."""
    used("busy", 2)
    execute(f"UPDATE {TABLE} SET iteration = iteration + 14400")
    assert forget_unused() == 0


def test_a_name_that_is_taken_while_it_is_being_forgotten_stays() -> None:
    used("report", 2)
    leave, sessions = threading.Event(), []

    def hold() -> None:
        with named_lease("report", lease=600):
            leave.wait(DEADLINE * 2)

    def take_it(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith("DELETE"):
            sessions.append(elsewhere(hold))
            wait_for(lambda: stored("report").claimed_by or sessions[0].done())
        return execute(sql, *args)

    with connection.execute_wrapper(take_it):
        assert forget_unused() == 0
    assert is_held("report")
    leave.set()
    sessions[0].result(DEADLINE)
