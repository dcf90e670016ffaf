"""``claim_batch``: in which order rows are taken, and how they come."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Case, F, When
from django.db.models.functions import Lower
from django.utils import timezone

from tests.factories import make
from tests.querysets.models import FoldedKey
from tests.querysets.support import keys, names
from tests.testapp.models import (
    Child,
    ChildOwnsClaim,
    CompositeKey,
    OrderedByForeignKey,
    Photo,
    PrefixedOwnStatus,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("strategy")]


@pytest.mark.parametrize("model", [Photo, ChildOwnsClaim, PrefixedOwnStatus])
def test_priority_then_waiting_time_then_key_decide(model: Any) -> None:
    past = timezone.now() - timedelta(hours=1)
    priority, not_before = names(model)["priority"], names(model)["not_before"]
    for first, then in [(0, 0), (5, 0), (0, 2), (5, 0), (0, 1), (9, 1)]:
        make(model, **{priority: first, not_before: past + timedelta(minutes=then)})
    assert_claimed_in_twos(model, model._base_manager.order_by(f"-{priority}", not_before, "pk"))


@pytest.mark.parametrize("model", [CompositeKey, OrderedByForeignKey, FoldedKey])
def test_without_a_priority_the_key_decides(model: Any) -> None:
    """Ordering in ``Meta`` is ignored, and the database decides how keys compare: Python has capitals first."""
    make(model, 6, **({"key": lambda i: "HgFeDc"[i]} if model is FoldedKey else {}))
    assert_claimed_in_twos(model, model._base_manager.order_by("pk"))


def assert_claimed_in_twos(model: Any, in_order: Any) -> None:
    expected = keys(in_order)
    batches = [keys(model.objects.claim_batch(2)) for _ in range(3)]
    assert batches == [expected[:2], expected[2:4], expected[4:]]


@pytest.mark.parametrize("model", [Photo, Child])
def test_an_explicit_order_decides_which_rows_are_taken_and_how_they_come(model: Any) -> None:
    own = "extra" if model is Child else "url"
    rows = make(model, 4, note=lambda i: "cdba"[i], counter=lambda i: [0, 2, 1, 0][i], **{own: "d"})
    ordered = model.objects.order_by
    cases: list[tuple[Any, list[int]]] = [
        (ordered("note"), [3, 2, 0]),
        (ordered("note").reverse(), [1, 0, 2]),
        (ordered("note").reverse().annotate(twice=F("counter") * 2), [1, 0, 2]),
        (ordered("counter", "-note"), [0, 3, 2]),
        (ordered(F("note").desc()), [1, 0, 2]),
        (ordered(Lower("note").asc(), "pk"), [3, 2, 0]),
        (ordered(Case(When(note="d", then=1), default=2), "pk"), [1, 0, 2]),
        (ordered(Case(When(note=F(own), then=1), default=2), "pk"), [1, 0, 2]),
    ]
    for chosen, expected in cases:
        claimed = chosen.claim_batch(3)
        assert [keys(rows).index(row.pk) for row in claimed] == expected, chosen.query.order_by
        model.objects.reset(running=True)
    assert len({row.pk for row in ordered("?").claim_batch(4)}) == 4


@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_the_order_of_the_policy_is_that_of_every_claim(model: Any, rule: Any) -> None:
    """A person's rows come back in it, too; an order of the queryset comes before it."""
    rule(model, order_by=[F("note").desc(), "pk"])
    rows = make(model, 6, note=lambda i: "bcafde"[i])
    taken = lambda claimed: [keys(rows).index(row.pk) for row in claimed]  # noqa: E731
    objects = model.objects
    assert taken(objects.claim_batch(2, claimed_by="ada")) == [3, 5]
    assert taken(objects.claim_batch(3, claimed_by="ada", include_held=True)) == [3, 5, 4]
    assert taken(objects.all().holdings("ada")) == [3, 5, 4]
    assert taken(objects.order_by("note").claim_batch(1)) == [2]
    assert taken(objects.all().claim_batch(1)) == [1]


def test_an_order_over_a_foreign_key_keeps_rows_that_have_none() -> None:
    rows = make(OrderedByForeignKey, 5)
    by_name = sorted((row for row in rows if row.author), key=lambda row: row.author.name)
    ordered = OrderedByForeignKey.objects.order_by(F("author__name").asc(nulls_last=True), "pk")
    assert keys(ordered.claim_batch(3)) == keys(by_name)[:3]
    assert len(OrderedByForeignKey.objects.order_by("author__name").claim_batch(9)) == 2
