"""Contention is recognised by the code of the database, and nothing else is taken for it."""

import sqlite3

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError

from django_taskclaim.contention import contention_code, refusal_code, server_code
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


class Answer(OperationalError):
    """An error of PostgreSQL."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Answer("54000"), "54000"),
        (Answer("57014"), "57014"),
        (Answer("53400"), "53400"),
        (OperationalError(1644, "SIGNAL"), 1644),
        (OperationalError(3140, "Invalid JSON text"), 3140),
        (IntegrityError(4025, "CONSTRAINT failed"), 4025),
        # The server can write nothing, stops, or has said nothing.
        (Answer("25006"), None),
        (Answer("53100"), None),
        (Answer("57P01"), None),
        (Answer(None), None),
        (OperationalError(1290, "--read-only"), None),
        (OperationalError(1053, "Server shutdown in progress"), None),
        (OperationalError(2013, "Lost connection"), None),
        (OperationalError(1040, "Too many connections"), None),
        (OperationalError(1045, "Access denied"), None),
        (Answer("25P03"), None),
        # Others are in the way.
        (Deadlock(), None),
        (RetriesExhausted(3, 1.0, "40P01"), None),
    ],
    ids=repr,
)
def test_what_speaks_of_the_rows(error: Exception, code: str | int | None) -> None:
    assert refusal_code(error) == code


def test_what_speaks_of_the_server() -> None:
    assert server_code(Answer("25006")) == "25006"
    assert server_code(OperationalError(1290, "--read-only")) == 1290
    assert server_code(OperationalError(2006, "Server has gone away")) is None
