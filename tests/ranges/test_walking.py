"""A chunk and the checkpoint behind it are one transaction: whoever goes on, goes on there."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_taskclaim.exceptions import (
    ClaimLost,
    RangeInterrupted,
    RangeSplit,
    RangeUnfinished,
)
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets.ranges import walking
from django_taskclaim.tokens import carried_claim
from tests.behaviour.conftest import let_lease_lapse  # noqa: F401
from tests.behaviour.support import clock, elsewhere, set_raw
from tests.ranges.conftest import claimed, counters, fill, work
from tests.testapp.models import IntRange, IntSource, UuidSource

pytestmark = pytest.mark.django_db(transaction=True)


def lost(range_: Any, lapse: Callable[[Any], None]) -> Any:
    """Let the claim pass to somebody else, and return the range as that one has it."""
    lapse(range_)
    assert type(range_).objects.release_expired() == 1
    return claimed(type(range_))


def planned(n: int, chunk_size: int = 1_000) -> None:
    fill(IntRange, n)
    IntRange.objects.plan(chunk_size=chunk_size)


def test_the_next_holder_goes_on_at_the_checkpoint(ranges: Any, let_lease_lapse: Any) -> None:  # noqa: F811
    """Two chunks done and one begun: the successor does all but those two."""
    fill(ranges, 20)
    ranges.objects.plan()
    first = claimed(ranges)
    walk = first.rows(4)
    for _ in range(2):
        assert work(next(walk)) == 4
    assert work(next(walk)) == 4  # and dies here, before the checkpoint
    walk.close()
    second = lost(first, let_lease_lapse)
    assert second.rows_done == 8
    assert sum(work(rows) for rows in second.rows(5)) == 12
    second.claim.complete()
    assert counters(ranges) == {1}
    assert ranges.objects.get().rows_done == 20


def test_a_reset_begins_again_where_a_range_was_complete_and_goes_on_where_it_failed(
    ranges: Any,
) -> None:
    fill(ranges, 8)
    ranges.objects.plan(chunk_size=4)
    done, half = claimed(ranges), claimed(ranges)
    assert sum(work(rows) for rows in done.rows()) == 4
    done.claim.complete()
    with pytest.raises(ZeroDivisionError):
        stumble(half, size=2)
    half.claim.fail("stumbled", retry=False)
    assert ranges.objects.reset(complete=True) == 2
    while left := ranges.objects.claim_batch(1):
        for rows in left[0].rows():
            work(rows)
        left[0].claim.complete()
    source = ranges.source_rows().order_by("pk")
    assert list(source.values_list("counter", flat=True)) == [2, 2, 2, 2, 1, 1, 1, 1]
    assert set(ranges.objects.values_list("rows_done", flat=True)) == {4}


def test_a_chunk_that_raises_is_rolled_back(ranges: Any) -> None:
    """Neither its rows nor its checkpoint are kept; those before are."""
    fill(ranges, 12)
    ranges.objects.plan()
    range_ = claimed(ranges)
    with pytest.raises(ZeroDivisionError):
        stumble(range_)
    assert counters(ranges) == {0, 1}
    assert ranges.objects.get().rows_done == 4
    assert sum(work(rows) for rows in range_.rows(4)) == 8
    assert counters(ranges) == {1}


def stumble(range_: Any, size: int = 4) -> None:
    for number, rows in enumerate(range_.rows(size)):
        work(rows)
        assert 1 / (1 - number)


def test_a_range_that_is_split_while_the_next_chunk_is_looked_for_ends_where_it_ends_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look has no lock, so that others may write meanwhile; what it found is worth nothing then."""
    planned(20)
    range_ = claimed(IntRange)
    splits: list[bool] = []

    def source_rows(cls: Any) -> Any:
        if not splits:
            splits.append(IntRange.objects.split(at_least=1))
        return IntSource.objects.all()

    monkeypatch.setattr(IntRange, "source_rows", classmethod(source_rows))
    assert sum(work(rows) for rows in range_.rows()) == 10
    assert splits == [True]
    range_.claim.complete()
    tail = claimed(IntRange)
    assert sum(work(rows) for rows in tail.rows()) == 10
    assert counters(IntRange) == {1}


