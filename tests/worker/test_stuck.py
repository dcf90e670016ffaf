"""Handlers that are stuck while they hold their own row locked: the server ends their session, asked from outside."""

import signal
from collections.abc import Callable

import pytest
from django.db import connection, transaction

from tests.testapp.models import Effect, Job
from tests.worker.conftest import Worker, jobs, states, wait_until

Start = Callable[..., Worker]

pytestmark = pytest.mark.skipif(
    not connection.features.has_select_for_update,
    reason="no row locks, and no sessions that could be ended",
)


def test_a_row_that_its_own_handler_has_locked_is_failed_in_time(start_worker: Start) -> None:
    """The overrun row is failed by its timeout, not by its lease, and what its transaction wrote is gone."""
    jobs(1, "hold:60")
    worker = start_worker(
        "--drain",
        "--lease",
        "60",
        "--grace",
        "1",
        model="testapp.AtomicJob",
        TASKCLAIM_TEST_TIMEOUT="1",
        TASKCLAIM_TEST_ATTEMPTS="1",
    )
    wait_until(lambda: states() == {"failed": 1}, 50)
    assert worker.wait() == 0
    job = Job.objects.get()
    assert "ran longer" in job.last_error
    assert job.note == ""
    assert not Effect.objects.exists()


def test_the_end_of_the_grace_frees_a_locked_row(start_worker: Start) -> None:
    """A row that is cut short goes back although its handler has it locked; its session is ended first."""
    jobs(1, "hold:60")
    worker = start_worker("--grace", "1", model="testapp.AtomicJob")
    wait_until(lambda: states().get("processing"))
    wait_until(lambda: is_locked(Job.objects.get().pk), what="the handler holds its row")
    worker.signal(signal.SIGTERM)
    assert worker.wait(8) == 1
    assert states() == {"open": 1}
    assert Job.objects.get().attempts == 0
    (released,) = worker.events("released")
    assert released["reason"] == "cut short"


def is_locked(key: int) -> bool:
    with transaction.atomic():
        rows = Job.objects.select_for_update(skip_locked=True).filter(pk=key)
        return not list(rows)
