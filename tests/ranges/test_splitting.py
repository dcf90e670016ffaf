"""Idle workers take a part of a running range, and no key is done twice or passed over."""

import signal
import threading
from typing import Any

import pytest
from django.db import connection
from django.db.models import Sum

from django_taskclaim.models import WorkerProcess
from django_taskclaim.switch import pause, resume
from tests.locks import waits_for_a_lock
from tests.querysets.support import DEADLINE, clock, elsewhere, set_raw, wait_for
from tests.ranges.conftest import (
    assert_seamless,
    claimed,
    counters,
    drain,
    planned,
    split,
    work,
    work_through,
)
from tests.testapp.models import IntRange
from tests.worker.conftest import Start, Worker, start_worker, wait_until

__all__ = ["start_worker"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_running_range_with_most_rows_left_is_split() -> None:
    """The tail has the user's own columns; ranges that are open or nearly done are left alone."""
    planned(30, chunk_size=20)
    IntRange.objects.update(note="mine", priority=7)
    assert not split(IntRange), "nobody works on one"
    large, small = claimed(IntRange), claimed(IntRange)
    assert not split(IntRange, 11)
    assert split(IntRange)
    tail = IntRange.objects.open().get()
    assert (tail.note, tail.priority, tail.attempts, tail.rows_done) == ("mine", 7, 0, 0)
    for range_ in (large, small):
        range_.refresh_from_db()
        assert range_.rows_planned == 10
    while split(IntRange):
        IntRange.objects.claim_batch(10)
    assert IntRange.objects.count() >= 20
    assert_seamless(IntRange)


@pytest.mark.skipif(not connection.features.has_select_for_update, reason="needs two writers")
def test_a_split_waits_for_the_chunk_under_way_and_splits_what_is_left() -> None:
    """It does not move the end of a range below the rows that a chunk has done."""
    planned(20)
    range_ = claimed(IntRange)
    in_chunk, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        walk = range_.rows(14)
        work(next(walk))
        in_chunk.set()
        assert go_on.wait(DEADLINE)
        next(walk)
        walk.close()

    holder = elsewhere(hold)
    assert in_chunk.wait(DEADLINE)
    splitter = elsewhere(lambda: split(IntRange, 3))
    # MySQL counts again only where nobody has asked for a tenth of a second.
    wait_for(lambda: splitter.done() or waits_for_a_lock(), every=0.3)
    assert not splitter.done()
    go_on.set()
    holder.result(DEADLINE)
    assert splitter.result(DEADLINE)
    assert_seamless(IntRange)
    sizes = IntRange.objects.order_by("position").values_list("rows_planned", flat=True)
    assert list(sizes) == [17, 3]


# In processes


def start(start_worker: Start, *options: str, **env: Any) -> Worker:
    return start_worker("--in-process", *options, model="testapp.IntRange", **env)


def rows_done() -> int:
    return IntRange.objects.aggregate(n=Sum("rows_done"))["n"] or 0


@pytest.mark.promise(5, 7)
def test_a_killed_worker_costs_no_chunk_and_doubles_none(start_worker: Start) -> None:
    """The next one goes on at its checkpoints."""
    planned(600, chunk_size=200)
    killed = start(start_worker, TASKCLAIM_TEST_CHUNK="1")
    wait_until(lambda: rows_done() >= 100, what="two chunks are done")
    killed.signal(signal.SIGKILL)
    killed.wait()
    assert rows_done() < 600
    # A short lease instead would be lost where the database is slow.
    for range_ in IntRange.objects.filter(status="processing"):
        set_raw(range_, "expires_at", clock("-1 HOUR"))
    # The reaper of a worker that has just started waits for a quarter of the lease.
    drain(IntRange, "--lease", "10")
    assert counters(IntRange) == {1}
    assert rows_done() == 600
    assert IntRange.objects.progress().complete == 3


def test_an_idle_worker_takes_a_part_and_a_stop_and_a_pause_end_at_a_checkpoint(
    start_worker: Start,
) -> None:
    """A long range delays none of them, and goes back uncharged."""
    workers = [start(start_worker, TASKCLAIM_TEST_CHUNK="0.5") for _ in range(2)]
    # Only then: the first could be done before the second has begun.
    wait_until(lambda: WorkerProcess.objects.count() == 2, what="both have reported")
    planned(20_000, chunk_size=20_000)
    wait_until(lambda: IntRange.objects.progress().processing == 2, what="the range is shared")
    assert_seamless(IntRange)
    pause(IntRange, reason="look first", using="default")
    wait_until(lambda: IntRange.objects.open().count() == 2, what="both are back")
    done = rows_done()
    resume(IntRange, using="default")
    wait_until(lambda: rows_done() > done, what="work goes on")
    for worker in workers:
        worker.signal(signal.SIGTERM)
    assert {worker.wait() for worker in workers} == {0}
    assert rows_done() < 20_000
    found = set(IntRange.objects.values_list("status", "attempts", "checkpoint"))
    assert {(status, attempts) for status, attempts, _ in found} == {("open", 0)}
    work_through(IntRange)
    assert counters(IntRange) == {1}