@pytest.mark.parametrize(
    ("took", "size"), [(0.5, 1_000), (0.25, 2_000), (0.01, 8_000), (1.0, 500), (50.0, 125)]
)
def test_a_chunk_is_as_large_as_takes_its_time_as_far_as_one_step_goes(
    took: float, size: int
) -> None:
    assert walking._adapted(1_000, took, timedelta(seconds=0.5), 50_000) == size
    assert walking._adapted(1_000, took, timedelta(seconds=0.5), 400) == min(size, 400)
    assert walking._adapted(1, 50.0, timedelta(seconds=0.5), 400) == 1


@pytest.mark.skipif(connection.vendor != "sqlite", reason="others do not wait for each other")
def test_where_there_is_one_writer_others_write_between_the_chunks() -> None:
    """A site beside a worker is not starved: it does not wait for the range to end."""
    fill(IntRange, 20_000)
    IntRange.objects.plan()
    range_ = claimed(IntRange)
    walk = elsewhere(lambda: sum(work(rows) for rows in range_.rows(500)))
    meanwhile = 0
    while not walk.done():
        UuidSource.objects.create()
        meanwhile += not walk.done()
    assert walk.result() == 20_000
    assert meanwhile >= 5


def test_a_lost_claim_rolls_back_the_chunk(let_lease_lapse: Any) -> None:  # noqa: F811
    """A holder that comes back late writes nothing, and is told at the checkpoint, or before its next chunk."""
    planned(12)
    late = claimed(IntRange)
    key = IntSource.objects.order_by("pk")[3].pk
    with pytest.raises(ClaimLost):
        late_chunk(late, key, meanwhile=lambda: lost(late, let_lease_lapse))
    assert counters(IntRange) == {0}
    with pytest.raises(ClaimLost):
        next(late.rows(4))
    assert counters(IntRange) == {0}
    assert IntRange.objects.get().rows_done == 0


def late_chunk(range_: Any, key: int, meanwhile: Callable[[], Any]) -> None:
    """Do a chunk in whose middle the claim passes to somebody else; where there is one writer, right before."""
    if connection.vendor == "sqlite":
        meanwhile()
    with transaction.atomic():
        work(IntSource.objects.filter(pk__lte=key))
        if connection.vendor != "sqlite":
            elsewhere(meanwhile).result(20)
        range_.advance(key)


def test_rows_may_be_deleted_as_they_are_done() -> None:
    """The key of a checkpoint need not exist any more."""
    planned(10)
    range_ = claimed(IntRange)
    for rows in range_.rows(3):
        rows.delete()
    range_.claim.complete()
    assert not IntSource.objects.exists()
    assert IntRange.objects.get().rows_done == 10


def test_chunks_come_in_the_order_of_keys_and_are_not_ordered_themselves() -> None:
    """MySQL and MariaDB would order the UPDATE too, and take twice as long."""
    planned(10)
    chunks = []
    for rows in claimed(IntRange).rows(3):
        assert not rows.ordered
        chunks.append([row.pk for row in rows.order_by("pk")])
    seen = [pk for chunk in chunks for pk in chunk]
    assert seen == sorted(IntSource.objects.values_list("pk", flat=True))


