"""What the doctor says of tables that are updated all the time, and of what keeps a server from clearing up."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from django_taskclaim.dialects.upkeep import horizon_of, purge_lag, upkeep_of
from django_taskclaim.doctor import upkeep
from django_taskclaim.doctor.findings import Kind
from django_taskclaim.doctor.upkeep import clearing, worn_tables
from django_taskclaim.querysets.scope import Desk
from tests.factories import make
from tests.test_doctor import changes_tables, execute
from tests.testapp.models import Photo

pytestmark = changes_tables

#: One MySQL server serves all test processes at once, and its oldest transaction may be any one's: not to be ended.
ALONE = pytest.mark.long if connection.vendor == "mysql" else lambda test: test

on_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="needs statistics of dead rows"
)
TABLE = Photo._meta.db_table


def told(findings: Iterator[Any]) -> str:
    return "\n".join(
        " ".join([str(one.kind), one.message, one.advice, *one.details]) for one in findings
    )


def worn() -> str:
    """Return what is said of the table, once the statistics know of what this session did."""
    if connection.vendor == "postgresql":
        execute("SELECT pg_stat_force_next_flush()")
    return told(worn_tables(Photo, "default"))


@pytest.fixture
def hot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A few updates make a table hot; what the test sets on it is taken back."""
    monkeypatch.setattr(upkeep, "HOT_TABLE", 20)
    make(Photo, 40)
    execute(f"ALTER TABLE {TABLE} SET (autovacuum_enabled = false)")
    execute(f"SELECT pg_stat_reset_single_table_counters('{TABLE}'::regclass)")
    execute(f"VACUUM ANALYZE {TABLE}")
    yield
    execute(f"ALTER TABLE {TABLE} RESET (autovacuum_enabled, fillfactor)")
    execute(
        f"ALTER TABLE {TABLE} RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,"
        " autovacuum_vacuum_cost_delay)"
    )


@on_postgresql
def test_what_a_hot_table_lacks_is_named_and_what_is_advised_mends_it(hot: None) -> None:
    Photo.objects.complete(Photo.objects.claim_batch(40))
    execute(f"ALTER TABLE {TABLE} SET (autovacuum_vacuum_threshold = 100000)")
    said = worn()
    assert "fillfactor = 70" in said
    assert "A vacuum waits" in said
    assert "Autovacuum is switched off" in said
    for finding in list(worn_tables(Photo, "default")):
        # The server is not the test's own.
        execute(*(one for one in finding.details if one.startswith("ALTER TABLE")))
    said = worn()
    assert "ALTER TABLE" not in said
    assert "fine" in said


@on_postgresql
def test_a_vacuum_that_waits_too_long_is_told_of(
    hot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "TOO_MANY_DEAD", 50)
    Photo.objects.complete(Photo.objects.claim_batch(40))
    execute(f"ALTER TABLE {TABLE} SET (autovacuum_vacuum_threshold = 10)")
    assert "A vacuum waits" not in worn()
    execute(f"ALTER TABLE {TABLE} SET (autovacuum_vacuum_threshold = 1000)")
    assert "A vacuum waits until 1,0" in worn()


@on_postgresql
def test_dead_rows_are_counted_until_a_vacuum_has_cleared_them_away(
    hot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "TOO_MANY_DEAD", 30)
    Photo.objects.complete(Photo.objects.claim_batch(40))
    assert f"note The table {TABLE} has 80 dead rows beside" in worn()
    execute(f"VACUUM {TABLE}")
    assert f"fine The table {TABLE} has 0 dead rows beside 40 living; vacuumed" in worn()


@on_postgresql
def test_a_server_that_never_vacuums_is_told_of(hot: None) -> None:
    Photo.objects.complete(Photo.objects.claim_batch(40))
    with connection.cursor() as cursor:
        cursor.execute("SHOW autovacuum")
        ((setting,),) = cursor.fetchall()
    assert ("ALTER SYSTEM SET autovacuum = on" in worn()) == (setting == "off")


@on_postgresql
def test_a_table_that_hardly_changes_needs_nothing() -> None:
    make(Photo, 5)
    assert {finding.kind for finding in worn_tables(Photo, "default")} == {Kind.FINE}


@pytest.fixture
def other_session() -> Iterator[Any]:
    """Another session, in a transaction that has read what it goes on seeing."""
    if connection.vendor == "sqlite":
        pytest.skip("needs a server that tells of its sessions")
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        if other.vendor == "mysql":
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        else:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute(f"SELECT COUNT(*) FROM {TABLE}")
        cursor.fetchall()
        yield other
        with_rollback(cursor)
    other.close()


def with_rollback(cursor: Any) -> None:
    # The test may have ended it.
    with contextlib.suppress(OperationalError):
        cursor.execute("ROLLBACK")


@ALONE
def test_the_oldest_transaction_is_named_with_what_ends_it(
    other_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has been open" not in told(clearing("default"))
    assert "The oldest transaction is 0 s old" in told(clearing("default"))
    monkeypatch.setattr(upkeep, "LONG", timedelta(seconds=-1))
    assert "note The oldest transaction on 'default' has been open" in told(clearing("default"))
    horizon = horizon_of(connection)
    assert horizon is not None
    execute(horizon.remedy)
    with pytest.raises(OperationalError), other_session.cursor() as cursor:
        cursor.execute("SELECT 1")


def test_what_waits_to_be_purged_is_counted_where_there_is_such_a_thing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = purge_lag(connection)
    assert (waiting is not None) == (connection.vendor == "mysql")
    if waiting is None:
        return
    assert "changes wait to be purged" in told(clearing("default"))
    monkeypatch.setattr(upkeep, "TOO_MUCH_TO_PURGE", -1)
    assert "note" in told(clearing("default"))


@pytest.mark.skipif(connection.vendor != "sqlite", reason="about a database that tells nothing")
def test_a_database_that_clears_up_by_itself_is_asked_nothing() -> None:
    assert upkeep_of(connection, Desk.of(Photo, "default").table) is None
    assert told(worn_tables(Photo, "default")) == told(clearing("default")) == ""
