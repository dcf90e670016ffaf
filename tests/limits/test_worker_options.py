"""What limits a worker itself: filters, rows, time, connections."""

import re

import pytest
from django.db import connection

from django_taskclaim.switch import pause
from tests.commands import shell
from tests.querysets.support import elsewhere, value_of
from tests.testapp.models import Job
from tests.worker.conftest import Start, jobs, states, wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True, databases="__all__"),
]


@pytest.mark.promise(11)
def test_a_filter_holds_in_every_process(start_worker: Start) -> None:
    """Only rows that match are claimed; the drain waits for no others, and counts no others as left."""
    wanted, others = jobs(3, note="a,b"), jobs(3, note="x")
    assert start_worker("--drain", "--filter", "note__startswith=a").wait() == 0
    assert set(Job.objects.filter(status="complete").values_list("pk", flat=True)) == set(wanted)
    assert set(Job.objects.open().values_list("pk", flat=True)) == set(others)
    pause(Job)
    assert start_worker("--drain", "--filter", "note=y", "--in-process").wait() == 0
    assert start_worker("--drain", "--filter", "note=x", "--in-process").wait() == 3


def test_rows_are_limited_for_each_process(start_worker: Start) -> None:
    jobs(9)
    assert start_worker("--max-rows", "2", "--processes", "2").wait() == 0
    assert states() == {"complete": 4, "open": 5}


def test_time_is_limited(start_worker: Start) -> None:
    """The worker ends by itself although work is left, and the rows it had claimed are done."""
    jobs(2000, "sleep:0.1")
    worker = start_worker("--max-time", "5", "--batch-size", "3")
    assert worker.wait() == 0
    # On a busy machine it may have claimed none.
    assert "open" in states()
    assert states().keys() <= {"complete", "open"}


@pytest.mark.promise(13)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs a server that names clients")
def test_it_opens_no_more_connections_than_it_says(process_env: dict[str, str]) -> None:
    """Two processes of three threads, each of which asks the database: counted on the server until they end."""
    jobs(300, "sleep:0.02")
    words = ["claimworker", "testapp.Job", "--drain", "--processes", "2", "--threads", "3"]
    worker = elsewhere(shell, process_env | {"PGAPPNAME": "counted-run"}, *words)
    seen: set[int] = set()
    count = "SELECT COUNT(*) FROM pg_stat_activity"

    def is_over() -> bool:
        seen.add(value_of(f"{count} WHERE application_name = 'counted-run'"))
        return worker.done()

    wait_until(is_over, every=0.005)
    ended = worker.result()
    (stated,) = re.findall(r"at most (\d+) database connections", ended.stdout)
    assert ended.returncode == 0
    # Of each process: one a thread, one to claim, one for the service.
    assert int(stated) == 2 * (3 + 2)
    assert 2 * 3 < max(seen) <= int(stated)
