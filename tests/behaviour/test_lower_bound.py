"""The moving lower bound: claims go on where the last one ended, and nothing stays behind for long."""

from dataclasses import replace
from typing import Any

import pytest
from django.db import connection

from django_taskclaim.columns import claim_columns
from django_taskclaim.dialects import dialect_for
from django_taskclaim.fields import CRASHED
from django_taskclaim.querysets import claiming, lower_bound
from django_taskclaim.querysets.claiming import checked_request
from django_taskclaim.querysets.lower_bound import FULL_LOOK_EVERY, LowerBound
from tests.behaviour.support import clock as moment
from tests.behaviour.support import has, set_raw, stored_moment
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db


class Clock:
    """What the bound takes for the time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let no time pass unless a test says so, and no database be spared the bound because it needs none."""
    stopped = Clock()
    monkeypatch.setattr(lower_bound, "clock", stopped)
    monkeypatch.setattr(type(dialect_for(connection)), "leaves_dead_entries", True)
    return stopped


@pytest.fixture
def bound() -> LowerBound:
    """Return a bound whose claims never begin with rows that have waited."""
    return LowerBound(waited_first=0.0)


def claim(model: Any, limit: int, bound: LowerBound) -> list[Any]:
    request = checked_request(model, limit, None, None, False, True)
    rows: list[Any] = model.objects.all()._claim(replace(request, bound=bound))
    return rows


def keys(rows: list[Any]) -> list[Any]:
    return [row.pk for row in rows]


def test_every_row_is_claimed_once_and_in_order(claimable: Any, bound: LowerBound) -> None:
    make(claimable, 10)
    expected = keys(claimable.objects.order_by(*claim_columns(claimable).order))
    for start in range(0, 12, 2):
        # Within a batch Python puts them in order, and MariaDB's native uuid sorts in its own way.
        assert set(keys(claim(claimable, 2, bound))) == set(expected[start : start + 2])


def test_a_row_put_back_below_the_bound_is_found_by_the_next_look_in_full(
    kind_of_table: Any, clock: Clock, bound: LowerBound
) -> None:
    """Until then claims go on where they were, which is what makes them cheap."""
    make(kind_of_table, 20)
    first, _ = claim(kind_of_table, 2, bound)
    first.claim.release()
    if has_bounds(kind_of_table):
        assert first.pk not in keys(claim(kind_of_table, 2, bound))
        clock.now += FULL_LOOK_EVERY
    assert first.pk in keys(claim(kind_of_table, 2, bound))


def has_bounds(model: Any) -> bool:
    return len(model._meta.pk_fields) == 1 or dialect_for(connection).seeks_row_values


def test_a_claim_that_comes_back_short_looks_at_everything_in_the_same_call(
    kind_of_table: Any, bound: LowerBound
) -> None:
    make(kind_of_table, 5)
    held = claim(kind_of_table, 3, bound)
    kind_of_table.objects.release(held[:2])
    taken = claim(kind_of_table, 4, bound)
    assert len(taken) == 4
    assert set(keys(held[:2])) < set(keys(taken))
    assert claim(kind_of_table, 4, bound) == []


@pytest.mark.parametrize("waited", [False, True])
def test_urgent_rows_go_first_from_the_next_look_in_full_until_all_are_taken(
    clock: Clock, bound: LowerBound, waited: bool
) -> None:
    """Also those that have waited, which no bound stands at."""
    make(Photo, 20)
    claim(Photo, 2, bound)
    urgent = make(Photo, 6, priority=5)
    for row in urgent if waited else []:
        set_raw(row, "not_before", moment("-1 HOUR"))
    assert not set(keys(urgent)) & set(keys(claim(Photo, 2, bound)))
    clock.now += FULL_LOOK_EVERY
    assert [key for _ in range(3) for key in keys(claim(Photo, 2, bound))] == keys(urgent)
    # The others follow from where the urgent ones end, although those rank before the bound.
    assert len(claim(Photo, 9, bound)) == 9


@pytest.mark.parametrize("pause", [0.0, 2 * FULL_LOOK_EVERY], ids=["fast", "slow"])
def test_rows_that_have_waited_have_their_turn_under_backlog(
    shape: Any, clock: Clock, pause: float
) -> None:
    """They stand behind all that never did, which may never end; of slow workers every claim looks at everything."""
    if not has(shape, "not_before"):
        pytest.skip("the model has no waiting time")
    make(shape, 20)
    bound = LowerBound(waited_first=0.0)
    tried = claim(shape, 2, bound)
    for row in tried:
        row.claim.release()
        set_raw(row, "not_before", moment("-1 HOUR"))
    clock.now += pause
    assert not set(keys(tried)) & set(keys(claim(shape, 3, bound)))
    bound.waited_first = 1.0
    clock.now += pause
    assert set(keys(tried)) < set(keys(claim(shape, 3, bound)))


def test_a_claim_that_keeps_apart_what_crashed_says_that_there_is_more(
    bound: LowerBound, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that took it for a short one would wait, again and again, until the one row has had its turn."""
    monkeypatch.setattr(claiming, "CRASHED_FIRST", 0.0)
    make(Photo, 20)
    suspect, _ = claim(Photo, 2, bound)
    suspect.claim.release()
    set_raw(suspect, "not_before", "%s", [stored_moment(CRASHED)])
    bound.waited_first = 1.0
    assert len(claim(Photo, 5, bound)) == 4
    assert bound.was_full
