"""Completion policies that delete or archive a row that is done, in the transaction that checks its claim."""

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.db.models.signals import post_delete, pre_delete
from django.test.utils import CaptureQueriesContext

from django_taskclaim.completion import Archive, Delete
from django_taskclaim.exceptions import ClaimLost
from tests.behaviour.completing import DELETES, claimed, gone, refused
from tests.behaviour.models import (
    Back,
    ChildArchive,
    Complaint,
    CompositeArchive,
    Front,
    GrandChild,
    Parcel,
    ParcelArchive,
    Receipt,
    Sheet,
    Stamp,
)
from tests.behaviour.support import fresh, lose, stored
from tests.factories import make
from tests.testapp.models import Child, ChildOwnsClaim, CompositeKey, Parent, Photo, PlainParent

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]


# Deleting


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
def test_what_is_done_is_gone(shape: Any, how: Delete, rule: Rule) -> None:
    """From every table that has a part of the row; others stay."""
    rule(shape, completion=how)
    rows = claimed(shape, 3)
    keys = [row.pk for row in rows]
    (other,) = make(shape)
    assert shape.objects.complete(rows) == 3
    assert all(gone(row, key) for row, key in zip(rows, keys, strict=True))
    assert stored(other)
    assert [row.pk for row in rows] == keys


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
def test_a_lost_claim_deletes_nothing(shape: Any, how: Delete, rule: Rule) -> None:
    rule(shape, completion=how)
    rows = claimed(shape, 3)
    lose(rows[1])
    before = stored(rows[1])
    refused(rows, [rows[1]])
    assert stored(rows[1]) == before
    assert gone(rows[0], rows[0].pk)
    assert gone(rows[2], rows[2].pk)


def test_a_batch_is_deleted_by_one_statement(rule: Rule) -> None:
    rule(Photo, completion="delete")
    rows = claimed(Photo, 20)
    holder = rows[0].claim.token.holder
    with CaptureQueriesContext(connection) as sent:
        Photo.objects.complete(rows)
    deletes = [query["sql"] for query in sent if query["sql"].startswith("DELETE")]
    assert len(deletes) == 1
    assert holder in deletes[0]


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_a_deletion_that_is_rolled_back_leaves_the_claim(
    model: Any, how: Delete, rule: Rule
) -> None:
    rule(model, completion=how)
    (row,) = claimed(model, 1)
    before = stored(row)
    with transaction.atomic():
        row.claim.complete()
        assert gone(row, row.pk)
        transaction.set_rollback(True)
    assert stored(row) == before
    row.claim.complete()
    assert gone(row, row.pk)


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, CompositeKey])
def test_an_instance_whose_row_is_gone_never_comes_back(
    model: Any, how: Delete, rule: Rule
) -> None:
    """It would be open, be done and be saved again, for ever."""
    rule(model, completion=how)
    (row,) = claimed(model, 1)
    row.claim.complete()
    with pytest.raises(ClaimLost, match="never inserts its key"), transaction.atomic():
        row.save()
    assert not model.objects.exists()
    with pytest.raises(ClaimLost):
        row.claim.complete()


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
def test_children_go_with_the_parent_that_was_claimed(how: Delete, rule: Rule) -> None:
    rule(Parent, completion=how)
    (lonely,) = make(Parent)
    (child,) = make(Child)
    (grandchild,) = make(GrandChild)
    (kept,) = make(GrandChild, status="paused")
    rows = Parent.objects.claim_batch(3)
    Parent.objects.complete(rows)
    assert all(gone(row, row.pk) for row in (lonely, child, grandchild))
    assert stored(kept)


def test_a_child_goes_with_its_parents_and_its_own_children(rule: Rule) -> None:
    rule(Child, completion="delete")
    (grandchild,) = make(GrandChild)
    (row,) = Child.objects.claim_batch(1)
    row.claim.complete()
    assert gone(grandchild, grandchild.pk)


def test_a_parent_that_knows_nothing_of_claims_goes_too(rule: Rule) -> None:
    rule(ChildOwnsClaim, completion="delete")
    rows = claimed(ChildOwnsClaim, 2)
    ChildOwnsClaim.objects.complete(rows)
    assert not PlainParent.objects.exists()


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
def test_parents_under_other_keys_are_found(how: Delete, rule: Rule) -> None:
    rule(Sheet, completion=how)
    stays = Back.objects.create()
    (row,) = claimed(Sheet, 1)
    assert row.front_key != row.back_key
    Front.objects.create()
    row.claim.complete()
    assert not Sheet.objects.exists()
    assert list(Back.objects.all()) == [stays]
    assert Front.objects.count() == 1


def test_what_looks_at_the_row_keeps_it_without_cascade(transactional_db: None, rule: Rule) -> None:
    """The foreign key decides; nothing is lost, and the claim stands."""
    rule(Parcel, completion="delete")
    first, second = claimed(Parcel, 2)
    Stamp.objects.create(parcel=first)
    with pytest.raises(IntegrityError):
        Parcel.objects.complete([first, second])
    assert Parcel.objects.count() == 2
    assert first.claim.check()
    second.claim.complete()
    assert list(Parcel.objects.all()) == [first]


