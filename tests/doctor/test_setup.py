"""Tables, columns and servers that the claims need, and what a server keeps of rows that have changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, models

from django_taskclaim.doctor import Kind, examine
from django_taskclaim.models import Switch
from tests.doctor.support import changes_tables, doctor, handling, problems, send, told
from tests.factories import make
from tests.testapp.models import ClaimOnly, Photo

pytestmark = changes_tables


@contextmanager
def renamed(model: type[models.Model], new: str) -> Iterator[None]:
    old = model._meta.db_table
    with connection.schema_editor() as editor:
        editor.alter_db_table(model, old, new)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(model, new, old)


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        (Switch, "manage.py migrate taskclaim --database default"),
        (ClaimOnly, "manage.py migrate testapp --database default"),
    ],
)
def test_a_missing_table_is_named_with_the_command_that_makes_it(
    missing: Any, command: str
) -> None:
    with renamed(missing, "taskclaim_away"):
        (finding,) = examine(ClaimOnly, "default")
    assert finding.kind is Kind.PROBLEM
    assert missing._meta.db_table in finding.message
    assert finding.advice.endswith(command)


def test_a_missing_column_is_named_with_the_command_that_adds_it() -> None:
    table = ClaimOnly._meta.db_table
    send(f"ALTER TABLE {table} RENAME COLUMN claimed_at TO taken_at")
    try:
        (finding,) = examine(ClaimOnly, "default")
    finally:
        send(f"ALTER TABLE {table} RENAME COLUMN taken_at TO claimed_at")
    assert "lacks the column claimed_at" in finding.message
    assert "manage.py claimadopt" in finding.advice


@pytest.mark.promise(14)
def test_a_database_that_does_not_answer_is_a_finding() -> None:
    wrong = connections["other"].settings_dict
    name = wrong["NAME"]
    connections["other"].close()
    wrong["NAME"] = "/nowhere/at/all" if connection.vendor == "sqlite" else "no_such_database"
    try:
        (finding,) = examine(Photo, "other")
    finally:
        connections["other"].close()
        wrong["NAME"] = name
    assert finding.kind is Kind.PROBLEM
    assert "'other' refused" in finding.message


@pytest.mark.once
def test_the_command_reports_what_the_checks_find() -> None:
    with handling(ClaimOnly, lease=1):
        assert "claimed for 1 s: one slow renewal" in doctor("testapp.ClaimOnly")[1]


# What a server keeps of rows that have changed


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs statistics of dead rows")
def test_dead_rows_are_counted_until_a_vacuum_has_cleared_them_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_taskclaim.doctor.vacuum.TOO_MANY_DEAD", 30)
    table = Photo._meta.db_table
    send(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    try:
        make(Photo, 40)
        send(f"SELECT pg_stat_reset_single_table_counters('{table}'::regclass)")
        send(f"VACUUM ANALYZE {table}")
        Photo.objects.complete(Photo.objects.claim_batch(40))
        send("SELECT pg_stat_force_next_flush()")
        text = told(Photo)
        assert "80 dead rows beside" in text
        assert "each claim may read past many of them" in text
        send(f"VACUUM {table}")
        text = told(Photo)
        assert "has 0 dead rows" in text, text
        assert problems(Photo) == []
    finally:
        send(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server that lists its sessions")
def test_the_oldest_transaction_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            if other.vendor == "mysql":
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            else:
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute(f"SELECT COUNT(*) FROM {Photo._meta.db_table}")
            cursor.fetchall()
            monkeypatch.setattr("django_taskclaim.doctor.vacuum.LONG", timedelta(seconds=-1))
            assert "The oldest transaction on 'default' has been open" in doctor("testapp.Photo")[1]
    finally:
        other.close()
