"""Fixtures of the tests of ``take``."""

from collections.abc import Iterator

import pytest
from django.db import connection

from tests.proxy import commits  # noqa: F401
from tests.querysets.support import execute
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
