"""Contention is recognised by the code of the database, and nothing else is taken for it."""

import sqlite3
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError

from django_taskclaim.contention import refusal_code, retry_on_contention
from django_taskclaim.exceptions import RetriesExhausted
from tests.contention.conftest import Deadlock, failing

pytestmark = pytest.mark.once


def caused_by(cause: Exception, error: Exception) -> Exception:
    error.__cause__ = cause
    return error


def locked_in_a_shared_cache() -> sqlite3.Error:
    """Return the error with an extended code that a real SQLite raises."""
    shared = "file:contention?mode=memory&cache=shared"
    one, two = (sqlite3.connect(shared, uri=True, isolation_level=None) for _ in range(2))
    one.execute("CREATE TABLE t (a)")
    one.execute("BEGIN")
    one.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(sqlite3.OperationalError) as caught:
        two.execute("SELECT * FROM t").fetchall()
    one.close()
    two.close()
    return caught.value


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Deadlock(), "40P01"),
        (OperationalError(1213, "Deadlock found"), 1213),
        (caused_by(OperationalError(1020, "Record has changed"), DatabaseError("x")), 1020),
        (locked_in_a_shared_cache(), sqlite3.SQLITE_LOCKED_SHAREDCACHE),
    ],
    ids=repr,
)
def test_contention_is_retried(error: Exception, code: Any, retried: list[dict[str, Any]]) -> None:
    assert retry_on_contention(atomic=False, wait=0).call(failing(1, error)) == "done"
    assert [facts["code"] for facts in retried] == [code]


@pytest.mark.parametrize(
    "error",
    [
        OperationalError(2006, "Server has gone away"),
        IntegrityError(1062, "Duplicate entry"),
        # About a key and about a file, not about a lock.
        KeyError(1213),
        OSError(5, "Input/output error"),
        # Somebody dealt with the deadlock already.
        caused_by(Deadlock(), ValueError("the order changed meanwhile")),
        caused_by(Deadlock(), RetriesExhausted(3, 1.0, "40P01")),
    ],
    ids=repr,
)
def test_other_errors_are_not_retried(error: Exception, retried: list[dict[str, Any]]) -> None:
    with pytest.raises(type(error)) as caught:
        retry_on_contention(atomic=False, wait=0).call(failing(1, error))
    assert caught.value is error
    assert retried == []


class Answer(OperationalError):
    """An error of PostgreSQL."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@pytest.mark.promise(10, 12)
def test_an_answer_about_rows_is_not_taken_for_a_server_in_trouble() -> None:
    """The first charges a row, the second none."""
    about_rows: list[Exception] = [Answer(code) for code in ("54000", "57014", "53400")]
    about_rows += [OperationalError(code) for code in (1644, 3140)]
    trouble: list[Exception] = [Answer(code) for code in ("25006", "53100", "57P01", "25P03")]
    trouble += [OperationalError(code) for code in (1290, 1053, 2013, 1040, 1045)]
    assert None not in [refusal_code(error) for error in about_rows]
    assert {refusal_code(error) for error in trouble} == {None}
