"""Real contention on the real database is retried, and every effect lands once."""

import sqlite3
import threading
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_taskclaim.contention import retry_on_contention
from django_taskclaim.exceptions import RetriesExhausted
from tests.contention.conftest import ROW_LOCKS, Rival, add, add_at_once, balances, flavour
from tests.querysets.support import at_once

needs_row_locks = pytest.mark.skipif(
    not ROW_LOCKS, reason="the database has no row locks (has_select_for_update)"
)
one_writer_only = pytest.mark.skipif(
    ROW_LOCKS, reason="the database has row locks (has_select_for_update), so BEGIN never waits"
)

HELD_CODE = {"postgresql": "55P03", "mysql": 3572, "mariadb": 1205, "sqlite": 5}


@needs_row_locks
def test_a_deadlock_is_resolved_with_each_effect_once(
    accounts: None, retried: list[dict[str, Any]]
) -> None:
    meet = threading.Barrier(2)
    tries: list[int] = []

    @retry_on_contention
    def transfer(amount: int, first: int, second: int) -> None:
        tries.append(amount)
        add(amount, first)
        if tries.count(amount) == 1:
            meet.wait(30)
        add(amount, second)

    at_once(lambda: transfer(1, 1, 2), lambda: transfer(10, 2, 1))
    assert balances() == {1: 11, 2: 11}
    # The loser may be back before the other has woken up, and then they meet again.
    assert set(tries) == {1, 10}
    assert len(retried) == len(tries) - 2 >= 1
    assert {facts["code"] for facts in retried} == {
        "40P01" if connection.vendor == "postgresql" else 1213
    }


@needs_row_locks
def test_a_lock_timeout_is_retried(rival: Rival, retried: list[dict[str, Any]]) -> None:
    rival.hold()
    with connection.cursor() as cursor:
        cursor.execute(
            "SET lock_timeout = '50ms'"
            if connection.vendor == "postgresql"
            else "SET SESSION innodb_lock_wait_timeout = 1"
        )
    retry_on_contention(sleep=rival.let_go).call(add, 5)
    connection.close()
    assert balances() == {1: 5, 2: 0}
    assert [facts["code"] for facts in retried] == [
        "55P03" if connection.vendor == "postgresql" else 1205
    ]


def test_a_row_that_changed_since_the_snapshot_is_read_again(
    rival: Rival, retried: list[dict[str, Any]]
) -> None:
    code = {"postgresql": "40001", "mariadb": 1020}.get(flavour())
    with connection.cursor() as cursor:
        if flavour() == "mariadb":
            cursor.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
            code = cursor.fetchone() and code
        if code is None:
            pytest.skip("the database reports no changes since the snapshot")
        if flavour() == "mariadb":
            cursor.execute("SET SESSION innodb_snapshot_isolation = ON")

    @retry_on_contention()
    def double() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        seen = balances()[1]
        if seen == 0:
            rival.execute("UPDATE account SET balance = 7 WHERE id = 1")
        add(seen)

    double()
    connection.close()
    assert balances()[1] == 14
    assert [facts["code"] for facts in retried] == [code]


@one_writer_only
@pytest.mark.parametrize("form", ["function", "loop"])
def test_a_busy_sqlite_that_refuses_to_begin_is_retried(
    rival: Rival, retried: list[dict[str, Any]], form: str
) -> None:
    rival.hold()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 0")
    assert connection.transaction_mode == "IMMEDIATE"
    retry = retry_on_contention(sleep=rival.let_go)
    if form == "function":
        retry.call(add, 5)
    else:
        for attempt in retry:
            with attempt:
                add(5)
    connection.close()
    assert balances() == {1: 5, 2: 0}
    assert [facts["code"] for facts in retried] == [sqlite3.SQLITE_BUSY]


def test_the_final_error_has_attempts_time_code_and_cause(
    held: Rival, retried: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    with pytest.raises(RetriesExhausted) as caught:
        retry_on_contention(retries=2, using="default", sleep=waits.append).call(add_at_once, 1)
    error = caught.value
    assert error.attempts == 3
    assert error.code == HELD_CODE[flavour()]
    assert isinstance(error.__cause__, OperationalError)
    assert error.elapsed >= retried[-1]["elapsed"] > 0
    assert [facts["wait"] for facts in retried] == waits
    logged = [record for record in caplog.records if record.name == "django_taskclaim.contention"]
    assert [(record.levelname, record.__dict__["attempt"]) for record in logged] == [
        ("WARNING", 1),
        ("WARNING", 2),
    ]
    assert str(error.__cause__) in logged[0].getMessage()


def test_the_loop_repeats_its_block_until_it_is_exhausted(held: Rival) -> None:
    def work() -> None:
        for attempt in retry_on_contention(retries=1, wait=0):
            with attempt:
                add_at_once(1)

    with pytest.raises(RetriesExhausted):
        work()
    numbers = []
    for attempt in retry_on_contention(sleep=held.let_go):
        with attempt:
            numbers.append(attempt.number)
            add_at_once(1)
    assert numbers == [1, 2]
    assert balances()[1] == 1
