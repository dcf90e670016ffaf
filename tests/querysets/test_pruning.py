"""Deleting what has been complete for long, ``prune``, and what has failed, ``delete_failed``."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import ProtectedError
from django.db.models.signals import post_delete

from django_taskclaim.signals import rows_acted_on
from tests.commands import completed, in_each_state
from tests.querysets.models import Complaint, Parcel, Receipt, Stamp
from tests.querysets.support import ROW_LOCKS, Rival, at_once, clock, facts, set_raw, stored
from tests.testapp.models import Child, ClaimOnly, CompositeKey, Parent, Photo

pytestmark = pytest.mark.django_db

MONTH = timedelta(days=30)


@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_old_complete_rows_go_and_all_others_stay_as_they_are(model: Any) -> None:
    old = completed(model, 2)
    others = [*completed(model, 1, "29 DAY"), *completed(model, 2, note="kept")]
    set_raw(others[1], "completed_at", "NULL")
    others += in_each_state(model).values()
    for row in others:
        if facts(row).status != "complete":
            set_raw(row, "completed_at", clock("-31 DAY"))
    before = [stored(row) for row in others]
    assert model.objects.exclude(note="kept").prune(older_than=MONTH) == 2
    assert [stored(row) for row in old] == [{}, {}]
    assert [stored(row) for row in others] == before
    kept = [row for row in others if facts(row).status != "failed"]
    assert model.objects.delete_failed() == len(others) - len(kept) == 1
    assert all(map(stored, kept))


def test_an_age_that_makes_no_sense_and_a_model_without_the_moment_are_refused() -> None:
    wrong: list[Any] = [0, timedelta(0), True, "soon"]
    for age in wrong:
        with pytest.raises(ValueError, match="older_than must be"):
            Photo.objects.prune(older_than=age)
    with pytest.raises(TypeError, match="ClaimOnly has no completed_at"):
        ClaimOnly.objects.prune(older_than=MONTH)


def test_relations_are_honoured_as_delete_does() -> None:
    completed(Child, 2)
    completed(Parent)
    assert Child.objects.prune(older_than=MONTH) == 2
    assert (Child.objects.count(), Parent.objects.count()) == (0, 1)
    first, second = completed(Parcel, 2)
    Stamp.objects.bulk_create([Stamp(parcel=first), Stamp(parcel=first), Stamp(parcel=second)])
    complaint = Complaint.objects.create(parcel=first)
    assert (Parcel.objects.prune(older_than=MONTH), Stamp.objects.count()) == (2, 0)
    complaint.refresh_from_db()
    assert complaint.parcel_id is None


@pytest.mark.django_db(transaction=True)
def test_signals_of_deletes_and_of_acts_are_sent() -> None:
    """What a receiver raises is no refusal of the database: the caller hears of it."""
    (row,) = completed(Photo)
    heard: list[Any] = []

    def receiver(**sent: Any) -> None:
        heard.append((sent["act"], sent["keys"]) if "act" in sent else sent["instance"].pk)
        if len(heard) == 1:
            raise LookupError

    for signal in (post_delete, rows_acted_on):
        signal.connect(receiver, sender=Photo)
    with pytest.raises(LookupError):
        Photo.objects.prune(older_than=MONTH)
    assert Photo.objects.prune(older_than=MONTH) == 1
    assert heard == [row.pk, row.pk, ("pruned", [row.pk])]


@pytest.mark.django_db(transaction=True)
def test_a_limit_or_a_protected_row_ends_it_and_earlier_chunks_stay_deleted(settings: Any) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    rows = completed(Parcel, 8)
    Receipt.objects.create(parcel=rows[5])
    ordered, seen = Parcel.objects.order_by("pk"), []
    assert ordered.prune(older_than=MONTH, limit=3, progress=seen.append) == 3
    assert seen == [2, 3]
    with pytest.raises(ProtectedError):
        ordered.prune(older_than=MONTH)
    assert [bool(stored(row)) for row in rows] == [False] * 5 + [True] * 3


# Others at the same time


@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.parametrize("model", [Photo, Parcel])
def test_a_locked_row_is_left_alone_and_not_waited_for(rival: Rival, model: Any) -> None:
    locked, free = completed(model, 2)
    rival.lock(locked)
    assert model.objects.prune(older_than=MONTH) == 1
    assert (bool(stored(locked)), stored(free)) == (True, {})


@pytest.mark.promise(4)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Photo, Parcel])
def test_a_row_is_opened_again_or_deleted_and_never_both(model: Any, settings: Any) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 5}
    rows = completed(model, 40)
    keys = [row.pk for row in rows]

    def reopen() -> int:
        return sum(model.objects.filter(pk=key).reset(complete=True) for key in reversed(keys))

    opened, deleted = at_once(reopen, lambda: model.objects.prune(older_than=MONTH))
    left = list(model.objects.values_list("status", flat=True))
    # One that was locked at the wrong moment was left alone by both.
    assert left.count("open") == opened
    assert len(left) == len(keys) - deleted
