"""Fixtures of the tests of ``take``."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import connection

from django_taskclaim import take
from tests.proxy import commits  # noqa: F401
from tests.querysets.support import DEADLINE, elsewhere, execute
from tests.taking.models import Letter, Line

#: How each database makes a table with a sequence that is no primary key.
COLUMNS_OF_LINE = {
    "postgresql": "seq bigserial, text varchar(50)",
    "mysql": "seq bigint AUTO_INCREMENT, text varchar(50), KEY by_seq (seq)",
    "sqlite": "seq integer, text varchar(50)",
}


@pytest.fixture
def lines(transactional_db: None) -> Iterator[list[Line]]:
    """Six lines of a log whose table has no primary key."""
    execute(f"CREATE TABLE taking_line ({COLUMNS_OF_LINE[connection.vendor]})")
    yield Line.objects.bulk_create([Line(seq=n, text=f"line {n}") for n in range(1, 7)])
    execute("DROP TABLE taking_line")


@pytest.fixture
def letters(db: None) -> list[Letter]:
    """Six letters."""
    return [Letter.objects.create(text=f"letter {n}") for n in range(6)]


@contextmanager
def taken_elsewhere(*args: Any, **kwargs: Any) -> Iterator[list[Any]]:
    """Have another session take rows, keep them for the length of the block, and give them back."""
    rows: list[Any] = []
    there, leave = threading.Event(), threading.Event()

    class GivenBack(Exception):
        """Ends the other session's block badly."""

    def hold() -> None:
        with suppress(GivenBack), take(*args, **kwargs) as taken:
            rows.extend(taken)
            there.set()
            assert leave.wait(3 * DEADLINE)
            raise GivenBack

    session = elsewhere(hold)
    try:
        assert there.wait(DEADLINE)
        yield rows
    finally:
        leave.set()
        session.result(DEADLINE)
