"""``claim_batch``: in which order rows are taken, and how they come."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F, Value
from django.db.models.functions import Concat, Lower
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_taskclaim import policy
from django_taskclaim.columns import claim_columns
from django_taskclaim.dialects import dialect_for
from django_taskclaim.policy import Policy
from tests.behaviour.models import FoldedKey, FoldedPair, Label, Labelled
from tests.behaviour.support import keys, names
from tests.factories import make
from tests.testapp.models import (
    Author,
    Child,
    ChildOwnsClaim,
    OrderedByForeignKey,
    Photo,
    PrefixedOwnStatus,
    UuidKey,
)

pytestmark = pytest.mark.django_db

PRIORITISED = [Photo, Child, ChildOwnsClaim, PrefixedOwnStatus]


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("model", PRIORITISED)
def test_priority_then_waiting_time_then_key_decide(model: Any) -> None:
    past = timezone.now() - timedelta(hours=1)
    priority, not_before = names(model)["priority"], names(model)["not_before"]
    spec = [(0, 0), (5, 0), (0, 2), (5, 0), (0, 1), (9, 1)]
    for first, then in spec:
        make(model, **{priority: first, not_before: past + timedelta(minutes=then)})
    in_order = model._base_manager.order_by(f"-{priority}", not_before, "pk")
    assert_claimed_in_twos(model, [row.pk for row in in_order])


def test_without_a_priority_the_key_decides(claimable: Any) -> None:
    make(claimable, 6)
    assert_claimed_in_twos(claimable, [row.pk for row in claimable._base_manager.order_by("pk")])


def assert_claimed_in_twos(model: Any, expected: list[Any]) -> None:
    """The database decides how keys compare: MariaDB's native uuid sorts in its own way."""
    batches = [keys(model.objects.claim_batch(2)) for _ in range(3)]
    assert batches == [expected[:2], expected[2:4], expected[4:]]


def in_order(model: Any) -> list[str]:
    """Make rows whose keys are letters, and return these in the order of the database; Python has capitals first."""
    for letter in "HgFeDcBa":
        model.objects.create(key=letter)
    return list(model._base_manager.order_by("key").values_list("key", flat=True))


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("model", [FoldedKey, FoldedPair])
def test_text_keys_come_in_the_order_of_the_database(model: Any) -> None:
    letters = in_order(model)
    first = model.objects.claim_batch(3, claimed_by="user:1")
    both = model.objects.claim_batch(5, claimed_by="user:1", include_held=True)
    assert [row.key for row in [*first, *both]] == [*letters[:3], *letters[:5]]
    assert [row.key for row in model.objects.holdings("user:1")] == letters[:5]
    model.objects.release(both)
    assert [row.key for row in model.objects.claim_batch(9)] == letters


@pytest.mark.parametrize("model", [Photo, UuidKey, FoldedKey])
def test_only_keys_that_python_cannot_compare_cost_a_statement(model: Any) -> None:
    if model is FoldedKey:
        in_order(model)
    else:
        make(model, 6)
    sent = []
    for size in (1, 3):
        with CaptureQueriesContext(connection) as queries:
            assert len(model.objects.claim_batch(size)) == size
        sent.append(len(queries))
    compared = not dialect_for(connection).table(claim_columns(model)).sorts_as_python
    assert sent[1] - sent[0] == compared
    assert compared is (model is FoldedKey or (model is UuidKey and has_own_uuid()))


def has_own_uuid() -> bool:
    return connection.vendor == "mysql" and connection.features.has_native_uuid_field


@pytest.mark.usefixtures("strategy")
def test_an_order_in_meta_is_ignored() -> None:
    """The authors' names would turn the keys round, and a join would cost more than the claim."""
    rows = make(OrderedByForeignKey, 4)
    assert keys(OrderedByForeignKey.objects.all()) != keys(rows)
    assert keys(OrderedByForeignKey.objects.claim_batch(4)) == keys(rows)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (["note"], [3, 2, 0]),
        (["-note"], [1, 0, 2]),
        (["counter", "-note"], [0, 3, 2]),
        (["-counter", "note"], [1, 2, 3]),
        ([F("note").desc()], [1, 0, 2]),
        ([Lower("note").asc(), "pk"], [3, 2, 0]),
        ([Concat("note", Value("x"))], [3, 2, 0]),
    ],
)
def test_an_explicit_order_decides_which_rows_are_taken_and_how_they_come(
    kind_of_table: Any, order: Any, expected: list[int]
) -> None:
    rows = make(kind_of_table, 4, note=lambda i: "cdba"[i], counter=lambda i: [0, 2, 1, 0][i])
    asked = [f"{item}" if isinstance(item, str) else item for item in order]
    claimed = kind_of_table.objects.order_by(*asked).claim_batch(3)
    assert [keys(rows).index(row.pk) for row in claimed] == expected


