"""A COMMIT that fails is repeated or reported, one that succeeded is never repeated."""

import pytest
from django.db import OperationalError, connection, transaction

from django_taskclaim.contention import retry_on_contention
from tests.contention.conftest import Rival, add, balances, failing
from tests.querysets.support import execute

SERIALIZABLE = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"

needs_late_conflicts = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="the database decides every conflict before COMMIT"
)


@needs_late_conflicts
def test_a_function_is_repeated_when_its_commit_fails(rival: Rival) -> None:
    tries: list[int] = []

    @retry_on_contention()
    def work() -> None:
        """The first COMMIT, and no statement before it, meets contention."""
        tries.append(1)
        execute(SERIALIZABLE)
        balances()
        if len(tries) == 1:
            rival.begin()
            rival.execute(SERIALIZABLE)
            rival.execute("SELECT * FROM account")
            rival.execute("UPDATE account SET balance = 100 WHERE id = 2")
        add(1)
        if len(tries) == 1:
            rival.commit()

    work()
    assert len(tries) == 2
    assert balances()[1] == 1


def test_contention_in_a_commit_hook_does_not_repeat_what_was_committed(accounts: None) -> None:
    @retry_on_contention()
    def work() -> None:
        add(1)
        transaction.on_commit(failing(1, OperationalError(1213, "Deadlock found")))

    with pytest.raises(OperationalError):
        work()
    assert balances()[1] == 1
