"""Completion policies that delete or archive a row that is done, in the transaction that checks its claim."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.db.models.signals import post_delete, pre_delete

from django_taskclaim.completion import Archive, Delete
from django_taskclaim.exceptions import ClaimLost
from tests.factories import make, make_claimed
from tests.meanwhile import connected
from tests.querysets.completing import gone, refused
from tests.querysets.models import (
    ChildArchive,
    Complaint,
    CompositeArchive,
    GrandChild,
    Parcel,
    ParcelArchive,
    Receipt,
    Stamp,
)
from tests.querysets.support import Rule, fresh, lose, stored
from tests.testapp.models import Child, ChildOwnsClaim, CompositeKey, Parent, Photo, PlainParent

pytestmark = pytest.mark.django_db

# Deleting


@pytest.mark.promise(3)
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey, Parcel])
def test_what_is_done_is_gone_and_never_comes_back(model: Any, rule: Rule) -> None:
    """It goes from every table that has a part of it; a lost row and rows of others stay."""
    rule(model, completion=Delete())
    rows = make_claimed(model, 3)
    keys = [row.pk for row in rows]
    (other,) = make(model)
    lose(rows[1])
    kept = [stored(rows[1]), stored(other)]
    refused(rows, [rows[1]])
    assert [gone(row, key) for row, key in zip(rows, keys, strict=True)] == [True, False, True]
    assert [stored(rows[1]), stored(other)] == kept
    assert [row.pk for row in rows] == keys
    with pytest.raises(ClaimLost), transaction.atomic():
        rows[0].save()
    with pytest.raises(ClaimLost):
        rows[0].claim.complete()
    assert gone(rows[0], keys[0])


def test_children_go_with_a_claimed_parent_and_parents_with_a_claimed_child(rule: Rule) -> None:
    for model in (Parent, Child, ChildOwnsClaim):
        rule(model, completion="delete")
    (kept,) = make(GrandChild, status="paused")
    (lonely,), (child,), (grandchild,) = make(Parent), make(Child), make(GrandChild)
    Parent.objects.complete(Parent.objects.claim_batch(3))
    assert all(gone(row, row.pk) for row in (lonely, child, grandchild))
    (grandchild,) = make(GrandChild)
    Child.objects.complete(Child.objects.claim_batch(1))
    assert gone(grandchild, grandchild.pk)
    assert stored(kept)
    ChildOwnsClaim.objects.complete(make_claimed(ChildOwnsClaim, 2))
    assert not PlainParent.objects.exists()


def test_a_row_that_others_protect_stays_claimed(transactional_db: None, rule: Rule) -> None:
    rule(Parcel, completion="delete")
    (row,) = make_claimed(Parcel, 1)
    Stamp.objects.create(parcel=row)
    Receipt.objects.create(parcel=row)
    with pytest.raises(ProtectedError):
        row.claim.complete()
    assert Stamp.objects.exists()
    assert row.claim.check()


@pytest.mark.parametrize("how", [Delete(), Archive(ParcelArchive)])
def test_a_row_is_deleted_as_django_does_it(how: Any, rule: Rule) -> None:
    """Collector, on_delete and signals, for the rows that were still held."""
    heard: list[Any] = []

    def before(instance: Any, **kwargs: Any) -> None:
        heard.append(("before", fresh(instance).pk))

    def after(instance: Any, **kwargs: Any) -> None:
        heard.append(("after", instance.pk))

    rule(Parcel, completion=how)
    held, lost = make_claimed(Parcel, 2)
    for row in (held, lost):
        Stamp.objects.create(parcel=row)
        Complaint.objects.create(parcel=row)
    lose(lost)
    with connected(pre_delete, before, sender=Parcel), connected(post_delete, after, sender=Parcel):
        refused([held, lost], [lost])
    assert list(Stamp.objects.values_list("parcel", flat=True)) == [lost.pk]
    assert set(Complaint.objects.values_list("parcel", flat=True)) == {None, lost.pk}
    assert heard == [("before", held.pk), ("after", held.pk)]
    assert ParcelArchive.objects.count() == isinstance(how, Archive)


# Archiving


def test_what_is_done_is_moved_with_its_results(rule: Rule) -> None:
    rule(Parcel, completion=Archive(ParcelArchive))
    rows = make_claimed(Parcel, 3, facts=lambda i: {"ü": [i, None]}, weight=Decimal("2.50"))
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
    assert abs(one.archived_at - one.completed_at) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("model", "archive"), [(CompositeKey, CompositeArchive), (Child, ChildArchive)]
)
def test_rows_of_other_shapes_are_moved(model: Any, archive: Any, rule: Rule) -> None:
    rule(model, completion=Archive(archive))
    rows = make_claimed(model, 3, note=lambda i: str(i))
    keys = [row.pk for row in rows]
    lose(rows[2])
    refused(rows, [rows[2]])
    assert [gone(row, key) for row, key in zip(rows, keys, strict=True)] == [True, True, False]
    assert list(archive.objects.order_by("note").values_list("note", flat=True)) == ["0", "1"]


def test_a_row_that_the_archive_refuses_stays_claimed(rule: Rule) -> None:
    rule(Parcel, completion=Archive(ParcelArchive))
    (row,) = make_claimed(Parcel, 1)
    before = stored(row)
    # Its key is taken there.
    ParcelArchive.objects.create(pk=row.pk, counter=1, weight=1, completed_at="2024-01-01 00:00Z")
    with pytest.raises(IntegrityError), transaction.atomic():
        row.claim.complete()
    assert stored(row) == before
    assert row.claim.check()