def test_a_reversed_order_is_reversed(kind_of_table: Any) -> None:
    rows = make(kind_of_table, 4, note=lambda i: "cdba"[i])
    claimed = kind_of_table.objects.order_by("note").reverse().claim_batch(3)
    assert [keys(rows).index(row.pk) for row in claimed] == [1, 0, 2]


@pytest.mark.parametrize("order", [["-note"], [F("note").desc(), "pk"], ["-counter", "-note"]])
def test_the_order_of_the_policy_is_that_of_every_claim(
    kind_of_table: Any, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the queryset names one; a person's rows come back in it, too."""
    monkeypatch.setitem(policy._policies, kind_of_table, Policy(own_order=order))
    rows = make(kind_of_table, 6, note=lambda i: "bcafde"[i])
    taken = lambda claimed: [keys(rows).index(row.pk) for row in claimed]  # noqa: E731
    objects = kind_of_table.objects
    assert taken(objects.claim_batch(2, claimed_by="ada")) == [3, 5]
    assert taken(objects.claim_batch(3, claimed_by="ada", include_held=True)) == [3, 5, 4]
    assert taken(objects.all().holdings("ada")) == [3, 5, 4]
    assert taken(objects.order_by("note").claim_batch(1)) == [2]
    assert taken(objects.all().claim_batch(1)) == [1]


@pytest.mark.usefixtures("strategy")
def test_an_order_over_a_foreign_key_keeps_rows_that_have_none() -> None:
    rows = make(OrderedByForeignKey, 5)
    by_name = sorted((row for row in rows if row.author), key=lambda row: row.author.name)
    ordered = OrderedByForeignKey.objects.order_by(F("author__name").asc(nulls_last=True), "pk")
    assert keys(ordered.claim_batch(3)) == keys(by_name)[:3]
    assert len(OrderedByForeignKey.objects.order_by("author__name").claim_batch(9)) == 2


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([F("width").asc(nulls_last=True), "pk"], [3, 1, 0]),
        ([F("width").desc(nulls_last=True), "pk"], [1, 3, 0]),
        ([F("width").asc(nulls_first=True), "-pk"], [2, 0, 3]),
        (["country", F("width").desc(nulls_last=True), "pk"], [1, 0, 3]),
        (["-country", F("width").asc(nulls_last=True)], [3, 2, 0]),
    ],
)
def test_columns_of_the_users_own_order_also_where_they_are_null(
    order: Any, expected: list[int]
) -> None:
    rows = make(
        Photo, 4, width=lambda i: [None, 9, None, 5][i], country=lambda i: ["B", "A", "C", "C"][i]
    )
    claimed = Photo.objects.order_by(*order).claim_batch(3)
    assert [keys(rows).index(row.pk) for row in claimed] == expected


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_column_of_a_related_table_orders_either_way(sign: str) -> None:
    rows = make(OrderedByForeignKey, 4, author=lambda i: Author.objects.create(name="bdac"[i]))
    claimed = OrderedByForeignKey.objects.order_by(f"{sign}author__name").claim_batch(2)
    assert [keys(rows).index(row.pk) for row in claimed] == ([1, 3] if sign else [2, 0])


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
@pytest.mark.parametrize(
    "order",
    [
        ["extra"],
        ["note"],
        ["-extra", "note"],
        [F("extra").asc()],
        [Lower("extra")],
        [F("note").asc()],
    ],
)
def test_a_child_is_ordered_by_columns_of_either_table(model: Any, order: Any) -> None:
    rows = make(model, 4, extra=lambda i: "dcba"[i], note=lambda i: "dcba"[i])
    turned = isinstance(order[0], str) and order[0].startswith("-")
    expected = keys(rows)[:2] if turned else keys(reversed(rows))[:2]
    assert keys(model.objects.order_by(*order).claim_batch(2)) == expected


def test_a_random_order_takes_as_many_rows_as_asked(kind_of_table: Any) -> None:
    make(kind_of_table, 6)
    assert len({row.pk for row in kind_of_table.objects.order_by("?").claim_batch(4)}) == 4


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_an_order_that_shows_rows_more_than_once_claims_each_once(limit: int) -> None:
    labels = [Label.objects.create(name=f"label {number}") for number in range(12)]
    rows = make(Labelled, 3)
    for row in rows:
        row.labels.set(labels)
    claimed = Labelled.objects.order_by("labels__name").claim_batch(limit)
    assert 1 <= len(claimed) <= min(limit, 3)
    assert len(set(keys(claimed))) == len(claimed)
    held = Labelled.objects.filter(status="processing")
    assert set(keys(held)) == set(keys(claimed))
