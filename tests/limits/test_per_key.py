"""Limits per key: at most so many rows of one customer at once, over all holders."""

from collections import Counter
from typing import Any

import pytest

from django_taskclaim.handlers import handler
from tests.factories import make
from tests.querysets.support import Rule, lapse, names
from tests.testapp.models import (
    Author,
    Child,
    ChildOwnsClaim,
    CompositeKey,
    OrderedByForeignKey,
    Photo,
)
from tests.testapp.odd_models import Parcel

pytestmark = pytest.mark.django_db


def countries(rows: Any) -> dict[str, int]:
    return dict(Counter(row.country for row in rows))


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize(
    ("model", "column"),
    # Of a child, a column of the table that the claim columns are on.
    [(Parcel, "n"), (Child, "counter"), (ChildOwnsClaim, "extra"), (CompositeKey, "tenant")],
)
def test_no_more_rows_of_a_key_run_at_once(model: Any, column: str, rule: Rule) -> None:
    """For any holder; what a dead worker held counts until it is put back."""
    rule(model, limit_per={column: 2})
    make(model, 7, **{column: lambda i: str(i // 3)})
    first = model.objects.claim_batch(7)
    held = model._base_manager.filter(**{names(model)["status"]: "processing"})
    assert sorted(Counter(held.values_list(column, flat=True)).values()) == [1, 2, 2]
    assert model.objects.claim_batch(7, claimed_by="user:18") == []
    done = next(row for row in first if str(getattr(row, column)) == "0")
    done.claim.complete()
    (again,) = model.objects.claim_batch(7)
    assert str(getattr(again, column)) == "0"
    lapse([row for row in first if row is not done])
    assert model.objects.claim_batch(7) == []
    assert model.objects.release_expired() == 4
    assert len(model.objects.claim_batch(7)) == 4


@pytest.mark.usefixtures("strategy")
def test_rows_come_in_claim_order_and_the_next_keys_follow(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 2})
    rows = make(Photo, 8, country=lambda i: "AAAABBBC"[i], priority=lambda i: i == 3)
    found = Photo.objects.claim_batch(4)
    assert [rows.index(row) for row in found] == [3, 0, 4, 5]
    assert countries(Photo.objects.claim_batch(4)) == {"C": 1}


@pytest.mark.usefixtures("strategy")
def test_rows_without_a_key_are_not_limited(rule: Rule) -> None:
    rule(OrderedByForeignKey, limit_per={"author": 1})
    author = Author.objects.create(name="one")
    make(OrderedByForeignKey, 6, author=lambda i: author if i % 2 else None)
    found = OrderedByForeignKey.objects.claim_batch(6)
    assert Counter(row.author_id for row in found) == {None: 3, author.pk: 1}


def test_keys_that_a_collation_takes_for_one_are_counted_apart(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 1})
    make(Photo, 6, country=lambda i: ["aa", "AA", "Aa"][i % 3])
    assert countries(Photo.objects.claim_batch(6)) == {"aa": 1, "AA": 1, "Aa": 1}
    assert Photo.objects.claim_batch(6) == []


def test_what_a_person_holds_comes_back_and_counts(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 2})
    make(Photo, 8, country=lambda i: "AB"[i // 4])
    mine = {"claimed_by": "user:17", "include_held": True}
    first = Photo.objects.claim_batch(3, **mine)
    assert countries(first) == {"A": 2, "B": 1}
    assert Photo.objects.claim_batch(3, **mine) == first
    first[0].claim.complete()
    assert countries(Photo.objects.claim_batch(6, **mine)) == {"A": 2, "B": 2}


@pytest.mark.usefixtures("strategy")
def test_what_stands_behind_a_crowd_without_room_is_reached(rule: Rule) -> None:
    """Also rows without a key."""
    rule(Photo, limit_per={"width": 2})
    Photo.objects.bulk_create(Photo(width=1) for _ in range(450))
    make(Photo, 9, width=lambda i: [2, None, 3][i // 3])
    found = [Counter(row.width for row in Photo.objects.claim_batch(5)) for _ in range(3)]
    assert found == [{1: 2, 2: 2, None: 1}, {None: 2, 3: 2}, {}]


@pytest.mark.once
@pytest.mark.parametrize(
    ("model", "limit"),
    [
        (Photo, {"country": 0}),
        (Photo, ["country"]),
        (Photo, {"contry": 2}),
        (Photo, {"claimed_by": 2}),
        (Parcel, {"facts": 2}),
        # On the parent's table, which has the claim columns, there is none; a composite key is several.
        (Child, {"extra": 2}),
        (CompositeKey, {"pk": 2}),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(model: Any, limit: Any) -> None:
    with pytest.raises(ValueError, match="limit_per"):
        handler(model, limit_per=limit)(lambda row: None)
