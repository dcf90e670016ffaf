"""``claim_batch``: how many rows, which ones, in which order, and what comes back."""

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, models, transaction
from django.db.models import Count, Exists, F, OuterRef, Prefetch, Q, Value, Window
from django.db.models.functions import Concat, Lower, RowNumber
from django.test import override_settings
from django.utils import timezone

from django_taskclaim import policy
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.policy import Policy
from tests.behaviour.models import Label, Labelled
from tests.behaviour.support import facts, fresh, names
from tests.factories import make
from tests.testapp.models import (
    Author,
    Child,
    ChildOwnsClaim,
    HiddenRows,
    OrderedByForeignKey,
    Parent,
    Photo,
    PhotoProxy,
    PrefixedOwnStatus,
)

pytestmark = pytest.mark.django_db

NoQueries = Callable[..., Any]


def stored_as_held(model: Any, holder: str) -> set[Any]:
    held = {names(model)["status"]: "processing", names(model)["claimed_by"]: holder}
    return set(model._base_manager.filter(**held).values_list("pk", flat=True))


def keys(rows: Any) -> list[Any]:
    return [row.pk for row in rows]


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
    make(Photo)
    missing = "postponed" if connection.vendor == "mysql" else "update_limit"
    asked = override_settings(TASKCLAIM={"CLAIM_STRATEGY": missing})
    with asked, pytest.raises(ValueError, match=f"{missing}.*not available"):
        Photo.objects.claim_batch(1)


# In which order

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
    batches = [set(keys(model.objects.claim_batch(2))) for _ in range(3)]
    assert batches == [{*expected[:2]}, {*expected[2:4]}, {*expected[4:]}]


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


# Committed before it returns


@pytest.mark.usefixtures("strategy")
class TestDurability:
    pytestmark = pytest.mark.django_db(transaction=True)

    def test_a_claim_has_committed_when_it_returns(self, rival: Any) -> None:
        make(Photo, 3)
        Photo.objects.claim_batch(2)
        with rival.connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM testapp_photo WHERE status = 'processing'")
            assert cursor.fetchone() == (2,)

    def test_inside_a_transaction_it_is_refused_and_claims_nothing(self) -> None:
        make(Photo)
        with transaction.atomic(), pytest.raises(RuntimeError):
            Photo.objects.claim_batch(1)
        assert Photo.objects.open().count() == 1

    def test_without_autocommit_it_is_refused_and_claims_nothing(self) -> None:
        make(Photo)
        connection.set_autocommit(False)
        try:
            with pytest.raises(RuntimeError, match="autocommit"):
                Photo.objects.claim_batch(1)
            transaction.rollback()
        finally:
            connection.set_autocommit(True)
        assert Photo.objects.open().count() == 1

    def test_a_provisional_claim_goes_with_the_callers_transaction(self) -> None:
        make(Photo)
        with transaction.atomic():
            (row,) = Photo.objects.claim_batch(1, durable=False)
            assert row.claim.check()
            transaction.set_rollback(True)
        assert facts(row).status == "open"
        with pytest.raises(ClaimLost):
            row.claim.complete()

    def test_a_provisional_claim_stands_once_the_caller_commits(self) -> None:
        make(Photo)
        with transaction.atomic():
            (row,) = Photo.objects.claim_batch(1, durable=False)
        row.claim.complete()
        assert facts(row).status == "complete"

    def test_a_provisional_claim_works_without_autocommit(self) -> None:
        make(Photo)
        connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
        try:
            (row,) = Photo.objects.claim_batch(1, durable=False)
            transaction.rollback()
        finally:
            connection.set_autocommit(True)
        assert facts(row).status == "open"


def test_in_a_testcase_claims_work_as_they_are() -> None:
    """Every test without ``transaction=True`` runs so; this one proves that there is a transaction."""
    make(Photo)
    assert connection.in_atomic_block
    assert len(Photo.objects.claim_batch(1)) == 1


# Which database


@pytest.mark.django_db(databases="__all__")
class TestAliases:
    def test_claims_and_verbs_stay_on_the_alias_that_was_named(self) -> None:
        here, there = Photo.objects.create(), Photo.objects.using("other").create()
        (row,) = Photo.objects.using("other").claim_batch(5)
        assert (row.pk, row._state.db) == (there.pk, "other")
        row.note = "saved there"
        row.save()
        row.claim.renew()
        row.claim.complete(update_fields=["note"])
        assert facts(here).status == "open"
        assert facts(there).status == "complete"
        assert fresh(there).note == "saved there"

    def test_rows_of_two_databases_may_be_given_to_one_verb(self) -> None:
        Photo.objects.create()
        Photo.objects.using("other").create()
        rows = [*Photo.objects.claim_batch(1), *Photo.objects.using("other").claim_batch(1)]
        assert Photo.objects.renew(rows) == 2
        assert Photo.objects.complete(rows) == 2

    def test_the_same_key_on_another_database_is_another_row(self) -> None:
        """A save with ``using=`` copies the row there; the claim is one of a row here."""
        Photo.objects.create(pk=1)
        (row,) = Photo.objects.claim_batch(1)
        row.save(using="other")
        assert row.claim.token
        assert Photo.objects.using("other").get(pk=1).status == "open"

    @pytest.mark.parametrize("verb", ["with_token", "claim", "reaper", "people", "operator"])
    def test_nothing_is_ever_decided_from_a_replica(
        self, verb: str, reads_go_elsewhere: Any
    ) -> None:
        make(Photo, 4)
        assert not Photo.objects.exists()  # the replica has seen nothing yet
        with reads_go_elsewhere() as queries:
            rows = Photo.objects.filter(note="").order_by("-pk").claim_batch(2, claimed_by="user:1")
            assert len(rows) == 2
            if verb == "with_token":
                row = Photo.objects.with_token(rows[0].pk, rows[0].claim.token)
                assert row.claim.check()
                row.complete(update_fields=["note"])
            elif verb == "claim":
                rows[0].renew()
                rows[0].save()
                rows[0].fail("no")
                rows[1].delete()
            elif verb == "reaper":
                models.QuerySet(Photo).using("default").update(expires_at=None)
                assert Photo.objects.filter(note="").release_expired() == 2
            elif verb == "people":
                again = Photo.objects.claim_batch(3, claimed_by="user:1", include_held=True)
                assert len(again) == 3
            else:
                assert Photo.objects.filter(country="").reset(running=True) == 2
                assert Photo.objects.filter(country="").pause_rows() == 4
        assert [query["sql"] for query in queries] == []


class ReadsElsewhere:
    """Sends reads to "other", as to a replica that lags for ever."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, *args: Any, **hints: Any) -> bool:
        return True


@pytest.fixture
def reads_go_elsewhere() -> Iterator[Any]:
    from django.test.utils import CaptureQueriesContext

    with override_settings(DATABASE_ROUTERS=[f"{__name__}.ReadsElsewhere"]):
        yield lambda: CaptureQueriesContext(connections["other"])


def test_authors_are_left_alone() -> None:
    """The joins of a claim read; they neither lock nor write what they join to."""
    rows = make(OrderedByForeignKey, 3)
    names_before = list(Author.objects.order_by("pk").values_list("name", flat=True))
    OrderedByForeignKey.objects.filter(author__name__startswith="author").claim_batch(3)
    assert list(Author.objects.order_by("pk").values_list("name", flat=True)) == names_before
    assert rows
