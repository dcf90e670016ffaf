"""A lock on what a result refers to holds up that result alone, and costs no lease."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from queue import Queue
from typing import Any

import pytest
from django.db import Error, connection, connections, transaction

from django_taskclaim.connecting import guard_connections
from django_taskclaim.worker.batch import PutBack, hold
from tests.companions.app.models import Task, TaskAudit
from tests.factories import make
from tests.querysets.models import Parcel, Stamp
from tests.querysets.support import ROW_LOCKS, Rival, elsewhere, execute, table_of
from tests.sessions import end_session
from tests.testapp.models import Author, OrderedByForeignKey, Photo
from tests.worker.conftest import wait_until, write_all, writer_of

pytestmark = [
    pytest.mark.promise(8, 10),
    pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks"),
]

LEASE = 10


def locking(statement: str, params: list[Any], wait: Callable[[], object]) -> Future[None]:
    """Let another session hold what *statement* locks until *wait* has returned; return once it has the lock."""
    locked = threading.Event()

    def hold() -> None:
        with closing(Rival()) as rival:
            rival.begin()
            rival.execute(statement, params)
            locked.set()
            wait()
            rival.commit()

    holder = elsewhere(hold)
    assert locked.wait(120)
    return holder


@contextmanager
def held_past_a_lease(statement: str, key: int, rows: Any) -> Iterator[None]:
    """Let another session hold what *statement* locks until all others are done and a lease has gone by."""

    def wait() -> None:
        held = rows.filter(status="processing")
        wait_until(lambda: (held.count(), rows.open().count()) == (1, 0))
        end = held.latest("expires_at").expires_at + timedelta(seconds=LEASE)
        wait_until(lambda: held.earliest("expires_at").expires_at > end)

    holder = locking(statement, [key], wait)
    yield
    holder.result(120)


#: An option of a connection under which its statements take 0.3 seconds at most; MySQL has none for those that write.
TIMEOUT = {
    "postgresql": ("options", "-c statement_timeout=300"),
    "mysql": ("init_command", "SET @none = 0 /*M! , max_statement_time = 0.3 */"),
}
LOCKS = {"row": "SELECT 1 FROM testapp_photo WHERE id = %s FOR UPDATE"}
if connection.vendor == "postgresql":
    LOCKS["table"] = "LOCK TABLE testapp_photo IN EXCLUSIVE MODE"


@pytest.mark.promise(12)
@pytest.mark.parametrize("lock", LOCKS)
def test_a_result_that_waits_for_a_lock_until_its_statement_ends_charges_nobody(
    work: Callable[..., int], monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], *TIMEOUT[connection.vendor])
    rows, ran = make(Photo, 3), list[Any]()

    def do(row: Any) -> None:
        ran.append(row.pk)
        if row.pk == rows[0].pk:
            params = [row.pk] if "%s" in LOCKS[lock] else []
            locking(LOCKS[lock], params, lambda: threading.Event().wait(4))

    work(Photo, do, lease=LEASE)
    assert sorted(ran) == [row.pk for row in rows]
    assert set(Photo.objects.values_list("status", "attempts")) == {("complete", 0)}


def test_a_locked_reference_holds_up_no_other_result(work: Callable[..., int]) -> None:
    """Somebody has the target of a foreign key locked: no row runs twice, none is charged."""
    locked = Author.objects.create(name="locked")
    rows = make(OrderedByForeignKey, 30)
    ran: list[Any] = []

    def do(row: Any) -> None:
        ran.append(row.pk)
        row.author_id = locked.pk if row.pk == rows[0].pk else None

    lock = "SELECT 1 FROM testapp_author WHERE id = %s FOR UPDATE"
    with held_past_a_lease(lock, locked.pk, OrderedByForeignKey.objects):
        work(OrderedByForeignKey, do, lease=LEASE, update_fields=["author"])
    assert set(OrderedByForeignKey.objects.values_list("status", "attempts", "iteration")) == {
        ("complete", 0, 0)
    }
    assert OrderedByForeignKey.objects.get(author=locked).pk == rows[0].pk
    assert sorted(ran) == sorted(row.pk for row in rows)


def test_a_locked_source_holds_up_no_other_result(work: Callable[..., int]) -> None:
    """The thread that writes the results claims as well, and writes the results of all other models."""
    tasks = [Task.objects.create() for _ in range(30)]
    for task in tasks:
        TaskAudit.objects.create(source=task, only=str(task.pk))

    def do(task: Task) -> None:
        task.note = "looked at"

    lock = f"SELECT 1 FROM {table_of(Task)} WHERE id = %s FOR UPDATE"
    with held_past_a_lease(lock, tasks[0].pk, TaskAudit.objects):
        work(TaskAudit, do, lease=LEASE, update_fields=["source__note"])
    assert set(TaskAudit.objects.values_list("status", "attempts", "source__note")) == {
        ("complete", 0, "looked at")
    }


def test_a_locked_child_holds_up_no_other_deletion(work: Callable[..., int]) -> None:
    """Somebody has a row locked that goes with one of 30: no row runs twice, and all are gone in the end."""
    rows = make(Parcel, 30)
    stamp = Stamp.objects.create(parcel=rows[0])
    ran: list[Any] = []
    lock = f"SELECT 1 FROM {table_of(Stamp)} WHERE id = %s FOR UPDATE"
    with held_past_a_lease(lock, stamp.pk, Parcel.objects):
        work(Parcel, lambda row: ran.append(row.pk), lease=LEASE, completion="delete")
    assert sorted(ran) == sorted(row.pk for row in rows)
    assert not Parcel.objects.exists()


def test_a_unique_value_that_another_transaction_takes_fails_its_row_alone(
    work: Callable[..., int],
) -> None:
    """Its result waits until that transaction has committed."""
    (other,) = make(Photo, 1, status="complete")
    rows = make(Photo, 30)
    photos = Photo.objects.exclude(pk=other.pk)

    def do(photo: Photo) -> None:
        photo.width = 7 if photo.pk == rows[0].pk else None

    execute("CREATE UNIQUE INDEX only_once ON testapp_photo (width)")
    try:
        take = "UPDATE testapp_photo SET width = 7 WHERE id = %s"
        with held_past_a_lease(take, other.pk, photos):
            work(Photo, do, lease=LEASE, update_fields=["width"], max_attempts=1)
    finally:
        on = " ON testapp_photo" if connection.vendor == "mysql" else ""
        execute(f"DROP INDEX only_once{on}")
    failed = photos.failed().get()
    assert (failed.pk, failed.attempts) == (rows[0].pk, 1)
    assert set(photos.exclude(pk=failed.pk).values_list("status", "attempts", "iteration")) == {
        ("complete", 0, 0)
    }


def test_a_server_that_is_away_as_a_session_is_ended_costs_no_row(transactional_db: None) -> None:
    """Two rows of a handler that overran go back. It has one of them locked, the other goes back first."""
    first, _ = make(Photo, 2)
    writer, inflight, handler = writer_of(Photo)
    threads: Queue[int] = Queue()
    leave = threading.Event()

    def hold_first() -> None:
        guard_connections(timedelta(minutes=5), ours_alone=False)
        with suppress(Error), transaction.atomic():
            Photo.objects.select_for_update().get(pk=first.pk)
            threads.put(threading.get_ident())
            leave.wait(120)
            raise Error

    # A claim passes over a row that is locked.
    rows = Photo.objects.claim_batch(2)
    overrun = elsewhere(hold_first)
    inflight.give_back(hold(handler, rows), PutBack("cut short"), threads.get(timeout=120))
    driver: Any = connection.connection
    ours = [driver.info.backend_pid if connection.vendor == "postgresql" else driver.thread_id()]

    def cut_off(execute: Callable[..., Any], statement: str, *words: Any) -> Any:
        if ours and ("KILL" in statement or "pg_terminate" in statement):
            assert elsewhere(end_session, ours.pop()).result(120)
        return execute(statement, *words)

    with connection.execute_wrapper(cut_off):
        write_all(writer)
    leave.set()
    overrun.result(120)
    assert not ours
    assert set(Photo.objects.values_list("status", "iteration")) == {("open", 1)}
