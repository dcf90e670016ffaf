"""Contention is recognised by the code of the database, and nothing else is taken for it."""

from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError

from django_taskclaim.contention import retry_on_contention, waiting_once
from django_taskclaim.exceptions import RetriesExhausted
from tests.contention.conftest import Deadlock, failing

pytestmark = pytest.mark.once


def caused_by(cause: Exception, error: Exception) -> Exception:
    error.__cause__ = cause
    return error


RAISED_FROM_ITSELF = OperationalError("no code")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Deadlock(), "40P01"),
        (OperationalError(1213, "Deadlock found"), 1213),
        (caused_by(OperationalError(1020, "Record has changed"), DatabaseError("x")), 1020),
        (OperationalError(1205, "Lock wait timeout exceeded"), 1205),
    ],
    ids=repr,
)
def test_contention_is_retried(error: Exception, code: Any, retried: list[dict[str, Any]]) -> None:
    # Also in a receiver of the user's that is called while a worker writes, which goes around locks itself.
    with waiting_once("default"):
        assert retry_on_contention(atomic=False).call(failing(1, error)) == "done"
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
        caused_by(RAISED_FROM_ITSELF, RAISED_FROM_ITSELF),
    ],
    ids=repr,
)
def test_other_errors_are_not_retried(error: Exception, retried: list[dict[str, Any]]) -> None:
    with pytest.raises(type(error)) as caught:
        retry_on_contention(atomic=False).call(failing(1, error))
    assert caught.value is error
    assert retried == []