@pytest.fixture
def deletions() -> Iterator[list[Any]]:
    """Hear of each row of Parcel that Django deletes: before and after, and whether its claim was still there."""
    heard: list[Any] = []

    def before(sender: Any, instance: Any, **kwargs: Any) -> None:
        heard.append(("before", instance.pk, fresh(instance).status))

    def after(sender: Any, instance: Any, **kwargs: Any) -> None:
        heard.append(("after", instance.pk, None))

    pre_delete.connect(before, sender=Parcel)
    post_delete.connect(after, sender=Parcel)
    yield heard
    pre_delete.disconnect(before, sender=Parcel)
    post_delete.disconnect(after, sender=Parcel)


def test_cascade_follows_django(rule: Rule, deletions: list[Any]) -> None:
    """Collector, on_delete and signals, for the rows that were still held."""
    rule(Parcel, completion=Delete(cascade=True))
    held, passed_on = claimed(Parcel, 2)
    for row in (held, passed_on):
        Stamp.objects.create(parcel=row)
        Complaint.objects.create(parcel=row)
    lose(passed_on)
    refused([held, passed_on], [passed_on])
    assert list(Stamp.objects.values_list("parcel", flat=True)) == [passed_on.pk]
    assert set(Complaint.objects.values_list("parcel", flat=True)) == {None, passed_on.pk}
    assert deletions == [("before", held.pk, "processing"), ("after", held.pk, None)]


def test_what_is_protected_stays_claimed(rule: Rule) -> None:
    rule(Parcel, completion=Delete(cascade=True))
    (row,) = claimed(Parcel, 1)
    Stamp.objects.create(parcel=row)
    Receipt.objects.create(parcel=row)
    with pytest.raises(models.ProtectedError):
        row.claim.complete()
    assert Stamp.objects.exists()
    assert row.claim.check()


# Archiving


def test_what_is_done_is_moved_with_its_results(rule: Rule) -> None:
    rule(Parcel, completion=Archive(ParcelArchive))
    rows = claimed(Parcel, 3, facts=lambda i: {"ü": [i, None]}, weight=Decimal("2.50"))
    for i, row in enumerate(rows):
        row.note = f"result {i} 50% 🎈"
    holder = rows[0].claim.token.holder
    assert Parcel.objects.complete(rows, update_fields=["note"]) == 3
    assert not Parcel.objects.exists()
    kept = list(ParcelArchive.objects.order_by("pk"))
    assert [(one.pk, one.note, one.facts) for one in kept] == [
        (row.pk, f"result {i} 50% 🎈", {"ü": [i, None]}) for i, row in enumerate(rows)
    ]
    (one, *_) = kept
    assert (one.status, one.claimed_by, one.weight) == ("complete", holder, Decimal("2.50"))
    assert (one.reason, one.seen, one.kind) == ("done", None, "plain")
    assert abs(one.archived_at - one.completed_at) < datetime.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("model", "archive"), [(CompositeKey, CompositeArchive), (Child, ChildArchive)]
)
def test_rows_of_other_shapes_are_moved(model: Any, archive: Any, rule: Rule) -> None:
    rule(model, completion=Archive(f"testapp.{archive.__name__}"))
    rows = claimed(model, 3, note=lambda i: str(i))
    keys = [row.pk for row in rows]
    lose(rows[2])
    refused(rows, [rows[2]])
    assert [gone(row, key) for row, key in zip(rows, keys, strict=True)] == [True, True, False]
    assert list(archive.objects.order_by("note").values_list("note", flat=True)) == ["0", "1"]


def test_a_row_lost_to_another_is_not_archived(rule: Rule) -> None:
    rule(Parcel, completion=Archive(ParcelArchive))
    rows = claimed(Parcel, 3)
    lose(rows[1])
    before = stored(rows[1])
    refused(rows, [rows[1]])
    assert stored(rows[1]) == before
    assert set(ParcelArchive.objects.values_list("pk", flat=True)) == {rows[0].pk, rows[2].pk}


def test_a_move_is_rolled_back_as_one(rule: Rule) -> None:
    rule(Parcel, completion=Archive(ParcelArchive))
    (row,) = claimed(Parcel, 1)
    with transaction.atomic():
        row.claim.complete()
        assert ParcelArchive.objects.count() == 1
        transaction.set_rollback(True)
    assert not ParcelArchive.objects.exists()
    assert row.claim.check()


def test_what_the_archive_refuses_stays_claimed(rule: Rule) -> None:
    rule(Parcel, completion=Archive(ParcelArchive))
    (row,) = claimed(Parcel, 1)
    before = stored(row)
    # Its key is taken there.
    ParcelArchive.objects.create(pk=row.pk, counter=1, weight=1, completed_at="2024-01-01 00:00Z")
    with pytest.raises(IntegrityError), transaction.atomic():
        row.claim.complete()
    assert stored(row) == before
    assert row.claim.check()


def test_an_archive_may_follow_cascades(rule: Rule, deletions: list[Any]) -> None:
    rule(Parcel, completion=Archive(ParcelArchive, cascade=True))
    (row,) = claimed(Parcel, 1)
    Stamp.objects.create(parcel=row)
    row.claim.complete()
    assert (Stamp.objects.count(), ParcelArchive.objects.count()) == (0, 1)
    assert [event for event, *_ in deletions] == ["before", "after"]