def test_source_rows_may_select_by_what_the_work_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not match are passed over, those that match are done once."""
    planned(20)
    IntSource.objects.filter(pk__gt=100).update(counter=1)
    left = classmethod(lambda cls: IntSource.objects.filter(counter=0))
    monkeypatch.setattr(IntRange, "source_rows", left)
    range_ = claimed(IntRange)
    for rows in range_.rows(4):
        work(rows)
    range_.claim.complete()
    assert counters(IntRange) == {1}


def test_a_checkpoint_renews_the_lease() -> None:
    """A chunk has its range locked, so that the renewal passes it over: the checkpoint stands for it."""
    planned(10)
    range_ = claimed(IntRange, lease=5)
    # A clock may count milliseconds, and all this take less.
    set_raw(range_, "expires_at", clock("+1 SECOND"))
    before = IntRange.objects.get().expires_at
    walk = range_.rows(2)
    next(walk), next(walk)
    walk.close()
    assert IntRange.objects.get().expires_at > before


def test_getting_on_is_no_failure() -> None:
    """A range that failed before but gets on is not taken for one that can never be done."""
    planned(10)
    for _ in range(2):
        range_ = claimed(IntRange)
        range_.claim.fail("a deadlock")
        due(range_)
    range_ = claimed(IntRange)
    assert range_.attempts == 2
    next(walk := range_.rows(2)), next(walk)
    walk.close()
    assert IntRange.objects.get().attempts == 0
    range_.claim.fail("another")
    assert IntRange.objects.get().attempts == 1


def due(range_: Any) -> None:
    set_raw(range_, "not_before", clock("-1 HOUR"))


# What a worker asks and refuses


def test_a_range_that_is_asked_back_stops_between_two_chunks() -> None:
    planned(10)
    range_ = claimed(IntRange)
    walk = range_.rows(4)
    work(next(walk))
    carried_claim(range_).asked_back = "the worker stops"
    with pytest.raises(RangeInterrupted, match="the worker stops"):
        next(walk)
    assert IntRange.objects.get().rows_done == 4


def test_a_handler_that_leaves_its_range_early_does_not_complete_it() -> None:
    """What break leaves undone would never be done."""
    planned(10)
    range_ = claimed(IntRange)

    def leaves(range_: Any) -> None:
        for rows in range_.rows(4):
            work(rows)
            break

    with pytest.raises(RangeUnfinished, match="before its first checkpoint"):
        Handler(IntRange, leaves).call([range_])
    assert counters(IntRange) == {0}

    Handler(IntRange, lambda range_: [work(rows) for rows in range_.rows(4)]).call([range_])
    assert counters(IntRange) == {1}


def test_a_walk_kept_in_a_variable_ends_with_its_handler() -> None:
    """Not with the traceback that keeps it alive: that may be forgotten in the middle of another's transaction."""
    planned(10)
    range_ = claimed(IntRange)

    def keeps(range_: Any) -> None:
        walk = range_.rows(4)
        work(next(walk))
        raise ValueError("here")

    with pytest.raises(ValueError, match="here") as kept:
        Handler(IntRange, keeps).call([range_])
    assert kept.traceback
    assert not connection.in_atomic_block
    assert counters(IntRange) == {0}


# advance()


def test_a_loop_of_ones_own_says_how_far_it_has_come() -> None:
    planned(10)
    range_ = claimed(IntRange)
    keys = sorted(IntSource.objects.values_list("pk", flat=True))
    for key in (keys[3], keys[9]):
        with transaction.atomic():
            after = range_.checkpoint_key
            rows = IntSource.objects.filter(pk__lte=key)
            done = work(rows if after is None else rows.filter(pk__gt=after))
            range_.advance(key, rows=done)
    assert counters(IntRange) == {1}
    Handler(IntRange, lambda range_: None).call([range_])
    assert IntRange.objects.get().rows_done == 10


def test_keys_outside_what_is_left_are_refused() -> None:
    planned(20, chunk_size=10)
    range_ = claimed(IntRange)
    keys = sorted(IntSource.objects.values_list("pk", flat=True))
    range_.advance(keys[5])
    with pytest.raises(ValueError, match="before the checkpoint"):
        range_.advance(keys[2])
    with pytest.raises(ValueError, match="beyond the end"):
        range_.advance(keys[15])
    with pytest.raises(ValueError, match=r"no key of testapp\.IntSource"):
        range_.advance("seven")
    assert IntRange.objects.get(pk=range_.pk).checkpoint_key == keys[5]


def test_a_key_that_a_split_gave_to_others_is_refused() -> None:
    """The rows up to it would be done twice."""
    planned(20)
    range_ = claimed(IntRange)
    keys = sorted(IntSource.objects.values_list("pk", flat=True))
    assert IntRange.objects.split(at_least=1)
    with pytest.raises(RangeSplit):
        late_chunk(range_, keys[15], meanwhile=lambda: None)
    assert counters(IntRange) == {0}
    late_chunk(range_, keys[4], meanwhile=lambda: None)
    assert sum(IntSource.objects.values_list("counter", flat=True)) == 5
