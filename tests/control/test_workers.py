"""Real workers: what they write for the control room, and how they follow what a person commands."""

import os
import re
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_taskclaim.control.audit import send_command
from django_taskclaim.control.reading import acts, history
from django_taskclaim.db import DatabaseLater
from django_taskclaim.models import WorkerProcess
from django_taskclaim.switch import set_overrides
from tests.control.test_throughput import total
from tests.limits.conftest import beside
from tests.testapp.models import Job
from tests.worker.conftest import Start, Worker, jobs, start_worker, states, wait_until

__all__ = ["start_worker"]

pytestmark = pytest.mark.once


def held() -> Any:
    return Job.objects.filter(status="processing")


def change(**values: Any) -> None:
    set_overrides(Job, by="ada", using="default", **values)


def listed(number: int = 1) -> list[str]:
    """Wait until so many worker processes have reported, and return their names."""
    names = WorkerProcess.objects.order_by("name").values_list("name", flat=True)
    wait_until(lambda: len(names.all()) == number, what=f"{number} workers")
    return list(names.all())


def claims(worker: Worker) -> list[int]:
    return [record["rows"] for record in worker.events("claimed")]


def follows(worker: Worker, rows: int) -> None:
    """Wait until a claim that begins from now on takes so many rows."""
    before = len(claims(worker))
    wait_until(lambda: rows in claims(worker)[before:], what=f"a batch of {rows}")


# Throughput


def test_workers_write_what_they_did(start_worker: Start, tmp_path: Path) -> None:
    """A supervisor with two processes and a worker beside it, their last seconds too, by the service connection."""
    log = tmp_path / "statements"
    jobs(200)
    jobs(6, "permanent")
    workers = [
        start_worker("--drain", "--batch-size", "20", *mode, TASKCLAIM_TEST_STATEMENTS=str(log))
        for mode in (["--processes", "2"], ["--in-process"])
    ]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert states() == {"complete": 200, "failed": 6}
    assert [total(name) for name in ("done", "failed", "errors")] == [200, 6, 6]
    # What looks at the start whether all columns are there only reads.
    writes = re.findall(
        r"^(.*): (?:INSERT INTO|UPDATE) .taskclaim_throughput", log.read_text(), re.M
    )
    assert set(writes) == {"taskclaim-service"}


# Overrides


def test_a_running_worker_follows_batch_size_lease_and_hours(start_worker: Start) -> None:
    """And goes back to its own where they are taken away."""
    jobs(3000, "sleep:0.2")
    worker = start_worker("--threads", "4", "--batch-size", "20")
    wait_until(lambda: 20 in claims(worker))
    change(batch_size=3, lease=300)
    follows(worker, 3)
    longer = Job.objects.filter(expires_at__gt=DatabaseLater(timedelta(seconds=200)))
    wait_until(longer.exists, what="the longer lease")
    change(batch_size=None, lease=None, hours=beside(1, 2))
    stopped = "is throttled: outside the hours"
    wait_until(lambda: any(stopped in event["text"] for event in worker.events()))
    change(hours=None)
    follows(worker, 20)


# Commands


@pytest.mark.promise(11)
def test_a_worker_drains_and_stops_as_it_is_told(start_worker: Start) -> None:
    """The supervisor starts no process in place of one that left, and ends with the last."""
    jobs(100, "sleep:0.2")
    worker = start_worker("--processes", "2", "--batch-size", "10")
    first, second = listed(2)
    send_command(first, "drain", by="ada", reason="new version", using="default")
    wait_until(lambda: not WorkerProcess.objects.filter(pk=first).exists(), what="one is gone")
    (act,) = acts(Job, using="default")
    assert (act.act, act.key, act.reason) == ("worker command", first, "drain: new version")
    # All that it had claimed got done.
    assert worker.events("released") == []
    assert worker.process.poll() is None

    jobs(400, "sleep:0.2")
    taken = len(claims(worker))
    wait_until(lambda: len(claims(worker)) > taken, what="the other goes on")
    send_command(second, "stop", by="ada", using="default")
    assert worker.wait() == 0
    assert set(states()) == {"complete", "open"}
    assert {record["reason"] for record in worker.events("released")} == {"not started"}


# History


@pytest.mark.promise(5, 7)
def test_the_history_of_a_killed_worker_explains_the_second_run(start_worker: Start) -> None:
    (key,) = jobs(1, "stay")
    settings = {"DJANGO_SETTINGS_MODULE": "tests.control.worker_settings"}
    first = start_worker("--lease", "8", **settings)
    (name,) = listed()
    wait_until(lambda: first.events("stays"), what="it runs")
    os.killpg(first.pid, signal.SIGKILL)
    second = start_worker("--drain", "--lease", "8", **settings)
    wait_until(lambda: second.events("stays"), what="it runs again")
    Job.objects.update(act="work")
    assert second.wait() == 0
    events = history(Job, key, using="default")
    # It is written after the commit, when another thread may have claimed the row.
    (expired,) = [event for event in events if event.event == "expired"]
    events.remove(expired)
    assert [(event.event, event.iteration) for event in events] == [
        *(("claimed", 0), ("claimed", 1), ("completed", 1))
    ]
    assert [event.holder.startswith(name + "#") for event in events] == [True] + [False] * 2
    assert expired.holder.startswith(name + "#")
    assert expired.detail == "put back, one try counted"


# Without the app


def test_without_the_app_workers_ask_nothing_of_its_tables(
    start_worker: Start, tmp_path: Path
) -> None:
    log = tmp_path / "statements"
    jobs(10)
    settings = {
        "DJANGO_SETTINGS_MODULE": "tests.control.without_settings",
        "TASKCLAIM_TEST_STATEMENTS": str(log),
    }
    assert start_worker("--drain", "--in-process", **settings).wait() == 0
    assert states() == {"complete": 10}
    statements = log.read_text()
    assert "taskclaim_workerprocess" in statements
    for table in ("throughput", "operatoract", "claimevent"):
        assert table not in statements
