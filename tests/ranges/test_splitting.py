"""Whoever is free takes a part of a running range, and no key is done twice or passed over."""

import threading
import time
from typing import Any

import pytest
from django.db import connection

from django_taskclaim.handlers import handler_for
from django_taskclaim.querysets.ranges import splitting
from django_taskclaim.worker.heartbeat import Vitals
from django_taskclaim.worker.inflight import units_of
from django_taskclaim.worker.overruns import Overrun
from tests.behaviour.support import DEADLINE, elsewhere, held_open
from tests.ranges.conftest import (
    assert_seamless,
    claimed,
    counters,
    fill,
    work,
    work_through,
)
from tests.testapp.models import IntRange, IntSource

pytestmark = pytest.mark.django_db(transaction=True)


def test_both_parts_together_are_the_range(ranges: Any) -> None:
    """The holder goes on with the front, without a word; the tail is open, and last in the plan still."""
    fill(ranges, 20)
    ranges.objects.plan()
    front = claimed(ranges)
    walk = front.rows(2)
    work(next(walk))
    next(walk)
    walk.close()
    assert ranges.objects.split(at_least=1)
    assert_seamless(ranges)
    assert sum(work(rows) for rows in front.rows(3)) == 9
    front.claim.complete()
    assert ranges.objects.plan() == 0
    assert work_through(ranges, 4) == 1
    assert counters(ranges) == {1}


def test_a_split_range_is_split_again(ranges: Any) -> None:
    """Down to single rows; then there is nothing to split."""
    fill(ranges, 9)
    ranges.objects.plan()
    held = [claimed(ranges)]
    while ranges.objects.split(at_least=1):
        held += ranges.objects.claim_batch(10)
    assert len(held) == 9
    assert_seamless(ranges)
    for range_ in held:
        for rows in range_.rows(5):
            work(rows)
    assert counters(ranges) == {1}


def test_the_tail_has_the_users_own_columns() -> None:
    fill(IntRange, 20)
    IntRange.objects.plan()
    IntRange.objects.update(note="mine", priority=7)
    claimed(IntRange)
    assert IntRange.objects.split(at_least=1)
    tail = IntRange.objects.open().get()
    assert (tail.note, tail.priority, tail.attempts, tail.rows_done) == ("mine", 7, 0, 0)


def test_ranges_that_are_nearly_done_are_left_alone() -> None:
    fill(IntRange, 30)
    IntRange.objects.plan()
    assert not IntRange.objects.split(at_least=1), "nobody works on it"
    range_ = claimed(IntRange)
    walk = range_.rows(25)
    work(next(walk))
    next(walk)
    walk.close()
    assert not IntRange.objects.split(at_least=3)
    assert IntRange.objects.count() == 1


def test_the_one_with_most_rows_left_is_split() -> None:
    fill(IntRange, 30)
    IntRange.objects.plan(chunk_size=20)
    large, small = claimed(IntRange), claimed(IntRange)
    assert IntRange.objects.split(at_least=1)
    large.refresh_from_db(), small.refresh_from_db()
    assert (large.rows_planned, small.rows_planned) == (10, 10)


def test_a_range_whose_chunk_overran_is_halved() -> None:
    """It is charged as any row is; its tail is a range of its own, charged nothing."""
    fill(IntRange, 20)
    IntRange.objects.plan()
    range_ = claimed(IntRange)
    handler = handler_for(IntRange)
    assert handler is not None
    (unit,) = units_of(handler, [range_])
    unit.called = unit.tasks
    assert Overrun(unit, unit.tasks[0]).write("default", Vitals())
    assert_seamless(IntRange)
    found = IntRange.objects.order_by("position").values_list("status", "attempts", "rows_planned")
    assert list(found) == [("open", 1, 10), ("open", 0, 10)]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs two writers")
def test_a_split_waits_for_the_chunk_under_way() -> None:
    """It must not move the end of the range under what is being done."""
    fill(IntRange, 20)
    IntRange.objects.plan()
    range_ = claimed(IntRange)

    keep: list[Any] = []

    def begin() -> None:
        walk = range_.rows(18)
        keep.append(walk)
        work(next(walk))

    with held_open(begin):
        split = elsewhere(lambda: IntRange.objects.split(at_least=1))
        time.sleep(0.3)
        assert not split.done()
    assert split.result(20) in (True, False)
    assert_seamless(IntRange)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs two writers")
def test_a_split_that_waited_splits_what_the_chunk_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the chunk was longer than half of what there was: at the end of the work the rest would be one's alone."""
    fill(IntRange, 20)
    IntRange.objects.plan()
    range_ = claimed(IntRange)
    in_chunk, about_to_lock = threading.Event(), threading.Event()
    real = splitting._lock

    def lock(*args: Any) -> bool:
        about_to_lock.set()
        return real(*args)

    def hold() -> None:
        walk = range_.rows(14)
        work(next(walk))
        in_chunk.set()
        assert about_to_lock.wait(DEADLINE)
        next(walk)
        walk.close()

    monkeypatch.setattr(splitting, "_lock", lock)
    holder = elsewhere(hold)
    assert in_chunk.wait(DEADLINE)
    assert IntRange.objects.split(at_least=3)
    holder.result(DEADLINE)
    assert_seamless(IntRange)
    planned = IntRange.objects.order_by("position").values_list("rows_planned", flat=True)
    assert list(planned) == [17, 3]


def test_a_race_of_holders_and_splitters() -> None:
    """While ranges are walked they are split again and again: each row is worked on once, whoever gets it."""
    fill(IntRange, 600)
    IntRange.objects.plan(chunk_size=300)
    # Else the walkers could be done before this thread gets its first turn.
    split_once = threading.Event()

    def walk_all() -> int:
        done = 0
        idle = 0
        while idle < 40:
            found = IntRange.objects.claim_batch(1)
            if not found:
                idle += 1
                time.sleep(0.01)
                continue
            idle = 0
            assert split_once.wait(DEADLINE)
            for rows in found[0].rows(5):
                done += work(rows)
            found[0].claim.complete()
        return done

    walkers = [elsewhere(walk_all) for _ in range(2)]
    splits = 0
    while not all(walker.done() for walker in walkers):
        splits += IntRange.objects.split(at_least=2)
        if splits:
            split_once.set()
    assert sum(walker.result(60) for walker in walkers) == 600
    assert counters(IntRange) == {1}
    assert splits > 0
    assert IntRange.objects.count() == 2 + splits
    assert_seamless(IntRange)
    assert IntSource.objects.count() == 600
