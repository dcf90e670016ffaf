"""New rows wake idle workers on PostgreSQL: once a transaction, after its commit, and only where it was asked for."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_taskclaim.db import notify
from django_taskclaim.db.notify import called_for, calls_within, can_hear, listen
from tests.querysets.support import Rival, value_of
from tests.testapp.models import Job, Photo, QuickJob, TextKey

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="needs LISTEN and NOTIFY"),
]

JOBS, OTHERS = Job._meta.db_table, TextKey._meta.db_table


@pytest.fixture
def hear(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Return what tells which tables another session was called for since the last time."""
    models = {Job, TextKey}
    called_for.update(models)
    monkeypatch.setattr(notify, "_caller", cache(notify._Caller))
    # No call is followed by silence.
    monkeypatch.setattr(notify, "SILENCE", 0.0)
    other = Rival()
    listen(other.connection)

    def new_calls() -> list[str]:
        # What was committed before has arrived with the answer to a statement.
        other.execute("SELECT 1")
        return sorted(calls_within(0.0, other.connection))

    yield new_calls
    other.close()
    called_for.difference_update(models)


Hear = Callable[[], list[str]]


def test_a_driver_whose_notifications_have_no_time_limit_hears_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service thread of a worker would fail again and again without a pause."""
    driver: Any = connection
    assert can_hear(connection)
    monkeypatch.setattr(driver.Database, "__version__", "3.1.20")
    assert not can_hear(connection)


def test_every_way_to_open_rows_calls(hear: Hear) -> None:
    """Inserts, a proxy's too, rows opened again by an operator; tables that nobody asked for do not."""
    with CaptureQueriesContext(connection) as queries:
        Job.objects.create()
    # Users count the queries of their code, and a call comes or does not come.
    assert len(queries) == 1
    assert hear() == [JOBS]
    Job.objects.bulk_create([Job(), Job()])
    assert hear() == [JOBS]
    QuickJob.objects.create()
    assert hear() == [JOBS]
    Job.objects.pause_rows()
    assert hear() == []
    Job.objects.resume_rows()
    assert hear() == [JOBS]
    (row,) = Job.objects.claim_batch(1)
    row.claim.complete()
    Photo.objects.create()
    assert hear() == []
    Job.objects.reset(complete=True)
    assert hear() == [JOBS]


def test_a_transaction_calls_once_and_only_after_its_commit(hear: Hear) -> None:
    with transaction.atomic():
        for _ in range(3):
            Job.objects.create()
        TextKey.objects.create(pk="a")
        assert hear() == []
    assert hear() == sorted([JOBS, OTHERS])
    with transaction.atomic():
        Job.objects.create()
        transaction.set_rollback(True)
    assert hear() == []
    with transaction.atomic():
        with transaction.atomic():
            Job.objects.create()
            transaction.set_rollback(True)
        Job.objects.create()
    assert hear() == [JOBS]


def test_a_process_that_inserts_all_the_time_calls_rarely(
    hear: Hear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "SILENCE", 3600.0)
    for _ in range(3):
        Job.objects.create()
    TextKey.objects.create(pk="a")
    assert hear() == sorted([JOBS, OTHERS])


def test_a_call_that_fails_breaks_nothing(hear: Hear, caplog: pytest.LogCaptureFixture) -> None:
    """The session ends between the commit and the call."""
    session = value_of("SELECT pg_backend_pid()")

    def end_it() -> None:
        with closing(Rival()) as other:
            other.execute("SELECT pg_terminate_backend(%s, 60000)", [session])

    with transaction.atomic():
        transaction.on_commit(end_it)
        Job.objects.create()
    assert "terminating connection" in caplog.text
    # As at the end of each request.
    connection.close_if_unusable_or_obsolete()
    assert Job.objects.count() == 1
