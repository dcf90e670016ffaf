"""The moving lower bound: claims go on where the last one ended, and nothing stays behind for long."""

import threading
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_taskclaim.columns import claim_columns
from django_taskclaim.dialects import dialect_for
from django_taskclaim.fields import CRASHED
from django_taskclaim.querysets import claiming, lower_bound
from django_taskclaim.querysets.claiming import checked_request
from django_taskclaim.querysets.lower_bound import FULL_LOOK_EVERY, LowerBound
from tests.behaviour.models import FoldedKey, FoldedPair
from tests.behaviour.support import (
    DEADLINE,
    ROW_LOCKS,
    elsewhere,
    execute,
    has,
    set_raw,
    stored_moment,
)
from tests.behaviour.support import clock as moment
from tests.behaviour.test_claiming_order import in_order
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
    """Let no time pass unless a test says so."""
    stopped = Clock()
    monkeypatch.setattr(lower_bound, "clock", stopped)
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
        assert keys(claim(claimable, 2, bound)) == expected[start : start + 2]


@pytest.mark.parametrize("model", [FoldedKey, FoldedPair])
def test_the_bound_stands_at_the_last_key_as_the_database_compares_them(
    model: Any, bound: LowerBound
) -> None:
    """Python has capitals first: a bound at "c" would pass "D" over, or one at "D" find all before it."""
    letters = in_order(model)
    taken = [[row.key for row in claim(model, 2, bound)] for _ in range(4)]
    assert taken == [letters[:2], letters[2:4], letters[4:6], letters[6:]]


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


def test_urgent_rows_wait_for_no_look_in_full(clock: Clock, bound: LowerBound) -> None:
    """That may come late, where it takes long; the look at what is urgent alone does not."""
    make(Photo, 20)
    (put_back, _) = claim(Photo, 2, bound)
    put_back.claim.release()
    bound._full_look_at = clock.now + 100 * FULL_LOOK_EVERY
    urgent = make(Photo, 1, priority=5)
    assert keys(claim(Photo, 1, bound)) != keys(urgent)
    clock.now += FULL_LOOK_EVERY
    taken = keys(claim(Photo, 3, bound))
    assert taken[0] == urgent[0].pk
    assert put_back.pk not in taken
    clock.now += 100 * FULL_LOOK_EVERY
    assert put_back.pk in keys(claim(Photo, 2, bound))


@pytest.mark.parametrize(("took", "pause"), [(0.002, 1.0), (0.04, 8.0), (6.0, 10.0)])
def test_looks_in_full_are_rarer_where_they_take_long(took: float, pause: float) -> None:
    assert lower_bound._pause(took, lower_bound.FULL_LOOK_SHARE) == pytest.approx(pause)


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


def test_rows_put_back_beside_a_crashed_one_come_with_the_next_claim(
    bound: LowerBound, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "CRASHED_FIRST", 1.0)
    _, suspect, *others = make(Photo, 20)
    claim(Photo, 1, bound)
    set_raw(suspect, "not_before", "%s", [stored_moment(CRASHED)])
    bound.waited_first = 1.0
    assert keys(claim(Photo, 5, bound)) == [suspect.pk]
    assert keys(claim(Photo, 5, bound)) == keys(others[:5])


def test_the_statement_of_a_claim_is_compiled_only_at_first(
    clock: Clock, bound: LowerBound, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To compile it costs as much as twenty rows do; what it then says is told by every other test of these."""
    make(Photo, 40)
    for _ in range(3):
        claim(Photo, 4, bound)
    compiled: list[Any] = []
    usual = type(dialect_for(connection)).compiled
    monkeypatch.setattr(
        type(dialect_for(connection)),
        "compiled",
        lambda *args: compiled.append(args) or usual(*args),
    )
    assert len(claim(Photo, 4, bound)) == 4
    clock.now += FULL_LOOK_EVERY
    assert len(claim(Photo, 4, bound)) == 4
    assert compiled == []


@pytest.mark.django_db(transaction=True)
def test_what_was_claimed_before_the_rest_failed_is_found_by_its_holder(
    bound: LowerBound, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed by then where one statement claims; a worker gives it back, for nobody has got it."""
    dialect = dialect_for(connection)
    if not (dialect.claims_in_one_statement and dialect.commits_alone):
        pytest.skip("a claim is one transaction")
    make(Photo, 6)
    claim(Photo, 2, bound)

    def broken(*args: Any) -> Any:
        raise OperationalError("the disk is full")

    monkeypatch.setattr(LowerBound, "claim", broken)
    request = replace(checked_request(Photo, 6, None, None, False, True), bound=bound)
    with pytest.raises(OperationalError):
        Photo.objects.all()._claim(request)
    found: list[Any] = Photo.objects.all()._claimed_by([request.holder])
    assert len(found) == 4
    assert Photo.objects.release(found) == 4


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="the database has no row locks")
def test_a_strategy_of_many_statements_leaves_nothing_behind_that_it_took_in_vain(
    bound: LowerBound, settings: Any
) -> None:
    """A try that met a lock is rolled back as a whole before the next one."""
    settings.TASKCLAIM = {"CLAIM_STRATEGY": "compare_and_swap"}
    rows = make(Photo, 20)
    assert len(claim(Photo, 4, bound)) == 4
    locked, met = threading.Event(), threading.Event()

    def hold_one() -> None:
        with transaction.atomic():
            Photo.objects.filter(pk=rows[6].pk).update(country="XX")
            locked.set()
            met.wait(DEADLINE)

    def note_errors(execute: Any, *statement: Any) -> Any:
        try:
            return execute(*statement)
        except OperationalError:
            met.set()
            raise

    is_postgresql = connection.vendor == "postgresql"
    execute(
        "SET lock_timeout = '50ms'" if is_postgresql else "SET SESSION innodb_lock_wait_timeout = 1"
    )
    request = replace(checked_request(Photo, 4, None, 60, False, True), bound=bound)
    try:
        other = elsewhere(hold_one)
        assert locked.wait(DEADLINE)
        with connection.execute_wrapper(note_errors):
            taken: list[Any] = Photo.objects.all()._claim(request)
    finally:
        met.set()
        connection.close()
    other.result(DEADLINE)
    held = Photo.objects.filter(claimed_by=request.holder).values_list("pk", flat=True)
    assert sorted(held) == sorted(keys(taken))
    assert len(taken) == 4
