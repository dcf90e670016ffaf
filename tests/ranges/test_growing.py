"""Ranges of a source that grows: no row is passed over, even if it is committed late, and none is done twice."""

import random
import threading
import time

import pytest
from django.db import connection, transaction

from tests.commands import run
from tests.querysets.support import (
    DEADLINE,
    clock,
    elsewhere,
    execute,
    held_open,
    set_raw,
    value_of,
)
from tests.ranges.conftest import drain, work_through
from tests.testapp.models import IntRange, IntSource, LogRange, LogSource
from tests.worker.conftest import Start, start_worker, wait_until

__all__ = ["start_worker"]

pytestmark = pytest.mark.django_db(transaction=True)

postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="it names transactions")
one_writer = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="nobody commits late where there is one writer"
)


def log(*keys: int) -> None:
    for key in keys:
        LogSource.objects.create(pk=key)


def work_off() -> int:
    """Plan, claim and do what is due, and return how many ranges that were."""
    LogRange.objects.plan()
    return work_through(LogRange)


def all_done() -> bool:
    work_off()
    return set(LogSource.objects.values_list("counter", flat=True)) == {1}


@one_writer
def test_a_row_committed_late_is_not_passed_over() -> None:
    """The range that it lies in is planned by then, and waits for it."""
    with held_open(lambda: log(3), then=lambda: None):
        log(1, 5)
        assert work_off() == 0
        assert LogRange.objects.get().status == "open"
        if connection.vendor == "postgresql":
            # Elsewhere it is due at a moment that can be told.
            said = run("claimstatus", "testapp.LogRange")
            assert "1 range not due yet: transactions" in said
    wait_until(all_done, every=0.1)
    assert sorted(LogSource.objects.values_list("pk", flat=True)) == [1, 3, 5]
    assert set(LogRange.objects.values_list("attempts", "iteration")) == {(0, 0)}


@postgresql
def test_a_key_that_was_only_taken_from_the_sequence_is_waited_for() -> None:
    """A transaction has no id of its own before it writes, and its key already."""
    taken: list[int] = []

    def take() -> None:
        sequence = f"pg_get_serial_sequence('{LogSource._meta.db_table}', 'id')"
        taken.append(value_of(f"SELECT nextval({sequence})"))

    take()  # The first one of a sequence is written down, and so are 32 more.
    with held_open(take, then=lambda: log(taken[1])):
        log(taken[1] + 1)
        assert work_off() == 0
    assert work_off() == 1
    done = set(LogSource.objects.values_list("pk", "counter"))
    assert done == {(taken[1], 1), (taken[1] + 1, 1)}


@pytest.mark.django_db
def test_a_model_says_how_long_its_writers_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the database, which alone decides when the range is due, and no operator."""
    monkeypatch.setattr(LogRange, "commits_within", 90)
    log(1)
    assert work_off() == 0
    range_ = LogRange.objects.get()
    set_raw(range_, "not_before", clock("+1 MINUTE"))
    assert (work_off(), LogRange.objects.run_at()) == (0, 0)
    set_raw(range_, "not_before", clock("-1 SECOND"))
    assert work_off() == 1


@pytest.mark.skipif(
    connection.vendor == "sqlite", reason="one writer sees what others have committed, or fails"
)
def test_a_transaction_that_does_not_see_commits_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would plan once more what others have planned, and pass over rows that they have committed."""
    log(1)
    IntSource.objects.create(pk=1)
    IntRange.objects.plan()
    (range_,) = IntRange.objects.claim_batch(1)
    with transaction.atomic():
        if connection.vendor == "postgresql":
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        else:
            monkeypatch.setattr(connection, "isolation_level", "repeatable read")
        for what in (LogRange.objects.plan, lambda: next(range_.rows())):
            with pytest.raises(RuntimeError, match="does not see what they commit"):
                what()
    assert not LogRange.objects.exists()


def test_workers_follow_writers_who_commit_out_of_order(start_worker: Start) -> None:
    """Three of them, each row committed a moment after its key was given; every row is done exactly once."""
    worker = start_worker("--processes", "2", model="testapp.LogRange", TASKCLAIM_TEST_CHUNK="0")
    stop = threading.Event()

    def write(seed: int) -> int:
        dice, written = random.Random(seed), 0
        # No more than a slow worker gets done in the end.
        while not stop.is_set() and written < 300:
            with transaction.atomic():
                for _ in range(dice.randint(1, 5)):
                    LogSource.objects.create()
                    written += 1
                if connection.features.has_select_for_update:
                    time.sleep(dice.uniform(0, 0.3))
            time.sleep(0.02)
        return written

    writers = [elsewhere(write, seed) for seed in range(3)]
    try:
        wait_until(lambda: LogSource.objects.filter(counter=1).count() > 60)
        wait_until(lambda: LogRange.objects.filter(status="complete").count() > 3)
    finally:
        stop.set()
    written = sum(writer.result(DEADLINE) for writer in writers)
    wait_until(lambda: not LogSource.objects.filter(counter=0).exists())
    assert worker.stop() == 0
    assert LogSource.objects.count() == written
    assert set(LogSource.objects.values_list("counter", flat=True)) == {1}


def test_a_drain_needs_no_plan_and_ends_although_the_source_grows() -> None:
    """It plans up to the newest key that the source had when nothing was due; more than it plans at once."""
    LogSource.objects.bulk_create([LogSource() for _ in range(205)])
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.05):
            LogSource.objects.create()

    writer = elsewhere(write)
    try:
        drain(LogRange)
    finally:
        stop.set()
        writer.result(DEADLINE)
    assert LogSource.objects.filter(counter=1).count() >= 205
    assert not LogSource.objects.filter(counter__gt=1).exists()
