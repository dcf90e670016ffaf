"""Ranges in real worker processes: killed, stopped, paused, too long for their timeout, shared by splits."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import Sum

from django_taskclaim.models import WorkerProcess
from django_taskclaim.switch import pause, resume
from tests.ranges.conftest import assert_seamless, counters, fill
from tests.testapp.models import IntRange
from tests.worker.conftest import Worker, start_worker, wait_until  # noqa: F401

Start = Callable[..., Worker]


def planned(rows: int, chunk_size: int) -> None:
    fill(IntRange, rows)
    IntRange.objects.plan(chunk_size=chunk_size)


def start(start_worker: Start, *options: str, **env: Any) -> Worker:  # noqa: F811
    return start_worker("--in-process", "--drain", *options, model="testapp.IntRange", **env)


def rows_done() -> int:
    return IntRange.objects.aggregate(n=Sum("rows_done"))["n"] or 0


def test_a_killed_worker_costs_no_chunk_and_doubles_none(start_worker: Start) -> None:  # noqa: F811
    """Its successors go on at the checkpoints."""
    planned(2_000, 500)
    killed = start(start_worker, "--lease", "2")
    wait_until(lambda: rows_done() >= 150, what="three chunks are done")
    killed.signal(signal.SIGKILL)
    killed.wait()
    for worker in [start(start_worker, TASKCLAIM_TEST_CHUNK="0.005") for _ in range(2)]:
        assert worker.wait() == 0
    assert counters(IntRange) == {1}
    assert rows_done() == 2_000
    assert IntRange.objects.progress().complete >= 4


def test_a_worker_without_work_takes_a_part(start_worker: Start) -> None:  # noqa: F811
    """One range for two workers becomes several, each row worked on once."""
    workers = [
        start_worker("--in-process", model="testapp.IntRange", TASKCLAIM_TEST_CHUNK="0.1")
        for _ in range(2)
    ]
    # Only then: the first could be done before the second has begun.
    wait_until(lambda: WorkerProcess.objects.count() == 2, what="both have reported")
    planned(4_000, 4_000)
    wait_until(lambda: rows_done() == 4_000, what="all rows are done")
    wait_until(lambda: IntRange.objects.progress().complete == IntRange.objects.count())
    for worker in workers:
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    assert IntRange.objects.count() > 1
    assert_seamless(IntRange)
    assert counters(IntRange) == {1}
    names = set(IntRange.objects.values_list("claimed_by", flat=True))
    assert len({name.partition("#")[0] for name in names}) == 2


@pytest.mark.long
def test_a_range_longer_than_its_timeout_is_halved(start_worker: Start) -> None:  # noqa: F811
    """It stops at a checkpoint, charged nothing, and its parts go on."""
    planned(1_500, 1_500)
    worker = start(start_worker, TASKCLAIM_TEST_TIMEOUT="1.5", TASKCLAIM_TEST_CHUNK="0.1")
    assert worker.wait() == 0
    assert IntRange.objects.count() > 1
    assert_seamless(IntRange)
    assert counters(IntRange) == {1}
    assert set(IntRange.objects.values_list("attempts", flat=True)) == {0}


@pytest.mark.long
def test_stopped_and_paused_workers_give_ranges_back(start_worker: Start) -> None:  # noqa: F811
    """At the next checkpoint, uncounted: a long range holds up neither a stop nor a pause."""
    planned(5_000, 5_000)
    worker = start(start_worker, TASKCLAIM_TEST_CHUNK="0.1")
    wait_until(rows_done)
    worker.signal(signal.SIGTERM)
    assert worker.wait(10) == 0
    range_ = IntRange.objects.get()
    assert (range_.status, range_.attempts) == ("open", 0)
    done = range_.rows_done

    worker = start(start_worker, TASKCLAIM_TEST_CHUNK="0.1")
    wait_until(lambda: rows_done() > done)
    pause(IntRange, reason="look first", using="default")
    wait_until(lambda: IntRange.objects.get().status == "open", 10)
    assert worker.wait(20) == 3
    resume(IntRange, using="default")
    assert start(start_worker, TASKCLAIM_TEST_CHUNK="0").wait() == 0
    assert counters(IntRange) == {1}
