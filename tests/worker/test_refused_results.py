"""A result that the database refuses is the fault of its row, with any class of error."""

import contextlib
import random
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections

from django_taskclaim.handlers import Handler, handler, unregister
from django_taskclaim.testing import run_due
from django_taskclaim.tokens import clock
from django_taskclaim.worker.crew import Crew
from django_taskclaim.worker.heartbeat import Vitals
from django_taskclaim.worker.inflight import units_of
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.overruns import abandon
from tests.behaviour.support import execute
from tests.factories import make
from tests.testapp.models import Job, Photo, UuidKey
from tests.worker.conftest import Worker, jobs, states, wait_until

StartCrew = Callable[..., Any]

HOUR = 3600
REFUSED = "this one not"
#: What the trigger of ``refusing`` answers with.
ANSWERS = {"postgresql": "54000", "mysql": "1644", "sqlite": "1"}
#: What a server that may not write answers with; SQLite has none that a trigger could give.
READ_ONLY = {"postgresql": "25006", "mysql": "1290"}.get(connection.vendor)


def refusing(
    condition: str, code: str = ANSWERS[connection.vendor], table: str = "testapp_photo"
) -> tuple[list[str], list[str]]:
    """Return what makes a trigger that answers with *code* to updates that meet *condition*, and what drops it."""
    before = f"CREATE TRIGGER refuses BEFORE UPDATE ON {table}"
    if connection.vendor == "postgresql":
        raises = f"RAISE EXCEPTION '{REFUSED}' USING ERRCODE = '{code}'"
        body = f"BEGIN IF {condition} THEN {raises}; END IF; RETURN NEW; END"
        return [
            f"CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $${body}$$",
            f"{before} FOR EACH ROW EXECUTE FUNCTION refuses()",
        ], [f"DROP TRIGGER refuses ON {table}", "DROP FUNCTION refuses()"]
    if connection.vendor == "mysql":
        signal = f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = '{REFUSED}'"
        body = f"FOR EACH ROW IF {condition} THEN {signal}; END IF"
        return [f"{before} {body}"], ["DROP TRIGGER refuses"]
    return [f"{before} WHEN {condition} BEGIN SELECT json('no'); END"], ["DROP TRIGGER refuses"]


#: What a trigger of ``refusing`` does, to be replaced by something else.
RAISING = re.compile(r"RAISE EXCEPTION .*?(?=; END IF)|SIGNAL .*?(?=; END IF)")


@contextmanager
def prepared(before: list[str], after: list[str]) -> Iterator[None]:
    for statement in before:
        execute(statement)
    try:
        yield
    finally:
        for statement in after:
            execute(statement)


def most_of_a_packet() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        return int(cursor.fetchone()[0])


