"""Contention is retried where the outermost transaction was opened, and nowhere else."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.db import IntegrityError, OperationalError, connection, transaction

from django_taskclaim.contention import Retriable, retry_on_contention
from tests.contention.conftest import ROW_LOCKS, Rival, add, add_at_once, balances, failing


@pytest.mark.parametrize("options", [{}, {"savepoint": False}, {"atomic": False}], ids=str)
def test_inside_a_transaction_the_error_passes_and_the_transaction_is_lost(
    held: Rival, retried: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    tries: list[int] = []

    @retry_on_contention(**options)
    def work() -> None:
        tries.append(1)
        add_at_once(1)

    with transaction.atomic():
        if ROW_LOCKS:
            # MySQL and MariaDB would commit this.
            add(1, account=2)
        with pytest.raises(OperationalError) as caught:
            work()
        assert connection.get_rollback()
        with pytest.raises(transaction.TransactionManagementError) as refused:
            balances()
        assert refused.value.__cause__ is caught.value
    held.let_go()
    assert (balances(), tries, retried) == ({1: 0, 2: 0}, [1], [])


def test_switched_off_autocommit_is_the_callers_transaction(
    held: Rival, retried: list[dict[str, Any]]
) -> None:
    connection.set_autocommit(False)
    try:
        with pytest.raises(OperationalError):
            retry_on_contention(savepoint=False).call(add_at_once, 1)
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert retried == []


@pytest.mark.promise(5)
@pytest.mark.django_db
def test_a_test_case_is_the_callers_transaction(retried: list[dict[str, Any]]) -> None:
    with pytest.raises(OperationalError):
        retry_on_contention(failing(1, OperationalError(1213, "Deadlock found")))()
    assert connection.get_rollback()
    assert retried == []


def test_the_outermost_of_two_retries_repeats_both(held: Rival) -> None:
    tries: list[str] = []

    @retry_on_contention()
    def inner() -> None:
        tries.append("inner")
        add_at_once(1)

    @retry_on_contention(sleep=held.let_go)
    def outer() -> None:
        tries.append("outer")
        if ROW_LOCKS:
            add(1, account=2)
        inner()

    outer()
    assert tries == ["outer", "inner"] * 2
    assert balances() == {1: 1, 2: 1 if ROW_LOCKS else 0}


@pytest.mark.parametrize("nested", [False, True])
def test_other_errors_pass_untouched_and_undo_the_try(accounts: None, nested: bool) -> None:
    tries: list[int] = []

    @retry_on_contention()
    def work() -> None:
        tries.append(1)
        add(1)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO account VALUES (1, 0)")

    with transaction.atomic() if nested else contextlib.nullcontext():
        with pytest.raises(IntegrityError):
            work()
        assert balances() == {1: 0, 2: 0}
    assert tries == [1]


async def acontended() -> None:
    raise OperationalError(1213, "Deadlock found")


def test_a_coroutine_is_retried_outside_of_a_transaction(
    held: Rival, retried: list[dict[str, Any]]
) -> None:
    @retry_on_contention(atomic=False, sleep=sync_to_async(held.let_go))
    async def work(amount: int) -> str:
        await sync_to_async(add_at_once)(amount)
        return "done"

    assert iscoroutinefunction(work)
    assert async_to_sync(work)(5) == "done"
    assert balances()[1] == 5
    assert len(retried) == 1
    with transaction.atomic():
        with pytest.raises(OperationalError):
            async_to_sync(retry_on_contention(atomic=False)(acontended))()
        assert connection.get_rollback()
    assert len(retried) == 1


class Accounts:
    def add(self, amount: int) -> None:
        add_at_once(amount)


def test_methods_of_a_proxy_follow_the_same_rule(held: Rival) -> None:
    with transaction.atomic():
        # An error that this connection cannot have suffered is retried.
        assert Retriable(SimpleNamespace(save=failing(1)), wait=0).save() == "done"
        assert not connection.get_rollback()
        with pytest.raises(OperationalError):
            Retriable(Accounts()).add(1)
        assert connection.get_rollback()
    Retriable(Accounts(), atomic=True, sleep=held.let_go).add(3)
    assert balances()[1] == 3
