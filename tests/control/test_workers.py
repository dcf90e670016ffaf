"""Real workers: what they write for the control page, and how they follow it."""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import OperationalError, connection, transaction
from django.db.models import Sum

from django_taskclaim.control.models import ClaimEvent, ThroughputMinute, WorkerOrder
from django_taskclaim.control.orders import change_settings, order
from django_taskclaim.control.reading import acts, history, marks, throughput
from django_taskclaim.dialects import DatabaseLater
from django_taskclaim.models import Throttle, WorkerProcess
from django_taskclaim.overview import database_time
from django_taskclaim.worker.histogram import unpacked
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, start_worker, states, wait_until

__all__ = ["start_worker"]

Start = Callable[..., Worker]

pytestmark = pytest.mark.long

#: Within how many seconds a change must be followed, as promised.
PROMISED = 5.0

HOUR = timedelta(hours=1)


def sums() -> dict[str, Any]:
    names = ("done", "failed", "errors", "batches", "seconds")
    return ThroughputMinute.objects.aggregate(**{name: Sum(name) for name in names})


def change(**values: Any) -> None:
    change_settings(Job, values, by="ada", using="default")


def begun(worker: Worker) -> str:
    """Wait until the worker has done something, and return the name that it reports under."""
    wait_until(Ledger.objects.exists, what="a first run")
    return str(wait_until(lambda: WorkerProcess.objects.values_list("name", flat=True).first()))


def claims_since(worker: Worker, moment: float) -> list[int]:
    return [record["rows"] for record in worker.events("claimed") if record["at"] > moment]


# Throughput


def test_what_workers_wrote_is_what_they_did(start_worker: Start) -> None:
    """Two supervisors with two processes each; the last seconds of each are there, too."""
    jobs(400)
    jobs(6, "permanent")
    jobs(4, "fail")
    workers = [start_worker("--drain", "--processes", "2", "--batch-size", "20") for _ in "ab"]
    assert [worker.wait(90) for worker in workers] == [0, 0]
    assert states() == {"complete": 400, "failed": 10}
    found = sums()
    claims = [record for worker in workers[:1] for record in worker.events("claimed")]
    assert (found["done"], found["failed"], found["errors"]) == (400, 10, 6 + 3 * 4)
    assert found["batches"] == len(claims)
    assert sum(record["rows"] for record in claims) == 400 + 6 + 3 * 4
    durations = [unpacked(row.durations).total() for row in ThroughputMinute.objects.all()]
    assert sum(durations) == found["batches"]
    assert ThroughputMinute.objects.values("process").distinct().count() <= 4
    slots = throughput(Job, using="default", span=HOUR)
    assert sum(slot.done for slot in slots) == 400
    assert any(slot.p95 and slot.p50 and slot.p95 >= slot.p50 for slot in slots)


def test_a_worker_writes_while_it_works(start_worker: Start) -> None:
    jobs(500, "sleep:0.05")
    worker = start_worker()
    begun(worker)
    first = wait_until(lambda: sums()["done"], 15)
    wait_until(lambda: sums()["done"] > first, 15)
    rows = ThroughputMinute.objects.count()
    assert rows <= 2


def test_many_rows_cost_few_statements(start_worker: Start, tmp_path: Path) -> None:
    """However many rows: one statement every few seconds, a second one for the first of a minute."""
    log = tmp_path / "statements"
    jobs(5000)
    settings = {"TASKCLAIM_TEST_STATEMENTS": str(log), "model": "testapp.QuickJob"}
    began = time.monotonic()
    assert start_worker("--drain", **settings).wait(90) == 0
    took = time.monotonic() - began
    assert sums()["done"] == 5000
    said = [line for line in log.read_text().splitlines() if "taskclaim_throughput" in line]
    written = [line for line in said if "INSERT" in line or "UPDATE" in line]
    assert 0 < len(written) <= 2 * (took / 4 + 2)
    assert {line.partition(":")[0] for line in written} == {"taskclaim-service"}


# Live settings


