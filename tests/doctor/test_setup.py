"""Tables, columns and servers that the claims need."""

from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections

from django_taskclaim.doctor import examine
from django_taskclaim.management.base import lacking
from django_taskclaim.models import Switch
from tests.commands import nobody_answers, table_away
from tests.doctor.support import changes_tables, doctor, doctor_text, handling, send
from tests.factories import make
from tests.meanwhile import column_away
from tests.querysets.support import DEADLINE, Rival, elsewhere
from tests.sessions import end_sessions
from tests.testapp.models import ClaimOnly, Photo

pytestmark = changes_tables


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
    with table_away(missing):
        (finding,) = examine(ClaimOnly, "default")
    assert finding.is_serious()
    assert missing._meta.db_table in finding.msg
    assert command in finding.hint
    assert ("claimadopt" in finding.hint) == (missing is ClaimOnly)


def test_a_table_is_not_missing_where_a_writer_or_the_end_of_the_session_keeps_it_from_being_read() -> (
    None
):
    rival = Rival()
    rival.begin()
    try:
        # SQLite's one writer is the rival now.
        connection.ensure_connection()
        elsewhere(end_sessions).result(DEADLINE)
        assert list(lacking([(Photo, "default")])) == []
    finally:
        rival.close()
        connection.close()


def test_a_missing_column_is_named_with_the_command_that_adds_it() -> None:
    with column_away(ClaimOnly, "claimed_at"):
        (finding,) = examine(ClaimOnly, "default")
    assert "cannot be read: " in finding.msg
    assert "claimed_at" in finding.msg
    assert "manage.py claimadopt" in finding.hint


@pytest.mark.promise(14)
def test_a_database_that_does_not_answer_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    # One that this process has never reached.
    monkeypatch.setattr(connections._connections, "other", connections["other"].copy())
    with nobody_answers("other"):
        code, text = doctor("testapp.Photo", "--database", "other")
    assert code == 1
    assert "testapp.Photo on other\n  !!  The database refused a question: " in text


@pytest.mark.once
def test_the_command_reports_what_the_checks_find() -> None:
    with handling(ClaimOnly, lease=1):
        assert "claimed for 1 s: one slow renewal" in doctor("testapp.ClaimOnly")[1]


# What a server keeps of rows that have changed


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs statistics of dead rows")
def test_dead_rows_are_counted_until_a_vacuum_has_cleared_them_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_taskclaim.doctor.TOO_MANY_DEAD", 80)
    table = Photo._meta.db_table
    send(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    try:
        make(Photo, 40)
        send(f"SELECT pg_stat_reset_single_table_counters('{table}'::regclass)")
        send(f"VACUUM ANALYZE {table}")
        Photo.objects.complete(Photo.objects.claim_batch(40))
        send("SELECT pg_stat_force_next_flush()")
        assert "80 dead rows beside" in doctor_text(Photo)
        send(f"VACUUM {table}")
        assert "dead rows" not in doctor_text(Photo)
    finally:
        send(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server that lists its sessions")
def test_the_oldest_transaction_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_taskclaim.doctor.LONG", timedelta(seconds=-1))
    begin = {"mysql": "START TRANSACTION WITH CONSISTENT SNAPSHOT"}
    with closing(Rival()) as other:
        other.execute(begin.get(connection.vendor, "BEGIN ISOLATION LEVEL REPEATABLE READ"))
        other.execute(f"SELECT COUNT(*) FROM {Photo._meta.db_table}")
        assert "The oldest transaction" in doctor("testapp.Photo")[1]
