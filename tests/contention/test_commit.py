"""A COMMIT that fails is repeated or reported, one that succeeded is never repeated."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.contention import retry_on_contention
from tests.contention.conftest import Rival, add, balances, create_accounts, failing


class LosingCommit:
    """Work whose first COMMIT, and no statement before it, meets contention."""

    def __init__(self, rival: Rival) -> None:
        self.rival, self.tries = rival, 0

    def work(self) -> None:
        self.tries += 1
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        balances()
        if self.tries == 1:
            self.rival.begin()
            self.rival.execute(
                "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
                "SELECT * FROM account",
                "UPDATE account SET balance = 100 WHERE id = 2",
            )
        add(1)
        if self.tries == 1:
            self.rival.commit()


class LosingSqliteCommit:
    """The same: with SQLite's own default journal a reader holds up the COMMIT of a writer."""

    def __init__(self, path: Path) -> None:
        self.reader, self.tries = sqlite3.connect(path, isolation_level=None), 0

    def work(self) -> None:
        self.tries += 1
        add(1)
        self.reader.execute("BEGIN" if self.tries == 1 else "ROLLBACK")
        self.reader.execute("SELECT * FROM account").fetchall()


Losing: TypeAlias = LosingCommit | LosingSqliteCommit


@pytest.fixture
def losing_commit(rival: Rival, tmp_path: Path) -> Iterator[Losing]:
    if connection.vendor == "postgresql":
        yield LosingCommit(rival)
    elif connection.vendor == "sqlite":
        usual = connections["default"]
        connections["default"] = old_style_sqlite(tmp_path / "accounts.sqlite3")
        create_accounts()
        losing = LosingSqliteCommit(tmp_path / "accounts.sqlite3")
        yield losing
        losing.reader.close()
        connection.close()
        connections["default"] = usual
    else:
        pytest.skip("the database decides every conflict before COMMIT")


def old_style_sqlite(path: Path) -> BaseDatabaseWrapper:
    """Return a wrapper with SQLite's own defaults, but without patience."""
    wrapper = connections.create_connection("default")
    wrapper.settings_dict = {
        **wrapper.settings_dict,
        "NAME": str(path),
        "OPTIONS": {"timeout": 0},
    }
    return wrapper


def test_a_function_is_repeated_when_its_commit_fails(losing_commit: Losing) -> None:
    retry_on_contention().call(losing_commit.work)
    assert losing_commit.tries == 2
    assert balances()[1] == 1


def test_the_loop_never_takes_a_failed_commit_for_a_success(losing_commit: Losing) -> None:
    def work() -> str:
        for attempt in retry_on_contention():
            with attempt:
                losing_commit.work()
                return "done"
        raise AssertionError("the loop ended without an answer")

    with pytest.raises(OperationalError) as caught:
        work()
    assert "COMMIT" in caught.value.__notes__[0]
    assert balances()[1] == 0


def test_contention_in_a_commit_hook_does_not_repeat_what_was_committed(accounts: None) -> None:
    @retry_on_contention()
    def work() -> None:
        add(1)
        transaction.on_commit(failing(1, OperationalError(1213, "Deadlock found")))

    with pytest.raises(OperationalError):
        work()
    assert balances()[1] == 1
