"""Adopting a table in use: who reads and writes it is not kept waiting, and what broke off is taken up again."""

import logging
import time
from contextlib import ExitStack
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection

from django_taskclaim.adoption import operations
from django_taskclaim.exceptions import RetriesExhausted
from tests.adoption.conftest import Project, shape
from tests.querysets.support import DEADLINE, elsewhere, execute, held_open, value_of
from tests.worker.conftest import wait_until

pytestmark = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="SQLite has one writer, and no lock of a table"
)

instant_only = pytest.mark.skipif(
    connection.vendor != "mysql", reason="the database never copies a table for columns"
)
concurrent_only = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="the database leaves no invalid index behind"
)


def forget(migration: str) -> None:
    """Leave a migration as if its process had ended before it was recorded."""
    execute("DELETE FROM django_migrations WHERE app = 'adoption' AND name = %s", [migration])


def test_readers_do_not_queue_behind_a_wait_for_a_long_transaction(
    project: Project, parcel: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration that waits too long gives up, and changes nothing; the next one goes on when it may."""
    project.adopt("adoption.Parcel")
    with caplog.at_level(logging.WARNING):
        with held_open(lambda: execute("SELECT COUNT(*) FROM adoption_parcel")):
            with monkeypatch.context() as patch:
                patch.setattr(operations, "RETRIES", 1)
                with pytest.raises(RetriesExhausted):
                    project.migrate()
            migration = elsewhere(project.migrate)
            end = time.monotonic() + DEADLINE
            # Behind a migration that waits for its lock, these reads would wait as long as that.
            while not any("Try 4 met contention" in text for text in caplog.messages):
                assert time.monotonic() < end, "the wait was not logged"
                execute("SELECT address FROM adoption_parcel WHERE id = 1")
            assert "status" not in shape("adoption_parcel")[0]
        migration.result(DEADLINE)
    assert parcel.objects.filter(status="paused").count() == 5


@instant_only
def test_what_broke_off_between_two_statements_is_taken_up_again(
    project: Project, parcel: Any
) -> None:
    execute(
        "ALTER TABLE adoption_parcel ADD COLUMN status varchar(10) NOT NULL DEFAULT 'paused',"
        " ADD COLUMN iteration integer NOT NULL DEFAULT 0"
    )
    project.adopt("adoption.Parcel")
    project.migrate()
    parcel.objects.create(address="new")
    assert sorted(parcel.objects.values_list("status", flat=True)) == ["open"] + ["paused"] * 5
    again = shape("adoption_parcel")
    forget("0003_adopt_parcel_index")
    project.migrate()
    assert shape("adoption_parcel") == again


@instant_only
def test_rows_that_others_add_while_it_waits_are_open(project: Project, parcel: Any) -> None:
    """A reader that waited for the columns may keep the table in use for long."""
    project.adopt("adoption.Parcel", "--existing", "complete")
    waiting = "state LIKE '%%metadata lock' AND db = DATABASE()"
    waiting = f"SELECT COUNT(*) = %s FROM information_schema.processlist WHERE {waiting}"
    with ExitStack() as reading:
        with held_open(read := lambda: execute("SELECT 1 FROM adoption_parcel")):
            migration = elsewhere(project.migrate, "0002")
            wait_until(lambda: value_of(waiting, [1]))
            reader = elsewhere(reading.enter_context, held_open(read))
            # The migration waits for a second at a time: if that ends first, the reader comes in before it.
            wait_until(lambda: reader.done() or value_of(waiting, [2]))
        reader.result(DEADLINE)
        execute("INSERT INTO adoption_parcel (address) VALUES ('new')")
    migration.result(DEADLINE)
    assert parcel.objects.get(address="new").status == "open"


@instant_only
def test_a_table_that_would_be_copied_is_refused(project: Project, parcel: Any) -> None:
    # The servers copy a table of compressed rows.
    execute("ALTER TABLE adoption_parcel ROW_FORMAT=COMPRESSED")
    before = shape("adoption_parcel")
    project.adopt("adoption.Parcel")
    with pytest.raises(DatabaseError, match="INSTANT"):
        project.migrate()
    assert shape("adoption_parcel") == before


@concurrent_only
def test_an_index_that_was_not_built_to_the_end_is_built_again(
    project: Project, parcel: Any
) -> None:
    project.adopt("adoption.Parcel")
    project.migrate("0002")
    name = next(iter(one.name for one in parcel._meta.indexes))
    execute(f'CREATE INDEX "{name}" ON adoption_parcel (status)')
    execute(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '\"{name}\"'::regclass")
    project.migrate()
    assert shape("adoption_parcel")[1][name][0] == ["status", "priority", "not_before", "id"]
    assert value_of(f"SELECT indisvalid FROM pg_index WHERE indexrelid = '\"{name}\"'::regclass")


@concurrent_only
def test_a_migration_in_a_transaction_is_refused(project: Project, parcel: Any) -> None:
    project.adopt("adoption.Parcel")
    text = (project.folder / "0002_adopt_parcel.py").read_text(encoding="utf-8")
    project.write("0002_adopt_parcel", text.replace("atomic = False", "atomic = True"))
    with pytest.raises(ImproperlyConfigured, match="set atomic = False on its migration"):
        project.migrate()


@concurrent_only
def test_a_lost_connection_is_the_error_that_is_told(project: Project, parcel: Any) -> None:
    project.adopt("adoption.Parcel")
    project.migrate("0002")
    # The build waits for this transaction.
    with held_open(lambda: execute("UPDATE adoption_parcel SET address = 'new'")):
        migration = elsewhere(project.migrate)
        building = "FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%%' AND state = 'active'"
        wait_until(lambda: execute(f"SELECT pg_terminate_backend(pid) {building}"))
        with pytest.raises(DatabaseError, match="terminating connection"):
            migration.result(DEADLINE)
