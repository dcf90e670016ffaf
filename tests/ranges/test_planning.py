"""Ranges are planned once for each key, by any number of planners."""

from typing import Any

import pytest
from django.core.management import CommandError

from django_taskclaim import handler
from django_taskclaim.exceptions import ClaimColumnError
from django_taskclaim.ranges import plan_more
from django_taskclaim.ranges.keys import RangeTarget
from tests.checks.support import ids_of
from tests.commands import run
from tests.querysets.support import at_once
from tests.ranges.conftest import assert_seamless, counters, fill, planned, work_through
from tests.testapp.models import IntRange, LogRange, TextSource, UuidSource

pytestmark = pytest.mark.django_db


def test_a_plan_goes_on_where_the_last_one_stopped(
    ranges: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is planned stays, and a worker that plans a part does not plan the rest."""
    assert ranges.objects.plan() == 0
    fill(ranges, 25)
    monkeypatch.setattr("django_taskclaim.ranges.BATCH", 2)
    assert plan_more(RangeTarget(ranges, "default"), 10) == 2
    assert ranges.objects.plan(chunk_size=10) == 1
    assert ranges.objects.plan(chunk_size=10) == 0
    assert_seamless(ranges)
    sizes = ranges.objects.order_by("position").values_list("rows_planned", flat=True)
    assert list(sizes) == [10, 10, 5]


def test_pruned_ranges_are_not_planned_again() -> None:
    """The last range stays, because the next plan begins where it ends."""
    planned(20, chunk_size=5)
    work_through(IntRange)
    assert IntRange.objects.prune(older_than=1e-6) == 3
    assert IntRange.objects.plan(chunk_size=5) == 0
    fill(IntRange, 5)
    assert IntRange.objects.plan(chunk_size=5) == 1
    work_through(IntRange)
    assert counters(IntRange) == {1}
    said = run("claimprune", "testapp.IntRange", "--older-than", "0.000001")
    assert "Deleted 1 row" in said
    IntRange.objects.fail_rows("no", complete=True)
    assert IntRange.objects.delete_failed() == 0
    assert IntRange.objects.plan(chunk_size=5) == 0


@pytest.mark.django_db(transaction=True)
def test_two_planners_at_once_store_each_range_once() -> None:
    fill(IntRange, 300)
    planned_by = at_once(*[lambda: IntRange.objects.plan(chunk_size=10)] * 3)
    assert sum(planned_by) == 30
    assert_seamless(IntRange)


@pytest.mark.once
def test_the_columns_of_a_range_are_written_by_verbs_alone() -> None:
    """A handler's save() does not bring back an upper key that a split has moved."""
    planned(10, chunk_size=5)
    stale = IntRange.objects.first()
    assert stale is not None
    upper = stale.upper
    stale.note = "mine"
    stale.save()
    stale.upper = "7"
    with pytest.raises(ClaimColumnError):
        stale.save()
    with pytest.raises(ClaimColumnError):
        IntRange.objects.update(checkpoint="7")
    assert IntRange.objects.get(pk=stale.pk).upper == upper


# The command


@pytest.mark.once
def test_claimplan_tells_how_much_it_planned_and_is_for_ranges_alone() -> None:
    fill(IntRange, 25)
    first = run("claimplan", "testapp.IntRange", "--chunk-size", "10")
    assert "Planned 3 ranges of testapp.IntRange." in first
    fill(IntRange, 1)
    assert "Planned 1 range of" in run("claimplan", "testapp.IntRange", "--chunk-size", "10")
    with pytest.raises(CommandError, match=r"Photo .*RangeMixin"):
        run("claimplan", "testapp.Photo")
    with pytest.raises(CommandError, match="whole number"):
        run("claimplan", "testapp.IntRange", "--chunk-size", "0")
    with pytest.raises(ValueError, match="chunk_size must be a whole number"):
        IntRange.objects.plan(chunk_size=True)


# Checks


@pytest.mark.once
@pytest.mark.parametrize(
    ("model", "values", "found"),
    [
        (LogRange, {}, []),
        (LogRange, {"commits_within": 0}, ["E071"]),
        # Random keys have no end, and keys that programs give come in any order.
        (LogRange, {"commits_within": None, "source": UuidSource}, ["E071"]),
        (LogRange, {"commits_within": None, "source": TextSource}, ["E071"]),
        (IntRange, {"plan_ahead": True}, ["E071"]),
        (IntRange, {"source": "testapp.Nothing"}, ["E071"]),
    ],
)
def test_a_model_of_ranges_that_cannot_work_is_a_check_error(
    model: Any, values: dict[str, Any], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in values.items():
        monkeypatch.setattr(model, name, value)
    assert ids_of(model) == found


@pytest.mark.once
@pytest.mark.parametrize("options", [{"batch": True}, {"atomic": True}, {"completion": "delete"}])
def test_handlers_that_cannot_walk_a_range_are_refused(options: Any) -> None:
    with pytest.raises(TypeError):
        handler(IntRange, **options)(lambda ranges: None)
