"""What the doctor says of triggers on a table, and of the connections that workers may open."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_taskclaim.dialects import DatabaseLater, DatabaseNow, dialect_for
from django_taskclaim.dialects.around import around
from django_taskclaim.doctor import Kind
from django_taskclaim.doctor.connections import connection_findings
from django_taskclaim.models import WorkerProcess
from tests.sources.app.models import PageTask
from tests.test_doctor import changes_tables, doctor, execute, told
from tests.testapp.models import ClaimOnly, Photo

#: A trigger that does nothing, on each database.
TRIGGERS = {
    "sqlite": ["CREATE TRIGGER noting {when} {event} ON {table} BEGIN SELECT 1; END"],
    "mysql": ["CREATE TRIGGER noting {when} {event} ON {table} FOR EACH ROW SET @noted = 1"],
    "postgresql": [
        "CREATE OR REPLACE FUNCTION noting() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER noting {when} {event} ON {table} FOR EACH ROW EXECUTE FUNCTION noting()",
    ],
}


def trigger(model: Any, event: str, when: str = "AFTER") -> None:
    table = connection.ops.quote_name(model._meta.db_table)
    execute(
        *(one.format(when=when, event=event, table=table) for one in TRIGGERS[connection.vendor])
    )


@pytest.fixture
def no_trigger_left() -> Iterator[None]:
    yield
    if connection.vendor == "postgresql":
        execute("DROP FUNCTION IF EXISTS noting() CASCADE")
    else:
        execute("DROP TRIGGER IF EXISTS noting")


@changes_tables
@pytest.mark.usefixtures("no_trigger_left")
def test_a_trigger_on_updates_is_told_with_its_cost_and_a_companion_advised() -> None:
    trigger(ClaimOnly, "UPDATE")
    said = told(ClaimOnly)
    assert "The row trigger noting fires twice for each row that is done" in said
    assert "every 15 s for each row that is held longer" in said
    assert "class ClaimOnlyTask(SourceMixin, TaskMixin), see docs/companions.md" in said
    assert "trigger" not in told(Photo)


@changes_tables
@pytest.mark.usefixtures("no_trigger_left")
@pytest.mark.parametrize("event", ["INSERT", "DELETE", "UPDATE OF note"])
def test_a_trigger_that_no_claim_fires_is_not(event: str) -> None:
    if " OF " in event and connection.vendor != "postgresql":
        pytest.skip("needs UPDATE OF columns that the catalogue lists")
    trigger(ClaimOnly, event, "BEFORE" if event == "DELETE" else "AFTER")
    assert "trigger" not in told(ClaimOnly)


@changes_tables
@pytest.mark.usefixtures("no_trigger_left")
def test_a_companion_is_advised_no_companion() -> None:
    trigger(PageTask, "UPDATE")
    said = told(PageTask)
    assert "row trigger noting" in said
    assert "SourceMixin" not in said


# Connections


def process(name: str, connections: int, ago: float = 0) -> None:
    seen: Any = DatabaseLater(-timedelta(seconds=ago)) if ago else DatabaseNow()
    WorkerProcess.objects.create(
        name=name,
        host="h",
        pid=1,
        version="1",
        started_at=DatabaseNow(),
        seen_at=seen,
        connections=connections,
    )


limited = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="needs a server that limits connections"
)


@limited
@pytest.mark.django_db
def test_the_sum_of_all_living_workers_is_compared_with_the_servers_limit() -> None:
    limit = around(dialect_for(connection)).connections()
    assert limit is not None
    assert 0 < limit.open <= limit.most
    assert list(connection_findings("default")) == []
    process("one", 3)
    process("gone", limit.most, ago=3600)
    (fine,) = connection_findings("default")
    assert fine.kind == Kind.FINE
    assert fine.message.startswith("1 worker process may open 3 connections; the server allows")
    process("two", int(limit.most * 0.9))
    (little,) = connection_findings("default")
    assert (little.kind, little.advice[:22]) == (Kind.NOTE, "Little is left to othe")
    process("three", limit.most)
    (too_many,) = connection_findings("default")
    assert too_many.kind == Kind.PROBLEM
    assert "3 worker processes may open" in too_many.message
    code, said = doctor("testapp.ClaimOnly")
    assert (code, "Start fewer processes or threads" in said) == (1, True)


@pytest.mark.django_db
def test_where_nothing_is_limited_nothing_is_said() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("needs a database without a limit of connections")
    process("one", 3)
    assert list(connection_findings("default")) == []
