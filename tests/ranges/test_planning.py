"""Ranges are cut once for each key, whatever the keys are like, by however many planners."""

from typing import Any

import pytest

from django_taskclaim.exceptions import ClaimColumnError
from tests.behaviour.support import at_once
from tests.ranges.conftest import assert_seamless, counters, covered, fill, work_through
from tests.test_commands import run
from tests.testapp.models import IntRange, IntSource, TextRange


@pytest.mark.django_db
def test_all_keys_are_in_one_range_each(ranges: Any) -> None:
    """Walked in chunks smaller than the ranges, every row is worked on exactly once."""
    fill(ranges, 97)
    assert ranges.objects.plan(chunk_size=10) == 10
    assert_seamless(ranges)
    assert list(ranges.objects.order_by("position").values_list("rows_planned", flat=True)) == [
        *[10] * 9,
        7,
    ]
    assert work_through(ranges, size=3) == 10
    assert counters(ranges) == {1}
    assert sum(ranges.objects.values_list("rows_done", flat=True)) == 97


@pytest.mark.django_db
def test_an_empty_source_has_no_ranges() -> None:
    assert IntRange.objects.plan() == 0


@pytest.mark.django_db
def test_planning_again_goes_on_behind_the_last_key() -> None:
    """What is planned stays; rows that came since are added."""
    fill(IntRange, 20)
    assert IntRange.objects.plan(chunk_size=10) == 2
    assert IntRange.objects.plan(chunk_size=10) == 0
    before = covered(IntRange)
    fill(IntRange, 15)
    assert IntRange.objects.plan(chunk_size=10) == 2
    assert covered(IntRange)[:2] == before
    assert_seamless(IntRange)


@pytest.mark.django_db
def test_pruned_ranges_are_not_planned_again() -> None:
    """The last range stays, for what is planned next begins where it ends."""
    fill(IntRange, 20)
    IntRange.objects.plan(chunk_size=5)
    work_through(IntRange, size=5)
    assert IntRange.objects.prune(older_than=1e-6)[0] == 3
    assert IntRange.objects.prune(older_than=1e-6)[0] == 0
    assert IntRange.objects.plan(chunk_size=5) == 0
    fill(IntRange, 5)
    assert IntRange.objects.plan(chunk_size=5) == 1
    work_through(IntRange, size=5)
    assert counters(IntRange) == {1}
    said = run("claimprune", "testapp.IntRange", "--complete", "--older-than", "0.000001")
    assert "1 complete" in said
    assert "Deleted 1 row" in said
    assert IntRange.objects.plan(chunk_size=5) == 0


@pytest.mark.django_db
def test_a_limited_plan_is_resumed(ranges: Any) -> None:
    """Broken off after any range, the next call goes on with the next one."""
    fill(ranges, 25)
    seen: list[int] = []
    assert ranges.objects.plan(chunk_size=5, limit=2, progress=seen.append) == 2
    assert seen == [2]
    assert ranges.objects.plan(chunk_size=5) == 3
    assert_seamless(ranges)


@pytest.mark.django_db(transaction=True)
def test_two_planners_at_once_double_nothing() -> None:
    """Each range is stored by one of them, whoever is first."""
    fill(IntRange, 300)
    told = at_once(*[lambda: IntRange.objects.plan(chunk_size=10)] * 3)
    assert sum(told) == 30
    assert_seamless(IntRange)


@pytest.mark.django_db
def test_numbers_that_make_no_sense_are_refused() -> None:
    for wrong in (0, -1, True, "10"):
        with pytest.raises(ValueError, match="chunk_size must be a whole number"):
            IntRange.objects.plan(chunk_size=wrong)


@pytest.mark.django_db
def test_the_columns_of_a_range_are_written_by_verbs_alone() -> None:
    """A handler's save() must not bring back an upper key that a split has moved."""
    fill(IntRange, 10)
    IntRange.objects.plan(chunk_size=5)
    range_ = IntRange.objects.first()
    stale = IntRange.objects.get(pk=range_.pk)
    stale.note = "mine"
    stale.save()
    stale.upper = "7"
    with pytest.raises(ClaimColumnError):
        stale.save()
    with pytest.raises(ClaimColumnError):
        IntRange.objects.update(checkpoint="7")
    assert IntRange.objects.get(pk=range_.pk).upper == range_.upper


@pytest.mark.django_db
def test_keys_are_typed() -> None:
    """What a handler reads from its range is a key of the source, not a text."""
    fill(TextRange, 3)
    IntSource.objects.create(pk=7)
    TextRange.objects.plan()
    IntRange.objects.plan()
    assert IntRange.objects.get().upper_key == 7
    assert IntRange.objects.get().lower_key is None
    assert isinstance(TextRange.objects.get().upper_key, str)