def test_batch_size_and_lease_are_followed(start_worker: Start) -> None:
    jobs(600, "sleep:0.05")
    worker = start_worker("--batch-size", "20")
    begun(worker)
    change(batch_size=3, lease=300)
    moment = time.time()
    wait_until(lambda: 3 in claims_since(worker, moment), PROMISED, "a batch of three")
    assert set(claims_since(worker, time.time() - 0.5)) <= {3}
    held = Job.objects.filter(status="processing").order_by("-expires_at")
    wait_until(lambda: held[0].expires_at - held[0].claimed_at >= timedelta(seconds=299), 2)
    change(batch_size=None, lease=None)
    moment = time.time()
    wait_until(lambda: 20 in claims_since(worker, moment), PROMISED, "a batch of twenty")


def is_locked(key: int) -> bool:
    try:
        with transaction.atomic():
            return not list(Job.objects.select_for_update(nowait=True).filter(pk=key))
    except OperationalError:
        return True


def test_a_shorter_lease_bounds_what_a_frozen_worker_blocks(start_worker: Start) -> None:
    """Sessions that were open under the longer lease are ended by the server after twice the new one."""
    if not connection.features.has_select_for_update:
        pytest.skip(
            "needs has_select_for_update: this database has no sessions that could be ended"
        )
    jobs(150, "sleep:0.1")
    options = ("--in-process", "--batch-size", "1", "--lease", "60")
    worker = start_worker(*options, model="testapp.AtomicJob")
    held = Job.objects.filter(status="processing")
    wait_until(held.exists, what="a claim")
    change(lease=2)
    short = Job.objects.filter(expires_at__lt=DatabaseLater(timedelta(seconds=3)))
    wait_until(short.exists, PROMISED + 1, "a claim under the new lease")
    Job.objects.filter(status="open").delete()
    (key,) = jobs(1, "hold:60", priority=1)
    wait_until(lambda: held.filter(pk=key) and is_locked(key), what="the handler's transaction")
    worker.signal(signal.SIGSTOP)
    wait_until(lambda: not is_locked(key), 2 * 2 + 3, "the frozen worker's lock is gone")


def test_a_limit_of_concurrency_is_followed_at_once(start_worker: Start) -> None:
    """What has not started goes back, and no more than so many rows are held from then on."""
    jobs(300, "sleep:0.1")
    worker = start_worker("--threads", "4", "--batch-size", "50")
    begun(worker)
    change(concurrency=2)
    running = Job.objects.filter(status="processing")
    wait_until(lambda: 0 < running.count() <= 2, PROMISED, "two rows held")
    done = Job.objects.progress().complete
    for _ in range(20):
        assert running.count() <= 2
        time.sleep(0.05)
    # Two at a time, each for a tenth of a second, and no poll pause between them.
    assert Job.objects.progress().complete - done >= 10


def test_a_rate_is_shared_by_two_workers(start_worker: Start) -> None:
    change(rate_limit=20)
    jobs(600)
    workers = [start_worker() for _ in "ab"]
    for worker in workers:
        wait_until(lambda: WorkerProcess.objects.count() == 2)
        begun(worker)
    time.sleep(PROMISED)
    before, began = Job.objects.progress().complete, time.monotonic()
    time.sleep(6)
    rate = (Job.objects.progress().complete - before) / (time.monotonic() - began)
    assert 12 <= rate <= 24


def test_outside_the_window_nothing_is_claimed_and_everybody_is_told(start_worker: Start) -> None:
    jobs(200, "sleep:0.1")
    worker = start_worker("--batch-size", "30")
    begun(worker)
    now = database_time("default")
    opens, closes = (now + timedelta(hours=2)).time(), (now + timedelta(hours=3)).time()
    change(window_from=opens.replace(microsecond=0), window_to=closes.replace(microsecond=0))
    wait_until(lambda: "processing" not in states(), PROMISED + 1, "no row is held")
    stop = wait_until(Throttle.objects.first)
    assert stop.source == "window"
    assert stop.reason.startswith(f"outside the window {opens:%H:%M:%S}–{closes:%H:%M:%S} UTC")
    assert timedelta(minutes=119) < stop.until - now < timedelta(minutes=121)
    since, until = stop.since_at, stop.until
    moment = time.time()
    assert start_worker("--drain").wait() == 3
    stop.refresh_from_db()
    assert (stop.since_at, abs(stop.until - until) < timedelta(seconds=3)) == (since, True)
    assert claims_since(worker, moment) == []
    wait_until(lambda: marks(Job, using="default", span=HOUR), 10)
    (mark,) = {(mark.kind, mark.text) for mark in marks(Job, using="default", span=HOUR)}
    assert mark == ("throttle", f"Throttled: {stop.reason}")
    change(window_from=None, window_to=None)
    wait_until(lambda: claims_since(worker, moment), PROMISED, "claims flow again")


