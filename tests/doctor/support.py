"""What the doctor says, and the conditions that it is asked about."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.db import connection, models

from django_taskclaim.doctor import examine
from django_taskclaim.handlers import handler, unregister
from django_taskclaim.indexes import ClaimIndex
from tests.commands import outcome
from tests.querysets.support import claimable_rows, owner_of, quoted, table_of

#: For tests that change tables, which no savepoint takes back everywhere.
changes_tables = pytest.mark.django_db(transaction=True, databases="__all__")


def problems(model: Any, alias: str = "default") -> list[CheckMessage]:
    return [finding for finding in examine(model, alias) if finding.is_serious()]


def doctor_text(model: type[models.Model], alias: str = "default") -> str:
    """Return all that the doctor says of the model, with its advice."""
    return "\n".join(f"{finding.msg} → {finding.hint}" for finding in examine(model, alias))


def doctor(*labels: str) -> tuple[int, str]:
    """Return exit code and output of ``claimdoctor``."""
    code, out, errors = outcome("claimdoctor", *labels)
    return code, out + errors


def indexes_advised(model: Any) -> list[str]:
    """Return the statements that create an index among the doctor's advice."""
    return [
        line
        for finding in examine(model, "default")
        for line in (finding.hint or "").splitlines()
        if line.startswith("CREATE INDEX")
    ]


def drop_index(model: Any, name: str) -> None:
    table = f" ON {table_of(owner_of(model))}" if connection.vendor == "mysql" else ""
    send(f"DROP INDEX {quoted(name)}{table}")


def claim_index(model: Any) -> ClaimIndex:
    (index,) = (one for one in owner_of(model)._meta.indexes if isinstance(one, ClaimIndex))
    return index


@contextmanager
def without_index(model: Any) -> Iterator[None]:
    """Drop the claim index, and bring it back unless the test has."""
    drop_index(model, claim_index(model).name)
    try:
        yield
    finally:
        for statement in indexes_advised(owner_of(model))[:1]:
            send(statement)


def send(statement: str) -> None:
    """Execute what the doctor advises, as a client of the database does."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


@contextmanager
def handling(
    model: Any, function: Callable[..., Any] = lambda row: None, **options: Any
) -> Iterator[None]:
    """Register a handler for a while, one that does nothing unless *function* is given."""
    handler(model, **options)(function)
    try:
        yield
    finally:
        unregister(model)


def many(model: Any) -> None:
    """Fill the table with so many rows that every optimiser prefers an index."""
    claimable_rows(model, 25_000)
    count(model)


def count(model: Any) -> None:
    """Refresh the statistics, where the database plans with them by itself."""
    if connection.vendor != "sqlite":
        word = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
        send(f"{word} {table_of(owner_of(model))}")
