"""A result that the database refuses is the fault of its row, with any class of error."""

import random
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, connection

from tests.factories import make
from tests.querysets.support import clock, elsewhere, execute, set_raw
from tests.testapp.models import Author, Job, Ledger, Photo
from tests.worker.conftest import Worker, jobs, states, wait_until

pytestmark = pytest.mark.promise(10)

Work = Callable[..., int]
Start = Callable[..., Worker]

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
def test_the_row_whose_result_is_refused_fails_alone(work: Work, code: str) -> None:
    """Of 100 rows the database refuses one: 99 are complete, and that one failed with the driver's words."""
    before, after, value, said = OURS[code]
    refused = value()
    with prepared(before, after):
        bad = make(Photo, 100, note='"plain"')[57].pk

        def do(photo: Photo) -> None:
            photo.note = refused if photo.pk == bad else '"done"'

        work(Photo, do, update_fields=["note"], max_attempts=1, batch_size=100, lease=HOUR)
        others = Photo.objects.exclude(pk=bad)
        assert set(others.values_list("status", "note")) == {("complete", '"done"')}
        failed = Photo.objects.get(pk=bad)
        assert (failed.status, failed.attempts) == ("failed", 1)
        assert re.search(said, failed.last_error)


def test_a_failure_whose_text_is_refused_is_written_without_it(work: Work) -> None:
    with prepared(*refusing("NEW.last_error <> ''")):
        bad = make(Photo, 10)[3].pk

        def do(photo: Photo) -> None:
            if photo.pk == bad:
                raise ValueError("not this one")

        work(Photo, do, lease=HOUR, max_attempts=1)
    assert Photo.objects.progress().complete == 9
    photo = Photo.objects.get(pk=bad)
    assert (photo.status, photo.attempts, photo.last_error) == ("failed", 1, "")


#: By vendor, what a row's trigger does until it is cancelled, which sessions do it, and how an operator cancels them.
CANCEL = {
    "postgresql": (
        "PERFORM pg_sleep(600)",
        "pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()",
        "SELECT pg_cancel_backend(%s)",
    ),
    "mysql": (
        "DO SLEEP(600)",
        "id FROM information_schema.processlist WHERE state = 'User sleep' AND db = database()",
        "KILL QUERY %s",
    ),
}


@pytest.mark.promise(12)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server that cancels statements")
def test_a_statement_that_an_operator_cancels_charges_nobody(work: Work) -> None:
    """The result is written later; the trigger sleeps until the operator has left a mark."""
    slow, sessions, cancel = CANCEL[connection.vendor]
    condition = "NEW.status = 'complete' AND NOT EXISTS (SELECT 1 FROM testapp_author)"
    before, after = refusing(condition)

    def sleeping() -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {sessions}")
            return [number for (number,) in cursor.fetchall()]

    def operate() -> None:
        (session,) = wait_until(sleeping)
        Author.objects.create(name="a mark")
        execute(cancel, [session])

    with prepared([RAISING.sub(slow, one) for one in before], after):
        make(Photo, 1)
        operator = elsewhere(operate)
        work(Photo, lambda photo: None, lease=HOUR, max_attempts=1)
        operator.result(60)
    assert list(Photo.objects.values_list("status", "attempts")) == [("complete", 0)]


needs_read_only = pytest.mark.skipif(
    READ_ONLY is None, reason="needs a server that can be made read-only"
)


@needs_read_only
@pytest.mark.promise(12)
def test_a_server_that_may_not_write_is_no_fault_of_the_rows(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a failover: results are kept until it writes again, and nobody is charged."""
    ran: list[Any] = []
    before, after = refusing("NEW.status = 'complete'", READ_ONLY or "")

    def fail_over() -> None:
        wait_until(lambda: "claiming and writing" in caplog.text)
        for statement in after:
            execute(statement)

    make(Photo, 10)
    with prepared(before, []):
        server = elsewhere(fail_over)
        work(Photo, lambda photo: ran.append(photo.pk), lease=HOUR)
        server.result(60)
    assert set(Photo.objects.values_list("status", "attempts", "iteration")) == {("complete", 0, 0)}
    assert len(ran) == 10


@needs_read_only
@pytest.mark.promise(12)
def test_a_time_limit_ends_a_worker_whose_results_cannot_be_written(work: Work) -> None:
    """After the grace period the rows go back, uncharged."""
    make(Photo, 3)
    with prepared(*refusing("NEW.status = 'complete'", READ_ONLY or "")):
        work(Photo, lambda photo: None, "--max-time", "2", "--grace", "1", lease=HOUR)
    assert set(Photo.objects.values_list("status", "attempts")) == {("open", 0)}


@needs_read_only
def test_a_handler_that_writes_where_it_may_only_read_fails(work: Work) -> None:
    """Its error is that of a read-only server, but the rows' own table takes writes."""
    make(Photo, 1)

    def do(photo: Photo) -> None:
        execute("START TRANSACTION READ ONLY")
        try:
            Photo.objects.filter(pk=photo.pk).update(note="written")
        finally:
            execute("ROLLBACK")

    work(Photo, do, lease=HOUR, max_attempts=1)
    assert Photo.objects.get().status == "failed"


# Beside results


@pytest.mark.promise(11)
def test_a_row_that_cannot_go_back_keeps_no_other(start_worker: Start) -> None:
    """A stop gives back the other rows that have not started."""
    with prepared(*refusing("NEW.note = 'no' AND NEW.status = 'open'", table="testapp_job")):
        jobs(1, "stay", priority=1)
        jobs(8)
        jobs(1, note="no")
        worker = start_worker("--in-process", "--lease", "3600", "--grace", "600")
        wait_until(lambda: Ledger.objects.exists() and states() == {"processing": 10})
        worker.signal(signal.SIGTERM)
        wait_until(lambda: states() == {"open": 8, "processing": 2})
        Job.objects.filter(act="stay").update(act="work")
        worker.wait()
    assert states() == {"open": 8, "processing": 1, "complete": 1}
    assert worker.events("refused")


def test_a_table_that_lacks_a_column_keeps_no_other_model_from_its_rows(
    start_worker: Start,
) -> None:
    """The rows of the other model are claimed, and put back where their worker died."""
    jobs(1)
    start_worker("--in-process", model="testapp.TextKey testapp.Job")
    wait_until(lambda: states() == {"complete": 1}, what="the worker has begun")
    renamed = "ALTER TABLE testapp_textkey RENAME COLUMN {} TO {}"
    before, after = renamed.format("expires_at", "gone"), renamed.format("gone", "expires_at")
    with prepared([before], [after]):
        jobs(2)
        for row in Job.objects.claim_batch(1):
            set_raw(row, "expires_at", clock("-1 HOUR"))
        wait_until(lambda: states() == {"complete": 3})


@pytest.mark.promise(3)
@pytest.mark.django_db(transaction=True)
def test_a_view_gets_the_error_and_nothing_is_half_written() -> None:
    """The session of the caller goes on."""
    with prepared(*refusing("NEW.note = 'no'")):
        make(Photo, 9)
        rows = Photo.objects.claim_batch(9)
        session = connection.connection
        rows[4].note = "no"
        with pytest.raises(DatabaseError):
            Photo.objects.complete(rows, update_fields=["note"])
        assert connection.connection is session
    assert Photo.objects.progress().processing == 9
    rows[4].note = "yes"
    assert Photo.objects.complete(rows, update_fields=["note"]) == 9