# Orders


def test_drain_finishes_what_it_has_and_leaves(start_worker: Start) -> None:
    """The supervisor starts no other process in its place, and ends when it was the last one."""
    jobs(60, "sleep:0.2")
    worker = start_worker("--processes", "2", "--batch-size", "10")
    begun(worker)
    first, second = wait_until(
        lambda: [*WorkerProcess.objects.all()][1:] and [*WorkerProcess.objects.order_by("name")]
    )
    given = order(first.name, "drain", by="ada", reason="new version", using="default")
    wait_until(lambda: not WorkerProcess.objects.filter(pk=first.pk).exists(), PROMISED + 4)
    given.refresh_from_db()
    assert given.done_at is not None
    assert worker.process.poll() is None
    (act,) = acts(Job, using="default")
    assert (act.act, act.key, act.reason) == ("worker order", first.name, "drain: new version")
    # All that it had claimed got done; nothing was given back.
    assert worker.events("released") == []
    order(second.name, "drain", by="ada", using="default")
    assert worker.wait() == 0
    assert set(states()) <= {"complete", "open"}
    assert not Job.objects.filter(iteration__gt=0).exists()


def test_stop_gives_back_what_has_not_started(start_worker: Start) -> None:
    jobs(40, "sleep:1")
    worker = start_worker("--batch-size", "20")
    name = begun(worker)
    order(name, "stop", by="ada", using="default")
    assert worker.wait(PROMISED + 10) == 0
    assert set(states()) == {"complete", "open"}
    assert sum(record["rows"] for record in worker.events("released")) >= 10
    assert WorkerOrder.objects.get().done_at is not None


def test_release_gives_back_and_goes_on(start_worker: Start) -> None:
    jobs(40, "sleep:0.5")
    worker = start_worker("--batch-size", "20")
    name = begun(worker)
    moment = time.time()
    order(name, "release", by="ada", using="default")
    wait_until(lambda: worker.events("released"), PROMISED + 1)
    assert all(record["reason"] == "not started" for record in worker.events("released"))
    # A batch takes 10 s, so a claim since then was of others, or of the same rows again.
    wait_until(lambda: claims_since(worker, moment), PROMISED)
    assert worker.process.poll() is None


def test_an_order_reaches_an_idle_worker(start_worker: Start) -> None:
    worker = start_worker()
    name = wait_until(lambda: WorkerProcess.objects.values_list("name", flat=True).first())
    time.sleep(1)
    began = time.monotonic()
    order(name, "stop", by="ada", using="default")
    assert worker.wait(PROMISED + 3) == 0
    assert time.monotonic() - began < PROMISED + 3


def test_an_order_for_a_process_that_is_no_more_is_not_obeyed(start_worker: Start) -> None:
    """A process may come to have the name of one before it, in a container for example."""
    jobs(3)
    worker = start_worker()
    name = begun(worker)
    WorkerOrder.objects.create(
        worker=name, order="stop", by="ada", at=DatabaseLater(timedelta(hours=-1))
    )
    time.sleep(PROMISED + 1)
    assert worker.process.poll() is None
    assert WorkerOrder.objects.get().done_at is None


