"""The moving lower bound: claims go on where the last one ended, and nothing stays behind for long."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from django_taskclaim.querysets import lower_bound
from django_taskclaim.querysets.claiming import checked_request
from django_taskclaim.querysets.lower_bound import FULL_LOOK_EVERY, LowerBound
from django_taskclaim.querysets.scope import Desk
from tests.behaviour.support import clock as moment
from tests.behaviour.support import has, set_raw
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
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Let no time pass, and no claim look for rows that have waited first, unless a test says so."""
    stopped = Clock()
    monkeypatch.setattr(lower_bound, "clock", stopped)
    monkeypatch.setattr(lower_bound, "WAITED_FIRST", 0.0)
    return stopped


def claim(model: Any, limit: int, bound: LowerBound) -> list[Any]:
    request = checked_request(model, limit, None, None, False, True)
    rows: list[Any] = model.objects.all()._claim(replace(request, bound=bound))
    return rows


def test_every_row_is_claimed_once_and_in_order(claimable: Any) -> None:
    rows, bound = make(claimable, 10), LowerBound()
    taken = [row.pk for _ in range(6) for row in claim(claimable, 2, bound)]
    assert sorted(map(str, taken)) == sorted(str(row.pk) for row in rows)


def test_a_row_put_back_below_the_bound_is_found_by_the_next_look_in_full(
    kind_of_table: Any, clock: Clock
) -> None:
    """Until then claims go on where they were, which is what makes them cheap."""
    make(kind_of_table, 20)
    bound = LowerBound()
    first, _ = claim(kind_of_table, 2, bound)
    first.claim.release()
    passed_over = [row.pk for row in claim(kind_of_table, 2, bound)]
    has_bounds = lower_bound._has_bounds(Desk.of(kind_of_table, "default"))
    assert (first.pk not in passed_over) == has_bounds
    if has_bounds:
        clock.now += FULL_LOOK_EVERY
        assert first.pk in [row.pk for row in claim(kind_of_table, 2, bound)]


def test_a_claim_that_comes_back_short_looks_at_everything_in_the_same_call(
    kind_of_table: Any,
) -> None:
    make(kind_of_table, 5)
    bound = LowerBound()
    held = claim(kind_of_table, 3, bound)
    kind_of_table.objects.release(held[:2])
    taken = claim(kind_of_table, 4, bound)
    assert len(taken) == 4
    assert {row.pk for row in held[:2]} < {row.pk for row in taken}
    assert len(claim(kind_of_table, 4, bound)) == 0


def test_an_urgent_row_goes_first_from_the_next_look_in_full(clock: Clock) -> None:
    make(Photo, 20)
    bound = LowerBound()
    claim(Photo, 2, bound)
    (urgent,) = make(Photo, 1, priority=5)
    at_once = claim(Photo, 2, bound)
    if not lower_bound._has_bounds(Desk.of(Photo, "default")):
        assert urgent in at_once
        return
    assert urgent not in at_once
    clock.now += FULL_LOOK_EVERY
    assert urgent in claim(Photo, 2, bound)
    # The others follow from where the urgent ones end, although those rank before the bound.
    assert len(claim(Photo, 9, bound)) == 9


def test_rows_that_have_waited_have_their_turn_under_backlog(
    shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stand behind all that never did, which may never end."""
    if not has(shape, "not_before"):
        pytest.skip("the model has no waiting time")
    make(shape, 20)
    bound = LowerBound()
    tried = claim(shape, 2, bound)
    for row in tried:
        row.claim.release()
        set_raw(row, "not_before", moment("-1 HOUR"))
    assert not {row.pk for row in tried} & {row.pk for row in claim(shape, 3, bound)}
    monkeypatch.setattr(lower_bound, "WAITED_FIRST", 1.0)
    assert {row.pk for row in tried} < {row.pk for row in claim(shape, 3, bound)}
