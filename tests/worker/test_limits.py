"""What a worker is for, and when it ends by itself: filters, one look, limits of rows and time, drains."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from django.db import connection

from django_taskclaim.switch import pause
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True, databases="__all__")]

Start = Callable[..., Worker]

#: What a busy machine may need from a process's start to the command's first line.
SLOW = 3.0


@pytest.mark.parametrize("mode", [[], ["--in-process"]], ids=["supervised", "in-process"])
def test_a_filter_travels_to_the_processes(start_worker: Start, mode: list[str]) -> None:
    """Only rows that match are claimed, and the drain waits for no others."""
    wanted, others = jobs(3, note="a,b"), jobs(3, note="x")
    worker = start_worker("--drain", "--filter", "note__startswith=a", *mode)
    assert worker.wait() == 0
    assert set(Job.objects.filter(status="complete").values_list("pk", flat=True)) == set(wanted)
    assert set(Job.objects.open().values_list("pk", flat=True)) == set(others)


def test_a_drain_ends_in_3_for_its_own_rows_only(start_worker: Start) -> None:
    """A paused model is work left if rows match the filter, and nothing to speak of if none do."""
    jobs(1, note="x")
    pause(Job)
    assert start_worker("--drain", "--in-process", "--filter", "note=x").wait() == 3
    assert start_worker("--drain", "--in-process", "--filter", "note=y").wait() == 0


@pytest.mark.parametrize("mode", [[], ["--in-process"]], ids=["supervised", "in-process"])
def test_once_is_one_batch(start_worker: Start, mode: list[str]) -> None:
    """One batch is claimed, done, and the process ends with 0, whatever is left."""
    jobs(5)
    assert start_worker("--once", "--batch-size", "2", *mode).wait() == 0
    assert states() == {"complete": 2, "open": 3}
    Job.objects.all().delete()
    assert start_worker("--once", *mode).wait() == 0


def test_once_is_one_batch_for_each_process(start_worker: Start) -> None:
    jobs(9)
    assert start_worker("--once", "--batch-size", "2", "--processes", "2").wait() == 0
    assert states() == {"complete": 4, "open": 5}


def test_once_has_no_second_look_by_a_replacement(start_worker: Start) -> None:
    """A process that dies over its batch is not replaced, and the exit code tells of it."""
    (poison,) = jobs(1, "die")
    jobs(3)
    assert start_worker("--once", "--batch-size", "1").wait() == 1
    assert Ledger.objects.get().key == str(poison)


def test_rows_are_limited_across_processes_that_died(start_worker: Start) -> None:
    """What a dead process had claimed counts: its replacement gets the rest, also right after the claim."""
    jobs(1, "die", priority=1)
    jobs(9)
    worker = start_worker("--max-rows", "5", "--batch-size", "1", TASKCLAIM_TEST_ATTEMPTS="1")
    assert worker.wait() == 0
    claims = worker.events("claimed")
    assert sum(event["rows"] for event in claims) == 5
    assert len({event["pid"] for event in claims}) == 2


def test_a_limit_that_a_dead_process_has_used_up_is_reported(start_worker: Start) -> None:
    """Nobody follows a process that has claimed all it may; it did not end as asked."""
    jobs(3, "die")
    worker = start_worker("--max-rows", "3", "--batch-size", "3")
    assert worker.wait() == 1
    assert Ledger.objects.count() == 1


def test_time_is_limited(start_worker: Start) -> None:
    """After the time no claim begins; the rows claimed before are done and the exit code is 0."""
    jobs(2000, "sleep:0.1")
    worker = start_worker("--max-time", "10", "--batch-size", "3")
    assert worker.wait(60) == 0
    assert states().keys() == {"complete", "open"}
    assert max(event["at"] for event in worker.events("claimed")) < worker.began + 10 + SLOW


def test_a_process_that_dies_after_the_time_is_not_replaced(start_worker: Start) -> None:
    jobs(1, "sleep:90")
    worker = start_worker("--max-time", "10")
    wait_until(Ledger.objects.exists)
    wait_until(lambda: time.time() > worker.began + 10 + SLOW, 30)
    os.kill(worker.children()[0], signal.SIGKILL)
    assert worker.wait(5) == 0


def test_an_empty_queue_is_drained_at_once_by_many(start_worker: Start) -> None:
    """Nothing to do is no reason to wait for a poll: all processes end, and so does the supervisor."""
    worker = start_worker("--processes", "4", "--drain", "--poll", "300")
    assert worker.wait(60) == 0


def test_a_handler_that_ends_the_process_looks_like_no_end(start_worker: Start) -> None:
    """``os._exit(0)`` in a handler is a death: the process is replaced, and the drain goes on."""
    jobs(1, "die:0", priority=1)
    good = jobs(3)
    worker = start_worker(
        "--drain", "--batch-size", "1", "--lease", "2", TASKCLAIM_TEST_ATTEMPTS="1"
    )
    assert worker.wait(60) == 0
    assert Job.objects.filter(pk__in=good, status="complete").count() == 3
    assert states() == {"complete": 3, "failed": 1}


# Connections


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs a server that names clients")
def test_it_opens_no_more_connections_than_it_says(process_env: dict[str, str]) -> None:
    """Two processes of three threads, each of which asks the database: counted on the server until they end."""
    jobs(300, "sleep:0.02")
    words = ["claimworker", "testapp.Job", "--drain", "--processes", "2", "--threads", "3"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "django", *words],
        env=process_env | {"PGAPPNAME": "counted-run"},
        stdout=subprocess.PIPE,
        text=True,
    )
    seen: set[int] = set()

    def is_over() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'counted-run'"
            )
            seen.add(cursor.fetchone()[0])
        return worker.poll() is not None

    with worker:
        try:
            wait_until(is_over, every=0.005)
        finally:
            worker.kill()
        assert worker.stdout is not None
        said = worker.stdout.read()
    (most,) = re.findall(r"at most (\d+) database connections", said)
    assert worker.returncode == 0
    # Of each process: one a thread, one to claim, one for the service.
    assert int(most) == 2 * (3 + 2)
    assert 2 * 3 < max(seen) <= int(most)