def test_the_rows_of_a_dead_worker_are_released_at_once(start_worker: Start) -> None:
    """Not those of a living one with the same name; and the dead one's late writes land nowhere."""
    jobs(20, "sleep:600")
    dead = start_worker("--batch-size", "5", "--lease", "3600")
    name = begun(dead)
    living = start_worker("--batch-size", "5", "--lease", "3600")
    wait_until(lambda: states() == {"open": 10, "processing": 10})
    for pid in [dead.pid, *dead.children()]:
        os.kill(pid, signal.SIGKILL)
    WorkerProcess.objects.filter(name=name).update(seen_at=DatabaseLater(timedelta(minutes=-1)))
    with pytest.raises(ValidationError, match="release its rows instead"):
        order(name, "drain", by="ada", using="default")
    given = order(name, "release", by="ada", reason="the host burnt", using="default")
    assert given.done_at is not None
    assert states() == {"open": 15, "processing": 5}
    assert Job.objects.filter(iteration=1, attempts=0, status="open").count() == 5
    (act,) = acts(Job, using="default")
    assert (act.rows, act.reason) == (5, "release: the host burnt")
    assert order(name, "release", by="ada", using="default").done_at is not None
    assert acts(Job, using="default")[0].rows == 0
    assert living.process.poll() is None


def test_words_that_are_no_orders_are_refused(transactional_db: None) -> None:
    with pytest.raises(ValidationError, match="'explode'; it knows drain, stop, release"):
        order("nobody", "explode", by="ada", using="default")
    with pytest.raises(WorkerProcess.DoesNotExist):
        order("nobody", "stop", by="ada", using="default")
    assert not WorkerOrder.objects.exists()


# History


def test_a_history_tells_of_a_killed_worker(start_worker: Start) -> None:
    (key,) = jobs(1, "sleep:3")
    told: dict[str, str] = {"DJANGO_SETTINGS_MODULE": "tests.control.worker_settings"}
    first = start_worker("--lease", "2", **told)
    name = begun(first)
    wait_until(lambda: ClaimEvent.objects.filter(event="renewed").exists())
    for pid in [first.pid, *first.children()]:
        os.kill(pid, signal.SIGKILL)
    assert start_worker("--drain", "--lease", "2", **told).wait(60) == 0
    events = history(Job, key, using="default")
    kinds = [(event.event, event.iteration) for event in events]
    assert kinds == [
        ("claimed", 0),
        ("renewed", 0),
        ("expired", None),
        ("claimed", 1),
        ("renewed", 1),
        ("completed", 1),
    ]
    assert [event.holder.startswith(name + "#") for event in events] == [True] * 3 + [False] * 3
    assert events[2].detail == "put back, one try used up"
    assert events[2].holder == events[0].holder
    assert sorted(event.at for event in events if event.event != "renewed") == [
        event.at for event in events if event.event != "renewed"
    ]
    assert events[4].times >= 2
    assert history(Job, key, using="default", limit=2) == events[-2:]


# Without the app


def test_without_the_app_workers_work_and_ask_nothing_for_it(
    start_worker: Start, tmp_path: Path
) -> None:
    log = tmp_path / "statements"
    jobs(30, "sleep:0.2")
    settings = {
        "DJANGO_SETTINGS_MODULE": "tests.control.without_settings",
        "TASKCLAIM_TEST_STATEMENTS": str(log),
    }
    change(batch_size=1)
    assert start_worker("--drain", **settings).wait(60) == 0
    assert states() == {"complete": 30}
    assert not ThroughputMinute.objects.exists()
    said = log.read_text()
    assert "taskclaim_workerprocess" in said
    for table in ("livesettings", "workerorder", "throughput", "operatoract", "claimevent"):
        assert table not in said


def test_workers_that_know_no_time_zones_keep_the_same_hours(start_worker: Start) -> None:
    """``USE_TZ`` off and a zone five and a half hours away: the database's clock decides, in UTC."""
    jobs(20)
    now = database_time("default")
    hour = timedelta(hours=1)
    change(window_from=(now - hour).time(), window_to=(now + hour).time())
    naive = {"TASKCLAIM_TEST_USE_TZ": "0", "TASKCLAIM_TEST_TIME_ZONE": "Asia/Kolkata"}
    assert start_worker("--drain", **naive).wait(60) == 0
    assert states() == {"complete": 20}
    slots = throughput(Job, using="default", span=timedelta(minutes=5))
    assert sum(slot.done for slot in slots) == 20
    worker = start_worker(**naive)
    name = wait_until(lambda: WorkerProcess.objects.values_list("name", flat=True).first())
    order(name, "stop", by="ada", using="default")
    assert worker.wait(PROMISED + 3) == 0
