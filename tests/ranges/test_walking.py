"""A chunk and the checkpoint behind it are one transaction: the next holder goes on there."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from django_taskclaim import handler
from django_taskclaim.exceptions import ClaimLost, RangeInterrupted, RangeUnfinished
from django_taskclaim.handlers import unregister
from django_taskclaim.ranges import walking
from django_taskclaim.testing import run_due
from tests.querysets.support import DEADLINE, clock, elsewhere, lose, set_raw
from tests.ranges.conftest import (
    assert_seamless,
    claimed,
    counters,
    fill,
    planned,
    split,
    work,
    work_through,
)
from tests.testapp.models import IntRange, IntSource, UuidRange

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


@pytest.fixture
def handled() -> Iterator[Callable[[Any], None]]:
    """Make a function the handler of UuidRange, which has none."""
    yield lambda function: handler(UuidRange)(function)
    unregister(UuidRange)


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
def test_a_handler_that_leaves_its_range_early_fails_it(
    function: Any, error: Any, handled: Any
) -> None:
    """Its open chunk is rolled back at once, and rows left undone do not count as done."""
    handled(function)
    fill(UuidRange, 10)
    UuidRange.objects.plan()
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
