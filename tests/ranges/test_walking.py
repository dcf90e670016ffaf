"""A chunk and the checkpoint behind it are one transaction: the next holder goes on there."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Sum

from django_taskclaim.exceptions import ClaimLost, RangeInterrupted, RangeUnfinished
from django_taskclaim.models import WorkerProcess
from django_taskclaim.ranges import walking
from django_taskclaim.switch import pause, resume
from django_taskclaim.testing import run_due
from tests.doctor.support import handling
from tests.locks import waits_for_a_lock
from tests.querysets.support import DEADLINE, clock, elsewhere, lose, set_raw, wait_for
from tests.ranges.conftest import (
    assert_seamless,
    claimed,
    counters,
    drain,
    fill,
    planned,
    split,
    work,
    work_through,
)
from tests.testapp.models import IntRange, IntSource, UuidRange
from tests.worker.conftest import Start, Worker, start_worker, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def stumble(range_: Any, size: int = 4) -> None:
    """Work on two chunks, and raise before the second is over."""
    for number, rows in enumerate(range_.rows(size)):
        work(rows)
        assert 1 / (1 - number)


def keys() -> list[int]:
    return sorted(IntSource.objects.values_list("pk", flat=True))


@pytest.mark.promise(3, 5)
def test_each_row_is_worked_on_once_over_any_kind_of_key(ranges: Any) -> None:
    """A holder that is lost in its third chunk, a split and a reset repeat no chunk that was committed."""
    fill(ranges, 40)
    ranges.objects.plan(chunk_size=20)
    first = claimed(ranges)
    walk = first.rows(4)
    assert [work(next(walk)) for _ in range(3)] == [4, 4, 4]
    walk.close()
    second = lose(first)
    assert second.rows_done == 8
    with pytest.raises(ClaimLost):
        next(first.rows(4))
    assert split(ranges)
    assert_seamless(ranges)
    assert sum(work(rows) for rows in second.rows(5)) == 6
    second.claim.complete()
    half = claimed(ranges)
    with pytest.raises(ZeroDivisionError):
        stumble(half, size=3)
    half.claim.fail("stumbled", retry=False)
    assert work_through(ranges, 7) == 1
    assert ranges.objects.reset() == 1
    assert ranges.objects.plan() == 0
    assert work_through(ranges) == 1
    assert counters(ranges) == {1}
    assert sum(ranges.objects.values_list("rows_done", flat=True)) == 40


@pytest.mark.promise(3)
def test_a_lost_claim_rolls_back_the_chunk() -> None:
    """A holder that comes back late writes nothing."""
    planned(12)
    late = claimed(IntRange)
    with pytest.raises(ClaimLost):
        chunk_up_to(late, keys()[3], meanwhile=lambda: lose(late))
    assert counters(IntRange) == {0}
    assert IntRange.objects.get().rows_done == 0


def chunk_up_to(range_: Any, key: int, meanwhile: Callable[[], Any] = lambda: None) -> None:
    """Do a chunk by hand; *meanwhile* happens in its middle, or before it where there is one writer."""
    if connection.vendor == "sqlite":
        meanwhile()
    with transaction.atomic():
        work(IntSource.objects.filter(pk__lte=key))
        if connection.vendor != "sqlite":
            elsewhere(meanwhile).result(DEADLINE)
        range_.advance(key)


def test_a_checkpoint_renews_the_lease_and_gives_all_tries_back() -> None:
    """A range that gets on is not taken for one that can never be done."""
    planned(10)
    for _ in range(2):
        range_ = claimed(IntRange)
        range_.claim.fail("a deadlock")
        set_raw(range_, "not_before", clock("-1 HOUR"))
    range_ = claimed(IntRange)
    assert range_.attempts == 2
    set_raw(range_, "expires_at", clock("+1 SECOND"))
    before = IntRange.objects.get().expires_at
    walk = range_.rows(2)
    next(walk), next(walk)
    walk.close()
    after = IntRange.objects.get()
    assert (after.attempts, after.rows_done) == (0, 2)
    assert after.expires_at > before


def leaves(range_: Any) -> None:
    for rows in range_.rows(4):
        work(rows)
        break


def keeps_its_walk(range_: Any) -> None:
    walk = range_.rows(4)
    work(next(walk))
    raise ValueError("kept alive by the traceback")


@pytest.mark.parametrize(
    ("function", "error"), [(leaves, RangeUnfinished), (keeps_its_walk, ValueError)]
)
def test_a_handler_that_leaves_its_range_early_fails_it(function: Any, error: Any) -> None:
    """Its open chunk is rolled back at once, and rows left undone do not count as done."""
    fill(UuidRange, 10)
    UuidRange.objects.plan()
    with handling(UuidRange, function):
        ran = run_due(UuidRange)
    assert [type(one) for one in ran.errors] == [error]
    assert not connection.in_atomic_block
    assert counters(UuidRange) == {0}
    assert (ran.retrying, UuidRange.objects.get().attempts) == (1, 1)


def test_source_rows_may_select_by_what_the_work_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not match are passed over, those that match are done once."""
    planned(20)
    IntSource.objects.filter(pk__gt=100).update(counter=1)
    undone = classmethod(lambda cls: IntSource.objects.filter(counter=0))
    monkeypatch.setattr(IntRange, "source_rows", undone)
    work_through(IntRange, 4)
    assert counters(IntRange) == {1}


def test_the_size_of_chunks_follows_the_time_that_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned(5_000, chunk_size=5_000)
    range_ = claimed(IntRange)
    monkeypatch.setattr(walking, "LARGEST", 1_500)
    monkeypatch.setattr(walking, "_sizes", {})
    for seconds in (3600, 0.000001):
        monkeypatch.setattr(walking, "TARGET", seconds)
        walk = range_.rows()
        first, second = len(next(walk)), len(next(walk))
        walk.close()
        # A process remembers the size from one walk to the next.
        assert first <= second == 1_500 if seconds > 1 else first > second


def test_advance_refuses_keys_outside_of_what_is_left() -> None:
    """After a split the keys of the tail are another range's: its rows would be done twice."""
    planned(40, chunk_size=20)
    range_ = claimed(IntRange)
    key = keys()
    range_.advance(key[2])
    for wrong, sentence in (
        (key[1], "before the checkpoint"),
        (key[25], "beyond the end"),
        ("seven", r"no key of testapp\.IntSource"),
    ):
        with pytest.raises(ValueError, match=sentence):
            range_.advance(wrong)
    assert split(IntRange)
    with pytest.raises(RangeInterrupted, match="was split"):
        chunk_up_to(range_, key[15])
    assert counters(IntRange) == {0}
    chunk_up_to(range_, key[4])
    assert IntRange.objects.get(pk=range_.pk).checkpoint_key == key[4]


# Idle workers take a part of a running range, and no key is done twice or passed over

__all__ = ["start_worker"]


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


def test_a_range_with_a_value_that_no_other_may_have_stays_whole(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_taskclaim.ranges.walking._never_split", set())
    fill(UuidRange, 20)
    UuidRange.objects.plan()
    UuidRange.objects.update(name="mine")
    range_ = claimed(UuidRange)
    assert (split(UuidRange), split(UuidRange)) == (False, False)
    assert caplog.text.count("UuidRange are not split any more") == 1
    assert sum(map(work, range_.rows())) == UuidRange.objects.get().rows_done == 20


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