def words(length: int) -> str:
    """Return text that no compression makes short, of words that occur once."""
    return " ".join(f"{random.Random(0).getrandbits(64):x}{n:x}" for n in range(length // 20))


PLAIN = "ALTER TABLE testapp_photo MODIFY note longtext CHARACTER SET utf8mb4 NOT NULL"

#: What prepares the table, what restores it, the value that is refused, and what the driver says of it.
REFUSALS: dict[str, dict[str, Any]] = {
    "postgresql": {
        "54000-index": (
            ["CREATE INDEX refuses ON testapp_photo (note)"],
            ["DROP INDEX refuses"],
            lambda: words(100_000),
            "index row",
        ),
        "54000-tsvector": (
            ["CREATE INDEX refuses ON testapp_photo USING gin (to_tsvector('simple', note))"],
            ["DROP INDEX refuses"],
            lambda: words(2_000_000),
            "too long for tsvector",
        ),
    },
    "mysql": {
        "1644": (*refusing("NEW.note = 'refused'"), lambda: "refused", REFUSED),
        "1366": (
            ["ALTER TABLE testapp_photo MODIFY note longtext CHARACTER SET latin1 NOT NULL"],
            [PLAIN],
            lambda: "\N{GRINNING FACE}",
            "1366",
        ),
        # MariaDB has a CHECK there.
        "3140": (
            ["ALTER TABLE testapp_photo MODIFY note json"],
            ["DELETE FROM testapp_photo", PLAIN],
            lambda: "NaN",
            "3140|4025",
        ),
        "1153": ([], [], lambda: "x" * (most_of_a_packet() + 1000), "1153|2006|2013"),
    },
    "sqlite": {"1": (*refusing("NEW.note = 'refused'"), lambda: "refused", "malformed JSON")},
}
OURS = REFUSALS[connection.vendor]


@pytest.mark.parametrize("code", OURS)
def test_the_row_whose_result_is_refused_fails_alone(start_crew: StartCrew, code: str) -> None:
    """Of 100 rows the database refuses one: 99 are complete, and that one failed with the driver's words."""
    before, after, value, said = OURS[code]
    refused = value()
    with prepared(before, after):
        bad = make(Photo, 100, note='"plain"')[57].pk

        def do(photo: Photo) -> None:
            photo.note = refused if photo.pk == bad else '"done"'

        began = time.monotonic()
        how: Any = {"update_fields": ["note"], "max_attempts": 1, "batch_size": 100, "lease": HOUR}
        crew = start_crew(Photo, do, **how)
        wait_until(crew.has_ended)
        print(f"{code}: {time.monotonic() - began:.1f} s")
        others = Photo.objects.exclude(pk=bad).values_list("status", "note")
        assert set(others) == {("complete", '"done"')}
        failed = Photo.objects.get(pk=bad)
        assert (failed.status, failed.attempts) == ("failed", 1)
        assert re.search(said, failed.last_error)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_real_processes_write_the_others(
    start_worker: Callable[..., Worker], processes: str
) -> None:
    """Results come in batches of many claims, and the refused one is found in them."""
    before, after = refusing("NEW.act = 'work:no' AND NEW.status = 'complete'", table="testapp_job")
    jobs(57)
    (bad,) = jobs(1, "work:no")
    jobs(42)
    began = time.monotonic()
    with prepared(before, after):
        worker = start_worker("--drain", "--processes", processes, TASKCLAIM_TEST_ATTEMPTS="1")
        assert worker.wait() == 0
    print(f"{processes} processes: {time.monotonic() - began:.1f} s with their start")
    assert states() == {"complete": 99, "failed": 1}
    assert Job.objects.failed().get().pk == bad


#: By vendor, what a row's trigger does to take a moment, and the option that bounds a statement: far beyond one moment,
#: so that a busy machine cuts no single row short, and below twenty.
SLOW = {
    "postgresql": ("PERFORM pg_sleep(0.5)", ("options", "-c statement_timeout=6000")),
    "mysql": ("DO SLEEP(0.5)", ("init_command", "SET max_statement_time = 6")),
}


def limited(vendor: str) -> tuple[str, tuple[str, str]]:
    """Return what takes a moment, and the option of a connection that bounds a statement; or skip."""
    if vendor == "sqlite" or (vendor == "mysql" and not connection.mysql_is_mariadb):  # type: ignore[attr-defined]
        pytest.skip("needs a server that bounds the time of an UPDATE")
    return SLOW[vendor]


def test_a_batch_that_takes_too_long_is_written_in_parts(
    start_crew: StartCrew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is refused by itself, so all are complete."""
    slow, (option, value) = limited(connection.vendor)
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], option, value)
    before, after = refusing("NEW.status <> 'complete'")
    before = [RAISING.sub(slow, one).replace("<>", "=") for one in before]
    with prepared(before, after):
        make(Photo, 20)
        began = time.monotonic()
        crew = start_crew(Photo, lambda photo: None, batch_size=20, lease=HOUR, max_attempts=1)
        wait_until(crew.has_ended)
        print(f"{time.monotonic() - began:.1f} s")
    assert set(Photo.objects.values_list("status", "attempts")) == {("complete", 0)}


#: By vendor, what a row's trigger does to take a moment, which sessions are in it, and how an operator cancels that.
CANCEL = {
    "postgresql": (
        "PERFORM pg_sleep(5)",
        "pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()",
        "SELECT pg_cancel_backend(%s)",
    ),
    "mysql": (
        "DO SLEEP(5)",
        "id FROM information_schema.processlist WHERE state = 'User sleep' AND db = database()",
        "KILL QUERY %s",
    ),
}


@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server that cancels statements")
def test_a_statement_that_is_cancelled_charges_nobody(start_crew: StartCrew) -> None:
    """By an operator, or by a server that stood still for longer than a statement may take."""
    slow, sessions, cancel = CANCEL[connection.vendor]
    before, after = refusing("NEW.status = 'complete'")

    def sleeping() -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {sessions}")
            return [number for (number,) in cursor.fetchall()]

    with prepared([RAISING.sub(slow, one) for one in before], after):
        make(Photo, 1)
        crew = start_crew(Photo, lambda photo: None, lease=HOUR, max_attempts=1)
        (session,) = wait_until(sleeping)
        execute(cancel, [session])
        wait_until(crew.has_ended)
    assert list(Photo.objects.values_list("status", "attempts")) == [("complete", 0)]


@pytest.mark.django_db(transaction=True)
def test_a_session_that_ends_while_the_service_hears_nothing_charges_nobody(
    start_crew: StartCrew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover that cuts one connection, and leaves another without an answer."""
    crew = start_crew(Photo, lambda photo: None, lease=HOUR)
    monkeypatch.setattr(crew.service, "settled_since", lambda moment, timeout: False)
    assert crew.service.was_away_since(clock())


def test_a_file_of_the_handlers_own_is_no_server(start_crew: StartCrew, tmp_path: Path) -> None:
    """Its driver says so by the code of a database that can write nothing; the row fails all the same."""
    upload = tmp_path / "upload"
    upload.write_bytes(b"no database" * 100)

    def do(photo: Photo) -> None:
        with contextlib.closing(sqlite3.connect(upload)) as file:
            file.execute("SELECT * FROM measures")

    make(Photo, 1)
    wait_until(start_crew(Photo, do, lease=HOUR, max_attempts=1).has_ended)
    photo = Photo.objects.get()
    assert (photo.status, photo.last_error) == ("failed", "file is not a database")


@pytest.mark.parametrize("text", ["refused", "accepted without"])
def test_a_failure_that_is_refused_is_no_trouble_either(
    start_crew: StartCrew, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is written without the text; where that is refused, too, it is said once, and the row is let go."""
    condition = "NEW.last_error <> ''" if text == "accepted without" else "NEW.status = 'failed'"
    with prepared(*refusing(condition)):
        bad = make(Photo, 10)[3].pk

        def do(photo: Photo) -> None:
            if photo.pk == bad:
                raise ValueError("not this one")

        crew = start_crew(Photo, do, batch_size=10, lease=HOUR, max_attempts=1)
        wait_until(crew.inflight.is_empty)
        wait_until(lambda: Photo.objects.filter(status="complete").count() == 9)
        wait_until(crew.inflight.is_empty)
        told = [one for one in caplog.records if getattr(one, "event", "") == "unrecorded"]
        photo = Photo.objects.get(pk=bad)
        if text == "refused":
            assert [one.keys for one in told] == [[str(bad)]]
            assert photo.status == "processing"
        else:
            assert told == []
            assert (photo.status, photo.attempts, photo.last_error) == ("failed", 1, "")


@pytest.mark.skipif(READ_ONLY is None, reason="needs a server that can be made read-only")
def test_a_server_that_may_not_write_is_no_fault_of_the_rows(
    start_crew: StartCrew, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sessions can still be used, as after a failover: results are kept, and nobody is charged."""
    ran: list[Any] = []
    with prepared(*refusing("NEW.status = 'complete'", READ_ONLY or "")):
        make(Photo, 10)
        crew = start_crew(Photo, lambda photo: ran.append(photo.pk), lease=HOUR, batch_size=10)
        wait_until(lambda: "claiming and writing" in caplog.text)
    wait_until(crew.has_ended)
    assert set(Photo.objects.values_list("status", "attempts", "iteration")) == {("complete", 0, 0)}
    assert len(ran) == 10


@pytest.mark.skipif(READ_ONLY is None, reason="needs a server that can be made read-only")
def test_a_handler_that_only_reads_where_it_writes_fails(start_crew: StartCrew) -> None:
    """Its error is that of a server that takes no writes, but the rows' own table takes them."""
    make(Photo, 1)

    def do(photo: Photo) -> None:
        execute("START TRANSACTION READ ONLY")
        try:
            Photo.objects.filter(pk=photo.pk).update(note="written")
        finally:
            execute("ROLLBACK")

    wait_until(start_crew(Photo, do, lease=HOUR, max_attempts=1).has_ended)
    assert Photo.objects.get().status == "failed"


@pytest.mark.skipif(READ_ONLY is None, reason="needs a server that can be made read-only")
def test_the_time_limit_counts_while_nothing_can_be_written(start_crew: StartCrew) -> None:
    """After a grace period the rows go back, uncharged."""
    with prepared(*refusing("NEW.status = 'complete'", READ_ONLY or "")):
        make(Photo, 3)
        end = {"ends_at": clock() + 2.0, "grace": timedelta(seconds=1)}
        crew = start_crew(Photo, lambda photo: None, lease=HOUR, options=end)
        wait_until(crew.has_ended)
        assert clock() >= end["ends_at"]  # type: ignore[operator]
        assert crew.finish() == 0
        assert set(Photo.objects.values_list("status", "attempts")) == {("open", 0)}


# Beside the writer


def test_what_is_refused_to_go_back_keeps_nothing_else(
    start_crew: StartCrew, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop gives back the other rows that have not started."""
    running, go_on = threading.Event(), threading.Event()

    def do(photo: Photo) -> None:
        running.set()
        go_on.wait(60)

    with prepared(*refusing("NEW.note = 'no' AND NEW.status = 'open'")):
        make(Photo, 9)
        make(Photo, 1, note="no")
        crew = start_crew(Photo, do, batch_size=10, lease=HOUR)
        assert running.wait(60)
        crew.stop()
        wait_until(lambda: states_of(Photo) == {"open": 8, "processing": 2})
        wait_until(lambda: not crew.service.has_to_give_back())
        go_on.set()
        wait_until(crew.is_idle)
    assert states_of(Photo) == {"open": 8, "processing": 1, "complete": 1}
    assert len([one for one in caplog.records if getattr(one, "event", "") == "refused"]) == 1


@pytest.mark.django_db(transaction=True)
def test_a_row_that_overran_is_let_go_where_its_failure_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is said once, and the service has nothing left to write."""
    with prepared(*refusing("NEW.status <> 'processing'")):
        make(Photo, 1)
        (unit,) = units_of(Handler(Photo, print), Photo.objects.claim_batch(1))
        unit.begin(unit.tasks)
        (overrun,) = abandon(unit)
        assert overrun.write("default", Vitals())
    assert [one for one in caplog.records if getattr(one, "event", "") == "unrecorded"]


@pytest.mark.django_db(transaction=True)
def test_a_table_that_lacks_a_column_keeps_no_other_model_from_its_rows(settings: Any) -> None:
    """Some drivers call that an operational error; the others are claimed, and put back where their worker died."""
    settings.TASKCLAIM = {"REAPER_INTERVAL": 0.5}
    models = (UuidKey, Photo)
    for model in models:
        handler(model, lease=2)(lambda row: None)
    make(Photo, 2)
    Photo.objects.claim_batch(1)
    execute("UPDATE testapp_photo SET expires_at = NULL WHERE status = 'processing'")
    crew = Crew(WorkerOptions(tuple(model._meta.label for model in models), "crew", "default"))
    renamed = "ALTER TABLE testapp_uuidkey RENAME COLUMN {} TO {}"
    before, after = renamed.format("expires_at", "gone"), renamed.format("gone", "expires_at")
    with prepared([before], [after]):
        crew.start()
        try:
            wait_until(lambda: states_of(Photo) == {"complete": 2})
        finally:
            crew.stop()
            crew.finish()
            for model in models:
                unregister(model)


@pytest.mark.django_db(transaction=True)
def test_run_due_finds_the_refused_row() -> None:
    handler(Photo, max_attempts=1)(lambda photo: None)
    try:
        with prepared(*refusing("NEW.note = 'no' AND NEW.status = 'complete'")):
            make(Photo, 9)
            make(Photo, 1, note="no")
            ran = run_due(Photo)
    finally:
        unregister(Photo)
    assert (ran.completed, ran.failed) == (9, 1)


@pytest.mark.django_db(transaction=True)
def test_a_view_hears_of_the_refusal_and_nothing_is_half_written() -> None:
    """The caller's session stays as it is."""
    with prepared(*refusing("NEW.note = 'no'")):
        make(Photo, 9)
        make(Photo, 1, note="no")
        rows = Photo.objects.claim_batch(9)
        session = connection.connection
        rows[4].note = "no"
        with pytest.raises(DatabaseError):
            Photo.objects.complete(rows, update_fields=["note"])
        assert connection.connection is session
    assert states_of(Photo) == {"processing": 9, "open": 1}
    rows[4].note = "yes"
    assert Photo.objects.complete(rows, update_fields=["note"]) == 9


def states_of(model: Any) -> dict[str, int]:
    return dict(Counter(model.objects.values_list("status", flat=True)))
