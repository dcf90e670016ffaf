"""Accounts that two sessions want, and functions that fail for a while."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections

from django_taskclaim.contention import contention_retried
from tests.meanwhile import connected
from tests.querysets.support import ROW_LOCKS, execute
from tests.querysets.support import Rival as Session


def flavour() -> str:
    return "mariadb" if getattr(connection, "mysql_is_mariadb", False) else connection.vendor


def add(amount: int, account: int = 1) -> None:
    execute("UPDATE account SET balance = balance + %s WHERE id = %s", [amount, account])


def add_at_once(amount: int, account: int = 1) -> None:
    """Add without waiting for the holder of the account."""
    if ROW_LOCKS:
        execute("SELECT id FROM account WHERE id = %s FOR UPDATE NOWAIT", [account])
    add(amount, account)


def balances() -> dict[int, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, balance FROM account")
        return dict(cursor.fetchall())


@pytest.fixture
def accounts(transactional_db: None) -> Iterator[None]:
    execute("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)")
    execute("INSERT INTO account VALUES (1, 0), (2, 0)")
    yield
    execute("DROP TABLE account")


class Rival(Session):
    """Another session on the same database, which wants the same accounts."""

    def hold(self, account: int = 1) -> None:
        self.begin()
        self.execute(f"UPDATE account SET balance = balance WHERE id = {account}")

    def roll_back(self, *_: Any) -> None:
        self.connection.rollback()


@pytest.fixture
def rival(accounts: None) -> Iterator[Rival]:
    session = Rival()
    yield session
    session.close()


@pytest.fixture
def held(rival: Rival, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rival]:
    """The rival holds account 1, and ``add_at_once`` meets contention until it lets go."""
    connection.ensure_connection()
    if not ROW_LOCKS:
        rival.execute("SELECT 1")
        execute("PRAGMA busy_timeout = 0")
        # Deferred, so that a transaction can be open before the contention.
        monkeypatch.setattr(connections["default"], "transaction_mode", None)
    rival.hold()
    yield rival
    connection.close()


@pytest.fixture
def retried() -> Iterator[list[dict[str, Any]]]:
    """What a circuit breaker would hear."""
    heard: list[dict[str, Any]] = []

    def receiver(signal: Any, sender: Any, **facts: Any) -> None:
        heard.append(facts)

    with connected(contention_retried, receiver):
        yield heard


class Deadlock(Exception):
    """What another library than Django's may raise."""

    sqlstate = "40P01"


def failing(times: int, error: Exception | None = None) -> Callable[[], str]:
    """Return a function that raises so many times and then answers."""
    errors = iter([error or Deadlock("deadlock detected")] * times)

    def function() -> str:
        for pending in errors:
            raise pending
        return "done"

    return function
