"""Contention is recognised by the code of the database, and nothing else is taken for it."""

import sqlite3

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError

from django_taskclaim.contention import contention_code
from django_taskclaim.exceptions import RetriesExhausted
from tests.contention.conftest import Deadlock


def test_sqlite_says_locked_in_an_extended_code() -> None:
    shared = "file:contention?mode=memory&cache=shared"
    one, two = (sqlite3.connect(shared, uri=True, isolation_level=None) for _ in range(2))
    one.execute("CREATE TABLE t (a)")
    one.execute("BEGIN")
    one.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(sqlite3.OperationalError) as caught:
        two.execute("SELECT * FROM t").fetchall()
    one.close()
    two.close()
    assert contention_code(caught.value) == sqlite3.SQLITE_LOCKED_SHAREDCACHE


def caused_by(cause: Exception, error: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Deadlock(), "40P01"),
        (OperationalError(1213, "Deadlock found"), 1213),
        (caused_by(OperationalError(1020, "Record has changed"), DatabaseError("x")), 1020),
        (OperationalError(2006, "Server has gone away"), None),
        (IntegrityError(1062, "Duplicate entry"), None),
        # About a key and about a file, not about a lock.
        (KeyError(1213), None),
        (OSError(5, "Input/output error"), None),
        # Somebody dealt with the deadlock already.
        (caused_by(Deadlock(), ValueError("the order changed meanwhile")), None),
        (caused_by(Deadlock(), RetriesExhausted(3, 1.0, "40P01")), None),
    ],
    ids=repr,
)
def test_only_contention_has_a_code(error: Exception, code: str | int | None) -> None:
    assert contention_code(error) == code
