"""Real contention on the real database is retried, and every effect lands once."""

import threading
import time
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_taskclaim.contention import retry_on_contention
from django_taskclaim.exceptions import RetriesExhausted
from tests.contention.conftest import ROW_LOCKS, Rival, add, add_at_once, balances, flavour
from tests.querysets.support import at_once, execute

HELD_CODE = {"postgresql": "55P03", "mysql": 3572, "mariadb": 1205, "sqlite": 5}


@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
def test_a_deadlock_is_resolved_with_each_effect_once(
    accounts: None, retried: list[dict[str, Any]]
) -> None:
    meet = threading.Barrier(2)
    tries: list[int] = []

    @retry_on_contention()
    def transfer(amount: int, first: int, second: int) -> None:
        tries.append(amount)
        add(amount, first)
        if tries.count(amount) == 1:
            meet.wait(120)
        add(amount, second)

    at_once(lambda: transfer(1, 1, 2), lambda: transfer(10, 2, 1))
    assert balances() == {1: 11, 2: 11}
    # The loser may be back before the other has woken up, and then they meet again.
    assert set(tries) == {1, 10}
    assert len(retried) == len(tries) - 2 >= 1
    assert {facts["code"] for facts in retried} == {
        "40P01" if connection.vendor == "postgresql" else 1213
    }


@pytest.mark.skipif(ROW_LOCKS, reason="where there are row locks, BEGIN never waits")
def test_a_busy_sqlite_that_refuses_to_begin_is_retried(
    rival: Rival, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival.hold()
    execute("PRAGMA busy_timeout = 0")
    assert connection.transaction_mode == "IMMEDIATE"
    monkeypatch.setattr(time, "sleep", rival.roll_back)
    retry_on_contention().call(add, 5)
    connection.close()
    assert balances() == {1: 5, 2: 0}


def test_the_final_error_has_attempts_time_code_and_cause(
    held: Rival, retried: list[dict[str, Any]]
) -> None:
    with pytest.raises(RetriesExhausted) as caught:
        retry_on_contention(retries=2, using="default").call(add_at_once, 1)
    error = caught.value
    assert error.attempts == 3
    assert error.code == HELD_CODE[flavour()]
    assert isinstance(error.__cause__, OperationalError)
    assert error.elapsed >= retried[-1]["elapsed"] > 0
    assert len(retried) == 2
