"""Contention is retried where the outermost transaction was opened, and nowhere else."""

from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from django_taskclaim.contention import retry_on_contention
from tests.contention.conftest import ROW_LOCKS, Rival, add, add_at_once, balances, failing
from tests.querysets.support import execute


@pytest.mark.parametrize("options", [{}, {"atomic": False}], ids=str)
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
    held.roll_back()
    assert (balances(), tries, retried) == ({1: 0, 2: 0}, [1], [])


@pytest.mark.promise(5)
@pytest.mark.django_db
def test_a_test_case_is_the_callers_transaction(retried: list[dict[str, Any]]) -> None:
    with pytest.raises(OperationalError):
        retry_on_contention()(failing(1, OperationalError(1213, "Deadlock found")))()
    assert connection.get_rollback()
    assert retried == []


def test_other_errors_pass_untouched_and_undo_the_try(accounts: None) -> None:
    tries: list[int] = []

    @retry_on_contention()
    def work() -> None:
        tries.append(1)
        add(1)
        execute("INSERT INTO account VALUES (1, 0)")

    with pytest.raises(IntegrityError):
        work()
    assert balances() == {1: 0, 2: 0}
    assert tries == [1]
