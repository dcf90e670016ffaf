"""``claim_batch``: how many rows, which ones, and what comes back."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.db.models import Count, Exists, F, OuterRef, Prefetch, Window
from django.db.models.functions import Lower, RowNumber
from django.db.models.signals import post_init
from django.test.utils import isolate_apps
from django.utils import timezone

from tests.factories import make
from tests.meanwhile import connected
from tests.querysets.models import (
    ChildOfOrdered,
    GrandChildProxy,
    Label,
    Labelled,
    OneToOneKey,
    Parcel,
    UuidLinks,
)
from tests.querysets.support import NoQueries, facts, fresh, keys, names
from tests.testapp.models import (
    Author,
    Child,
    ChildOwnsClaim,
    CompositeKey,
    HiddenRows,
    OrderedByForeignKey,
    Photo,
    PhotoProxy,
    UuidKey,
)

pytestmark = pytest.mark.django_db


# How many


@pytest.mark.promise(2)
def test_batches_hold_as_many_rows_as_asked_and_no_row_twice(kind_of_table: Any) -> None:
    rows = make(kind_of_table, 7)
    batches = [kind_of_table.objects.claim_batch(3) for _ in range(4)]
    assert [len(batch) for batch in batches] == [3, 3, 1, 0]
    assert sorted(row.pk for batch in batches for row in batch) == sorted(keys(rows))
    for batch in batches[:3]:
        (holder,) = {row.claim.token.holder for row in batch}
        assert "#" in holder
        held = kind_of_table._base_manager.filter(status="processing", claimed_by=holder)
        assert {*keys(held)} == {*keys(batch)}


WRONG: dict[str, list[dict[str, Any]]] = {
    "1 to 1000": [{"limit": limit} for limit in (0, 1001, True, "5", 1.5, None)],
    "lease": [{"lease": lease} for lease in (0, timedelta(0), "soon", True, math.nan, 1e15)],
    "claimed_by": [{"claimed_by": who} for who in ("", 17, "a#b", "x" * 201, "nul\x00")],
}


@pytest.mark.once
@pytest.mark.promise(2)
@pytest.mark.parametrize("named", WRONG)
def test_a_wrong_argument_is_a_value_error_that_names_it(
    named: str, django_assert_num_queries: NoQueries
) -> None:
    for arguments in WRONG[named]:
        with django_assert_num_queries(0), pytest.raises(ValueError, match=named):
            Photo.objects.claim_batch(**({"limit": 1} | arguments))


# Which rows


@pytest.mark.usefixtures("strategy")
def test_rows_that_wait_are_not_claimed_and_do_not_stand_in_the_way() -> None:
    now = timezone.now()
    make(Photo, 30, priority=9, not_before=now + timedelta(hours=1))
    due = make(Photo, 5, not_before=now - timedelta(seconds=60))
    assert keys(Photo.objects.claim_batch(3)) == keys(due[:3])
    assert keys(Photo.objects.order_by("-priority", "pk").claim_batch(3)) == keys(due[3:])


FILTERS: dict[str, Callable[[Any], Any]] = {
    "filter": lambda rows: rows.filter(note="yes").exclude(note__contains="100%"),
    "an IN of a subquery": lambda rows: rows.filter(
        note__in=rows.model._base_manager.filter(note="yes").values("note")
    ),
    "Exists": lambda rows: rows.filter(
        Exists(rows.model._base_manager.filter(pk=OuterRef("pk"), note="yes"))
    ),
    "an annotation": lambda rows: rows.annotate(low=Lower("note")).filter(low="yes"),
    "distinct": lambda rows: rows.filter(note="yes").distinct(),
    "a union of conditions": lambda rows: rows.filter(note="yes") | rows.filter(counter=99),
    "an order": lambda rows: rows.due().filter(note="yes").order_by("-pk"),
}


@pytest.mark.promise(2)
def test_only_rows_that_match_the_filter_are_claimed(kind_of_table: Any) -> None:
    make(kind_of_table, 6, note=lambda i: ["no", "yes"][i % 2], counter=lambda i: i % 2)
    for kind, narrow in FILTERS.items():
        rows = narrow(kind_of_table.objects.all())
        first, second = rows.claim_batch(2), rows.claim_batch(2)
        assert [row.note for row in [*first, *second]] == ["yes"] * 3, kind
        assert kind_of_table.objects.open().count() == 3, kind
        kind_of_table.objects.reset(running=True)


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
def test_a_child_is_filtered_by_columns_of_either_table(model: Any) -> None:
    make(model, 6, extra=lambda i: "ab"[i % 2], note=lambda i: "xyz"[i % 3])
    rows = model.objects.filter(extra="a", note__in=["x", "y"]).claim_batch(5)
    assert [(row.extra, row.note) for row in rows] == [("a", "x"), ("a", "y")]


@pytest.mark.promise(2)
@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("order", [[], ["labels__name"]])
def test_a_join_that_shows_rows_more_than_once_claims_each_once(order: list[str]) -> None:
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


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("model", [OneToOneKey, ChildOfOrdered, GrandChildProxy])
def test_rows_of_any_family_are_claimed_in_the_order_of_their_keys_and_completed(
    model: Any,
) -> None:
    """A key of another table, a parent with an order of its own, a grandchild."""
    for number in range(4):
        needs = {"author": Author.objects.create(name=f"{-number}")} if model is OneToOneKey else {}
        model.objects.create(note=f"{number}", **needs)
    claimed = [row for _ in range(2) for row in model.objects.claim_batch(2)]
    assert [row.note for row in claimed] == ["0", "1", "2", "3"]
    for row in claimed:
        row.note = "done"
    claimed[0].claim.complete(update_fields=["note"])
    assert model.objects.complete(claimed[1:], update_fields=["note"]) == 3
    assert [(fresh(row).note, facts(row).status) for row in claimed] == [("done", "complete")] * 4


def test_links_have_the_values_that_django_reads_and_a_limit_counts_by_them(rule: Any) -> None:
    twins = make(UuidKey, 2)
    for twin in twins:
        UuidLinks.objects.create(twin=twin, album=twins[0])
    rule(UuidLinks, limit_per={"album": 1})
    (row,) = UuidLinks.objects.claim_batch(2)
    assert (row.twin_id, row.album_id) == (fresh(row).twin_id, twins[0].pk)
    assert UuidLinks.objects.claim_batch(2) == []


def test_a_custom_manager_and_a_proxy_claim_rows_of_their_own_kind() -> None:
    make(HiddenRows, 4, hidden=lambda i: i % 2 == 0, note="ssh!")
    assert len(HiddenRows.objects.loud().claim_batch(9)) == 2
    assert len(HiddenRows.everything.claim_batch(9)) == 2
    make(Photo, 2)
    assert {type(row) for row in PhotoProxy.objects.claim_batch(1)} == {PhotoProxy}
    assert len(Photo.objects.claim_batch(9)) == 1


# What comes back


@isolate_apps("tests.testapp")
def test_methods_and_receivers_that_take_part_in_making_an_instance_are_called() -> None:
    class Initialised(Photo):
        class Meta:
            proxy = True
            app_label = "testapp"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.seen = True

    def receive(instance: Any, **kwargs: Any) -> None:
        instance.seen = True

    make(Photo, 2)
    model: Any = Initialised
    assert model.objects.claim_batch(1)[0].seen
    with connected(post_init, receive, sender=Photo):
        assert Photo.objects.claim_batch(1)[0].seen  # type: ignore[attr-defined]


def test_joins_and_prefetches_are_honoured(django_assert_num_queries: NoQueries) -> None:
    make(OrderedByForeignKey, 4)
    rows = OrderedByForeignKey.objects.select_related("author").claim_batch(4)
    with django_assert_num_queries(0):
        assert any(row.author.name for row in rows if row.author_id)
    assert OrderedByForeignKey.objects.complete(rows) == 4
    label = Label.objects.create(name="wanted")
    make(Labelled, 2)[0].labels.add(label)
    labelled = Labelled.objects.prefetch_related(Prefetch("labels", to_attr="found")).claim_batch(2)
    with django_assert_num_queries(0):
        assert [row.found for row in labelled] == [[label], []]


@pytest.mark.parametrize("model", [Photo, Child, CompositeKey, Parcel])
def test_a_claimed_instance_holds_what_a_loaded_one_does(
    model: Any, django_assert_num_queries: NoQueries
) -> None:
    """Also with annotations, and with columns deferred."""
    make(model, 4, note="asked for", counter=4)
    (whole,) = model.objects.claim_batch(1)
    loaded = model.objects.get(pk=whole.pk)
    for field in model._meta.concrete_fields:
        assert getattr(whole, field.attname) == getattr(loaded, field.attname)
    assert (whole._state.adding, whole._state.db) == (False, loaded._state.db)
    (more,) = model.objects.annotate(twice=F("counter") * 2).filter(twice__gt=0).claim_batch(1)
    (narrow,) = model.objects.only("note").claim_batch(1)
    (wide,) = model.objects.defer("note").claim_batch(1)
    assert getattr(more, names(model)["status"]) == "processing"
    assert "counter" in narrow.get_deferred_fields()
    assert wide.get_deferred_fields() == {"note"}
    with django_assert_num_queries(0):
        assert (more.twice, narrow.note, wide.counter) == (8, "asked for", 4)
    assert model.objects.complete([whole, more, narrow, wide]) == 4


def test_a_claimed_row_is_read_once_however_many_rows_its_filter_joins() -> None:
    make(Labelled, 1)[0].labels.set([Label.objects.create(name=f"{n}") for n in range(3)])
    labelled, reader = Labelled.objects.filter(labels__name__lt="9").defer("note"), Mock()
    with connected(post_init, reader, sender=Labelled):
        assert len(labelled.claim_batch(1)) == reader.call_count == 1


# Refused

REFUSED: dict[str, Callable[[Any], Any]] = {
    "slice": lambda rows: rows.order_by("pk")[2:5],
    "values": lambda rows: rows.values("note"),
    "values_list": lambda rows: rows.values_list("pk", flat=True),
    "aggregate": lambda rows: rows.annotate(n=Count("pk")),
    "union": lambda rows: rows.union(rows.all()),
    "distinct on fields": lambda rows: rows.distinct("note"),
    "dates": lambda rows: rows.dates("claimed_at", "day"),
    "window": lambda rows: rows.annotate(n=Window(RowNumber(), order_by="pk")).filter(n=1),
}
VERBS: dict[str, list[int]] = {
    "claim_batch": [1],
    "release_expired": [],
    "reset": [],
    "pause_rows": [],
}


@pytest.mark.once
@pytest.mark.promise(2)
@pytest.mark.parametrize("kind", REFUSED)
def test_a_queryset_that_cannot_be_claimed_from_is_refused_with_a_sentence(
    kind: str, django_assert_num_queries: NoQueries
) -> None:
    for verb, arguments in VERBS.items():
        rows = REFUSED[kind](Photo.objects.all())
        with django_assert_num_queries(0), pytest.raises(TypeError, match="Photo"):
            getattr(rows, verb)(*arguments)


def test_a_verb_on_an_empty_queryset_changes_nothing(kind_of_table: Any) -> None:
    make(kind_of_table, 2)
    for rows in kind_of_table.objects.none(), kind_of_table.objects.filter(pk__in=[]):
        for verb, arguments in VERBS.items():
            assert not getattr(rows, verb)(*arguments), verb
    assert kind_of_table.objects.open().count() == 2
