"""``claim_batch``: how many rows, which ones, and what comes back."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, models
from django.db.models import Count, Exists, F, OuterRef, Prefetch, Q, Window
from django.db.models.functions import Lower, RowNumber
from django.test import override_settings
from django.utils import timezone

from django_taskclaim.dialects import dialect_for
from tests.behaviour.models import Label, Labelled
from tests.behaviour.support import facts, keys, names
from tests.factories import make
from tests.testapp.models import (
    Child,
    ChildOwnsClaim,
    HiddenRows,
    OrderedByForeignKey,
    Parent,
    Photo,
    PhotoProxy,
)

pytestmark = pytest.mark.django_db

NoQueries = Callable[..., Any]


def stored_as_held(model: Any, holder: str) -> set[Any]:
    held = {names(model)["status"]: "processing", names(model)["claimed_by"]: holder}
    return set(model._base_manager.filter(**held).values_list("pk", flat=True))


# How many


def test_a_batch_is_never_larger_than_asked_and_nothing_is_claimed_twice(claimable: Any) -> None:
    rows = make(claimable, 7)
    batches = [claimable.objects.claim_batch(3) for _ in range(4)]
    assert [len(batch) for batch in batches] == [3, 3, 1, 0]
    claimed = [row.pk for batch in batches for row in batch]
    assert sorted(claimed) == sorted(keys(rows))


def test_the_rows_returned_are_exactly_those_stored_as_held(claimable: Any) -> None:
    make(claimable, 5)
    rows = claimable.objects.claim_batch(3)
    holder = rows[0].claim.token.holder
    assert set(keys(rows)) == stored_as_held(claimable, holder)
    assert {row.claim.token.holder for row in rows} == {holder}
    assert "#" in holder


def test_every_call_has_a_holder_of_its_own() -> None:
    make(Photo, 3)
    holders = {Photo.objects.claim_batch(1)[0].claim.token.holder for _ in range(3)}
    assert len(holders) == 3


@pytest.mark.parametrize("limit", [0, -1, 1001, True, "5", 1.5, None, math.inf])
def test_a_wrong_limit_is_a_value_error(limit: Any, django_assert_num_queries: NoQueries) -> None:
    with django_assert_num_queries(0), pytest.raises(ValueError, match="1 to 1000"):
        Photo.objects.claim_batch(limit)


@pytest.mark.parametrize("lease", [0, -1, timedelta(0), "60", True, math.nan, math.inf, 1e15])
def test_a_wrong_lease_is_a_value_error(lease: Any, django_assert_num_queries: NoQueries) -> None:
    with django_assert_num_queries(0), pytest.raises(ValueError, match="lease"):
        Photo.objects.claim_batch(1, lease=lease)


@pytest.mark.parametrize("name", ["", 17, "a#b", "x" * 201, "nul\x00", b"user:1"])
def test_a_wrong_name_is_a_value_error(name: Any, django_assert_num_queries: NoQueries) -> None:
    with django_assert_num_queries(0), pytest.raises(ValueError, match="claimed_by"):
        Photo.objects.claim_batch(1, claimed_by=name)


def test_a_strategy_that_the_database_has_not_is_refused_by_name() -> None:
    if "update_limit" in dialect_for(connection).strategies:
        pytest.skip("this database has every strategy that there is")
    make(Photo)
    asked = override_settings(TASKCLAIM={"CLAIM_STRATEGY": "update_limit"})
    with asked, pytest.raises(ValueError, match=r"update_limit. is not available"):
        Photo.objects.claim_batch(1)


# Which rows


@pytest.mark.usefixtures("strategy")
def test_rows_that_wait_are_not_claimed_until_they_are_due() -> None:
    now = timezone.now()
    later, due, soon = (
        make(Photo, not_before=now + timedelta(seconds=wait))[0] for wait in (3600, -60, 60)
    )
    assert keys(Photo.objects.claim_batch(5)) == [due.pk]
    assert {facts(row).status for row in (later, soon)} == {"open"}


@pytest.mark.usefixtures("strategy")
def test_rows_that_wait_do_not_stand_in_the_way_of_those_behind_them() -> None:
    make(Photo, 30, priority=9, not_before=timezone.now() + timedelta(hours=1))
    due = make(Photo, 5)
    assert keys(Photo.objects.claim_batch(3)) == keys(due[:3])
    assert keys(Photo.objects.order_by("-priority", "pk").claim_batch(3)) == keys(due[3:])


def test_only_open_rows_are_claimed(claimable: Any) -> None:
    make(claimable, 5)
    done, failed, running = claimable.objects.claim_batch(3)
    done.claim.complete()
    failed.claim.fail("no", retry=False)
    claimable._default_manager.filter(
        pk=claimable.objects.open().order_by("pk").first().pk
    ).pause_rows()
    assert len(claimable.objects.claim_batch(9)) == 1
    assert running.claim.check()


FILTERS: dict[str, Callable[[Any], Any]] = {
    "filter": lambda rows: rows.filter(note="yes"),
    "exclude": lambda rows: rows.exclude(note="no"),
    "Q with OR": lambda rows: rows.filter(Q(note="yes") | Q(counter=99)),
    "negated Q": lambda rows: rows.filter(~Q(note="no")),
    "an IN of a subquery": lambda rows: rows.filter(
        note__in=rows.model._base_manager.filter(note="yes").values("note")
    ),
    "Exists": lambda rows: rows.filter(
        Exists(rows.model._base_manager.filter(pk=OuterRef("pk"), note="yes"))
    ),
    "an annotation": lambda rows: rows.annotate(low=Lower("note")).filter(low="yes"),
    "an alias": lambda rows: rows.alias(twice=F("counter") * 2).filter(twice=2),
    "an expression": lambda rows: rows.filter(counter__gt=F("counter") - 1, counter=1),
    "chained": lambda rows: rows.filter(counter__gte=0).exclude(counter=0).filter(note="yes"),
    "distinct": lambda rows: rows.filter(note="yes").distinct(),
    "a union of querysets": lambda rows: rows.filter(note="yes") | rows.filter(counter=99),
    "open()": lambda rows: rows.open().filter(note="yes"),
    "due()": lambda rows: rows.due().filter(note="yes"),
    "an order": lambda rows: rows.filter(note="yes").order_by("-pk"),
    "a percent sign": lambda rows: rows.filter(note="yes").exclude(note__contains="100%"),
}


@pytest.mark.parametrize("kind", FILTERS)
def test_only_rows_that_match_the_filter_are_claimed(kind_of_table: Any, kind: str) -> None:
    make(kind_of_table, 6, note=lambda i: ["no", "yes"][i % 2], counter=lambda i: i % 2)
    rows = FILTERS[kind](kind_of_table.objects.all())
    first, second = rows.claim_batch(2), rows.claim_batch(2)
    assert [row.note for row in [*first, *second]] == ["yes"] * 3
    assert kind_of_table.objects.open().count() == 3


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
def test_a_child_is_filtered_by_columns_of_either_table(model: Any) -> None:
    make(model, 6, extra=lambda i: "ab"[i % 2], note=lambda i: "xyz"[i % 3])
    rows = model.objects.filter(extra="a", note__in=["x", "y"]).claim_batch(5)
    assert [(row.extra, row.note) for row in rows] == [("a", "x"), ("a", "y")]


def test_claims_of_a_child_take_no_plain_parents() -> None:
    make(Parent, 2)
    make(Child, 2)
    assert {type(row) for row in Child.objects.claim_batch(9)} == {Child}
    assert Parent.objects.open().count() == 2


@pytest.mark.usefixtures("strategy")
def test_a_filter_over_a_foreign_key_claims_what_matches() -> None:
    rows = make(OrderedByForeignKey, 6)
    wanted = next(row.author for row in rows if row.author)
    for row in rows[-3:]:
        models.QuerySet(OrderedByForeignKey).filter(pk=row.pk).update(author=wanted)
    claimed = OrderedByForeignKey.objects.filter(author__name=wanted.name).claim_batch(2)
    assert [row.author_id for row in claimed] == [wanted.pk] * 2
    rest = OrderedByForeignKey.objects.exclude(author__name=wanted.name).claim_batch(9)
    assert wanted.pk not in {row.author_id for row in rest}
    through_the_author = wanted.orderedbyforeignkey_set.claim_batch(9)
    assert [row.author_id for row in through_the_author] == [wanted.pk] * len(through_the_author)
    assert len(claimed) + len(rest) + len(through_the_author) == 6


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("order", [[], ["note"], ["labels__name"]])
def test_a_filter_that_shows_rows_more_than_once_claims_each_once(order: list[str]) -> None:
    labels = [Label.objects.create(name=f"label {number}") for number in range(3)]
    rows = make(Labelled, 4)
    for row in rows[:3]:
        row.labels.set(labels)
    matching = Labelled.objects.filter(labels__name__startswith="label").order_by(*order)
    claimed = matching.claim_batch(2)
    assert len({row.pk for row in claimed}) == 2
    assert Labelled.objects.filter(status="processing").count() == 2
    assert len(matching.claim_batch(9)) == 1
    assert keys(Labelled.objects.exclude(labels__name="label 1").claim_batch(9)) == [rows[3].pk]


def test_a_manager_that_hides_rows_claims_none_of_the_hidden() -> None:
    make(HiddenRows, 4, hidden=lambda i: i % 2 == 0, note="ssh!")
    assert len(HiddenRows.objects.loud().claim_batch(9)) == 2
    assert len(HiddenRows.everything.claim_batch(9)) == 2


def test_a_proxy_claims_the_rows_of_its_model_as_instances_of_itself() -> None:
    make(Photo, 2)
    rows = PhotoProxy.objects.claim_batch(1)
    assert {type(row) for row in rows} == {PhotoProxy}
    assert len(Photo.objects.claim_batch(9)) == 1


# What comes back


def test_select_related_is_honoured(django_assert_num_queries: NoQueries) -> None:
    make(OrderedByForeignKey, 4)
    rows = OrderedByForeignKey.objects.select_related("author").claim_batch(4)
    assert len(rows) == 4
    with django_assert_num_queries(0):
        assert any(row.author.name for row in rows if row.author_id)
    OrderedByForeignKey.objects.complete(rows)


def test_prefetches_are_honoured(django_assert_num_queries: NoQueries) -> None:
    label = Label.objects.create(name="wanted")
    make(Labelled, 2)[0].labels.add(label)
    wanted = Prefetch("labels", Label.objects.filter(name="wanted"), to_attr="wanted")
    rows = Labelled.objects.prefetch_related("labels", wanted).claim_batch(2)
    with django_assert_num_queries(0):
        assert [list(row.labels.all()) for row in rows] == [[label], []]
        assert [row.wanted for row in rows] == [[label], []]


def test_annotations_are_honoured(claimable: Any) -> None:
    make(claimable, 2, counter=lambda i: i + 1)
    rows = claimable.objects.annotate(twice=F("counter") * 2).filter(twice__gt=0).claim_batch(2)
    assert [row.twice for row in rows] == [row.counter * 2 for row in rows]
    assert {getattr(row, names(claimable)["status"]) for row in rows} == {"processing"}
    claimable.objects.complete(rows)


def test_only_and_defer_are_honoured(shape: Any, django_assert_num_queries: NoQueries) -> None:
    make(shape, 2, note="asked for", counter=4)
    (narrow,) = shape.objects.only("note").claim_batch(1)
    (wide,) = shape.objects.defer("note").claim_batch(1)
    assert "counter" in narrow.get_deferred_fields()
    assert wide.get_deferred_fields() == {"note"}
    with django_assert_num_queries(0):
        assert (narrow.note, wide.counter) == ("asked for", 4)
    shape.objects.complete([narrow, wide])


def test_extra_columns_are_honoured() -> None:
    make(Photo, 1, counter=4)
    (row,) = Photo.objects.extra(select={"more": "counter + 1"}).claim_batch(1)
    assert row.more == 5


def test_a_plain_claim_of_a_batch_costs_few_statements(
    django_assert_max_num_queries: NoQueries,
) -> None:
    make(Photo, 50)
    with django_assert_max_num_queries(6):
        rows = Photo.objects.claim_batch(50)
    with django_assert_max_num_queries(4):
        Photo.objects.complete(rows, update_fields=["width"])


# Refused

REFUSED: dict[str, Callable[[Any], Any]] = {
    "slice": lambda rows: rows[:5],
    "later slice": lambda rows: rows.order_by("pk")[2:],
    "values": lambda rows: rows.values(),
    "values of a column": lambda rows: rows.values("note"),
    "values_list": lambda rows: rows.values_list("pk", flat=True),
    "aggregate": lambda rows: rows.annotate(n=Count("pk")),
    "grouping": lambda rows: rows.values("note").annotate(n=Count("pk")),
    "union": lambda rows: rows.union(rows.all()),
    "distinct on fields": lambda rows: rows.distinct("note"),
    "dates": lambda rows: rows.dates("claimed_at", "day"),
    "window": lambda rows: rows.annotate(n=Window(RowNumber(), order_by="pk")).filter(n=1),
}


@pytest.mark.parametrize("verb", ["claim_batch", "release_expired", "reset", "pause_rows"])
@pytest.mark.parametrize("kind", REFUSED)
def test_a_queryset_that_cannot_be_claimed_from_is_refused_with_a_sentence(
    verb: str, kind: str, django_assert_num_queries: NoQueries
) -> None:
    make(Photo, 3)
    rows = REFUSED[kind](Photo.objects.all())
    arguments = [1] if verb == "claim_batch" else []
    with django_assert_num_queries(0), pytest.raises(TypeError, match="Photo"):
        getattr(rows, verb)(*arguments)


def test_an_order_by_an_annotation_is_refused_or_honoured(shape: Any) -> None:
    make(shape, 3, counter=lambda i: i)
    ordered = shape.objects.annotate(low=-F("counter")).order_by("low")
    with pytest.raises(TypeError, match="low"):
        ordered.claim_batch(2)


@pytest.mark.parametrize("verb", ["claim_batch", "release_expired", "reset", "pause_rows"])
@pytest.mark.parametrize("kind", ["none", "impossible"])
def test_a_queryset_of_nothing_changes_nothing(shape: Any, verb: str, kind: str) -> None:
    make(shape, 2)
    rows = shape.objects.none() if kind == "none" else shape.objects.filter(pk__in=[])
    assert not getattr(rows, verb)(*([3] if verb == "claim_batch" else []))
    assert shape.objects.open().count() == 2
