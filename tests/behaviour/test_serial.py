"""``serial_by``: rows of one key one at a time and in order."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_taskclaim.completion import Clear, Delete
from django_taskclaim.exceptions import RetryLater
from django_taskclaim.handlers import handler
from django_taskclaim.policy import Policy
from django_taskclaim.querysets import limits, serial
from tests.behaviour.support import ROW_LOCKS, at_once, elsewhere, held_open
from tests.factories import make
from tests.testapp.models import (
    Author,
    Child,
    ChildOwnsClaim,
    CompositeKey,
    OrderedByForeignKey,
    Photo,
)

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]
Lapse = Callable[[Any], None]


def photos(countries: str, **values: Any) -> list[Photo]:
    """Make a row for each letter, its country."""
    rows: list[Photo] = make(Photo, len(countries), country=lambda i: countries[i], **values)
    return rows


def claim(number: int = 9, rows: Any = None) -> list[Any]:
    found: list[Any] = (Photo.objects.all() if rows is None else rows).claim_batch(number)
    return found


def places(claimed: list[Any], rows: list[Any]) -> list[int]:
    return [rows.index(row) for row in claimed]


# One at a time, in order


def test_one_row_of_each_key_at_a_time(claimable: Any, rule: Rule) -> None:
    column = "extra" if claimable is ChildOwnsClaim else "counter"
    rule(claimable, serial_by=column)
    rows = make(claimable, 6, **{column: lambda i: i // 3})
    in_order = list(claimable._base_manager.order_by(*order_of(claimable)))
    assert set(in_order) == set(rows)
    by_key: dict[Any, list[Any]] = {}
    for row in in_order:
        by_key.setdefault(getattr(row, column), []).append(row.pk)
    done: dict[Any, list[Any]] = {key: [] for key in by_key}
    for _ in range(3):
        claimed = claimable.objects.claim_batch(6)
        assert len(claimed) == len({getattr(row, column) for row in claimed}) == 2
        assert claimable.objects.claim_batch(6) == []
        for row in claimed:
            done[getattr(row, column)].append(row.pk)
            row.claim.complete()
    assert done == by_key


def order_of(model: Any) -> list[str]:
    return ["tenant", "number"] if model is CompositeKey else ["pk"]


@pytest.mark.usefixtures("strategy")
def test_a_head_that_waits_for_its_retry_blocks_its_key_and_only_its_key(rule: Rule) -> None:
    rule(Photo, serial_by="country", backoff=lambda failures: 60)
    rows = photos("AABB")
    first, second = claim()
    assert places([first, second], rows) == [0, 2]
    first.claim.fail("not yet")
    second.claim.complete()
    assert places(claim(), rows) == [3]


@pytest.mark.usefixtures("strategy")
def test_a_head_that_is_put_back_is_the_head_again(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AAA")
    (head,) = claim()
    head.claim.release()
    assert places(claim(), rows) == [0]


def test_a_retry_that_is_due_comes_before_rows_that_never_waited(rule: Rule) -> None:
    """In the order of claims it stands behind them all."""
    rule(Photo, serial_by="country")
    rows = photos("AABB")
    (head, other) = claim()
    head.claim.fail(RetryLater(0.0))
    assert places([other], rows) == [2]
    assert places(claim(), rows) == [0]


@pytest.mark.parametrize("blocks", [True, False])
def test_a_failed_head_blocks_its_key_unless_told_otherwise(rule: Rule, blocks: bool) -> None:
    rule(Photo, serial_by="country", failed_blocks=blocks)
    rows = photos("AAB")
    head, _ = claim()
    Photo.objects.fail(head, "broken", retry=False)
    assert places(claim(), rows) == ([] if blocks else [1])
    if blocks:
        Photo.objects.reset()
        assert places(claim(), rows) == [0]


def test_a_paused_head_blocks_its_key(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AAB")
    Photo.objects.filter(pk=rows[0].pk).pause_rows()
    assert places(claim(), rows) == [2]
    Photo.objects.resume_rows()
    assert places(claim(), rows) == [0]


def test_a_paused_row_behind_the_head_blocks_nothing_yet(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AAA")
    Photo.objects.filter(pk=rows[1].pk).pause_rows()
    (head,) = claim()
    assert places([head], rows) == [0]
    head.claim.complete()
    assert claim() == []


def test_an_expired_head_blocks_until_the_reaper_has_put_it_back(
    rule: Rule, let_lease_lapse: Lapse
) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AA")
    head = claim()
    let_lease_lapse(head)
    assert claim() == []
    Photo.objects.release_expired()
    assert places(claim(), rows) == [0]


def test_a_filter_that_hides_the_head_does_not_free_its_key(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AAB", url=lambda i: "other" if i == 0 else "mine")
    mine = Photo.objects.filter(url="mine")
    assert places(claim(rows=mine), rows) == [2]
    (head,) = claim(rows=Photo.objects.filter(url="other"))
    assert claim(rows=mine) == []
    head.claim.complete()
    assert places(claim(rows=mine), rows) == [1]


def test_a_late_row_of_a_higher_priority_is_the_next_head(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AA")
    (head,) = claim()
    rows += photos("A", priority=5)
    assert claim() == []
    head.claim.complete()
    assert places(claim(), rows) == [2]


def test_the_order_of_the_handler_is_that_of_each_key(rule: Rule) -> None:
    rule(Photo, serial_by="country", order=("-width",))
    rows = photos("AAB", width=lambda i: i)
    assert sorted(places(claim(), rows)) == [1, 2]


def test_the_order_of_a_queryset_changes_no_head(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AAABB")
    assert sorted(places(claim(rows=Photo.objects.order_by("-pk")), rows)) == [0, 3]


def test_rows_without_a_key_are_free(rule: Rule) -> None:
    rule(OrderedByForeignKey, serial_by="author")
    author = Author.objects.create(name="one")
    make(OrderedByForeignKey, 6, author=lambda i: author if i % 2 else None)
    assert len(OrderedByForeignKey.objects.claim_batch(6)) == 4


def test_a_child_obeys_its_parent(rule: Rule) -> None:
    rule(Child.__mro__[1], serial_by="counter")
    make(Child, 3, counter=7)
    assert len(Child.objects.claim_batch(3)) == 1
    assert Child.objects.claim_batch(3) == []


def test_a_child_orders_by_its_own_columns(rule: Rule) -> None:
    rule(Child, serial_by="counter", order=("-extra",))
    rows = make(Child, 3, counter=7, extra=lambda i: "bca"[i])
    assert Child.objects.claim_batch(3) == [rows[1]]


def test_deleted_rows_make_room(rule: Rule) -> None:
    rule(Photo, serial_by="country", completion=Delete())
    rows = photos("AA")
    (head,) = claim()
    head.claim.complete()
    assert places(claim(), rows) == [1]


def test_it_goes_with_the_other_limits(rule: Rule) -> None:
    rule(Photo, serial_by="country", limit_per={"width": 2}, max_running=3)
    rows = photos("ABCDEA", width=lambda i: i // 4)
    assert places(claim(), rows) == [0, 1, 4]
    assert claim() == []


def test_people_keep_to_it(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AAB")
    mine = {"claimed_by": "user:17", "include_held": True}
    assert places(Photo.objects.claim_batch(5, **mine), rows) == [0, 2]
    assert places(Photo.objects.claim_batch(5, **mine), rows) == [0, 2]
    why = Photo.objects.why_empty("user:18")
    assert (why.limited, why.held, why.ready) == (1, 2, 0)


# Who looks at once


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.usefixtures("strategy")
def test_claims_that_meet_take_one_row_of_each_key(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AABBCC" * 4)
    found = at_once(*[lambda: Photo.objects.claim_batch(2)] * 6)
    assert sorted(places([row for some in found for row in some], rows)) == [0, 2, 4]


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
def test_a_claim_waits_for_one_of_the_same_table(rule: Rule) -> None:
    """Else a row of a higher priority, committed in between, could run beside the one being claimed."""
    rule(Photo, serial_by="country")
    photos("AA")
    with held_open(lambda: Photo.objects.claim_batch(1, durable=False)):
        elsewhere(lambda: photos("A", priority=9)).result()
        waiting = elsewhere(Photo.objects.claim_batch, 3)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
    (row,) = waiting.result()
    assert row.priority == 9


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.parametrize("verb", ["reset", "resume_rows"])
def test_a_head_that_is_opened_while_a_claim_looks_keeps_its_turn(
    rule: Rule, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The head is neither open nor in the way where a claim asks for both one after the other, in the wrong order."""
    rule(Photo, serial_by="country")
    rows, usual = photos("AA"), serial.Turns._first
    if verb == "reset":
        claim(1)[0].claim.fail("no", retry=False)
    else:
        Photo.objects.filter(pk=rows[0].pk).pause_rows()

    def first(turns: Any, *given: Any) -> Any:
        found = usual(turns, *given)
        monkeypatch.setattr(serial.Turns, "_first", usual)
        elsewhere(getattr(Photo.objects.filter(pk=rows[0].pk), verb)).result()
        return found

    monkeypatch.setattr(serial.Turns, "_first", first)
    assert rows[1] not in claim()
    Photo.objects.filter(status="processing").take_back()
    assert claim() == [rows[0]]


# Far from the front


@pytest.fixture(params=[True, False], ids=["index", "no index"])
def stepping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let claims believe that the table has, or has not, an index to step over keys with; right with either."""
    monkeypatch.setattr(limits, "has_key_index", lambda desk, field: request.param)
    monkeypatch.setattr(limits, "_last_keys", {})
    return bool(request.param)


@pytest.mark.usefixtures("stepping")
def test_heads_behind_a_crowd_are_reached(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    crowd, others = photos("A" * 450), photos("BBCC")
    assert claim() == [crowd[0], others[0], others[2]]
    assert claim() == []


@pytest.mark.usefixtures("stepping")
def test_a_retry_behind_its_own_key_is_reached(rule: Rule) -> None:
    """It stands behind 450 rows of its key that have to wait for it."""
    rule(Photo, serial_by="country")
    crowd = photos("A" * 450)
    (head,) = claim()
    head.claim.release(delay=timedelta(0))
    assert claim() == crowd[:1]


# What is refused


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"serial_by": "contry"}, ValueError, "serial_by counts by columns of"),
        ({"serial_by": "claimed_by"}, ValueError, "is a claim column"),
        ({"serial_by": ["country"]}, TypeError, "name of one column"),
        ({"serial_by": "country", "completion": Clear()}, ValueError, "never have their turn"),
        ({"serial_by": "country", "order_by": ["?"]}, ValueError, "stays the same"),
        ({"failed_blocks": False}, ValueError, "serial_by, which is not given"),
    ],
)
def test_a_wrong_series_is_refused_in_a_sentence(given: Any, error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        handler(Photo, **given)(lambda row: None)


def test_models_without_it_have_no_series() -> None:
    assert limits.limits_over(Photo) == []
    assert Policy().own_serial_by is None
