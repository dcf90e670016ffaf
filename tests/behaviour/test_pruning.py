"""Deleting what has been complete for long: ``prune``."""

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.db.models import ProtectedError
from django.db.models.signals import post_delete

from django_taskclaim.dialects import dialect_for
from django_taskclaim.signals import rows_acted_on
from tests.behaviour.models import Complaint, Parcel, Receipt, Stamp
from tests.behaviour.support import (
    ROW_LOCKS,
    Rival,
    at_once,
    clock,
    facts,
    fresh,
    has,
    owner_of,
    set_raw,
    stored,
)
from tests.behaviour.test_operators import in_each_state
from tests.factories import make
from tests.testapp.models import Child, ClaimOnly, CompositeKey, Parent, Photo

pytestmark = pytest.mark.django_db

MONTH = timedelta(days=30)


def completed(model: Any, n: int = 1, ago: str = "31 DAY", **values: Any) -> list[Any]:
    """Return rows of *model* that were completed so long ago."""
    make(model, n, **values)
    rows = model.objects.claim_batch(n)
    model.objects.complete(rows)
    for row in rows:
        set_raw(row, "completed_at", clock(f"-{ago}"))
    return [fresh(row) for row in rows]


def test_old_complete_rows_go_and_all_others_stay_as_they_are(shape: Any) -> None:
    if not has(shape, "completed_at"):
        pytest.skip("no completed_at")
    old = completed(shape, 2)
    young = completed(shape, 1, "29 DAY")
    others = [*in_each_state(shape).values(), *young]
    for row in others:
        if facts(row).status != "complete":
            set_raw(row, "completed_at", clock("-31 DAY"))
    before = [stored(row) for row in others]
    rows, gone = shape.objects.prune(older_than=MONTH)
    assert rows == gone[owner_of(shape)._meta.label] == 2
    assert [stored(row) for row in old] == [{}, {}]
    assert [stored(row) for row in others] == before
    assert shape.objects.prune(older_than=MONTH)[0] == 0


def test_without_a_moment_of_completion_nothing_is_deleted() -> None:
    (row,) = completed(Photo)
    set_raw(row, "completed_at", "NULL")
    assert Photo.objects.prune(older_than=1) == (0, {})
    with pytest.raises(TypeError, match="ClaimOnly has no completed_at"):
        ClaimOnly.objects.prune(older_than=MONTH)


@pytest.mark.parametrize("age", [0, -1, timedelta(0), True, "30d"])
def test_an_age_is_longer_than_zero(age: Any) -> None:
    with pytest.raises(ValueError, match="older_than must be"):
        Photo.objects.prune(older_than=age)


def test_the_conditions_of_the_queryset_hold() -> None:
    kept, gone = completed(Photo, 2, country=lambda i: ["DE", "NZ"][i])
    assert Photo.objects.filter(country="NZ").prune(older_than=MONTH)[0] == 1
    assert (stored(gone), bool(stored(kept))) == ({}, True)


def test_children_and_parents_go_together() -> None:
    completed(Child, 2)
    completed(Parent)
    rows, gone = Child.objects.prune(older_than=MONTH)
    assert (rows, gone) == (2, {"testapp.Child": 2, "testapp.Parent": 2})
    assert (Child.objects.count(), Parent.objects.count()) == (0, 1)


def test_cascades_are_honoured_and_counted() -> None:
    first, second = completed(Parcel, 2)
    Stamp.objects.bulk_create([Stamp(parcel=first), Stamp(parcel=first), Stamp(parcel=second)])
    complaint = Complaint.objects.create(parcel=first)
    assert Parcel.objects.prune(older_than=MONTH) == (2, {"testapp.Parcel": 2, "testapp.Stamp": 3})
    complaint.refresh_from_db()
    assert complaint.parcel_id is None


def test_signals_are_sent_as_delete_sends_them() -> None:
    (row,) = completed(Photo)
    heard: list[Any] = []

    def hear(sender: Any, instance: Any, **kwargs: Any) -> None:
        heard.append(instance.pk)

    post_delete.connect(hear, sender=Photo)
    try:
        assert Photo.objects.prune(older_than=MONTH) == (1, {"testapp.Photo": 1})
    finally:
        post_delete.disconnect(hear, sender=Photo)
    assert heard == [row.pk]


@pytest.mark.django_db(transaction=True)
def test_a_protected_row_ends_it_and_what_was_deleted_before_is_gone(settings: Any) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 1}
    first, second, third = completed(Parcel, 3)
    Receipt.objects.create(parcel=second)
    seen: list[int] = []
    with pytest.raises(ProtectedError):
        Parcel.objects.order_by("pk").prune(older_than=MONTH, progress=seen.append)
    assert seen == [1]
    assert [bool(stored(row)) for row in (first, second, third)] == [False, True, True]


def test_a_limit_and_the_progress_by_chunks(settings: Any) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    completed(Photo, 6)
    seen: list[int] = []
    assert Photo.objects.prune(older_than=MONTH, limit=5, progress=seen.append)[0] == 5
    assert seen == [2, 4, 5]
    assert Photo.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_others_are_told_of_it() -> None:
    (row,) = completed(Photo)
    heard: list[Any] = []

    def hear(sender: Any, keys: Any, act: str, **kwargs: Any) -> None:
        heard.append((sender, keys, act))

    rows_acted_on.connect(hear)
    try:
        Photo.objects.prune(older_than=MONTH)
    finally:
        rows_acted_on.disconnect(hear)
    assert heard == [(Photo, [row.pk], "pruned")]


@pytest.mark.django_db(transaction=True)
def test_async_twin() -> None:
    completed(Photo, 2)

    async def pruned() -> Any:
        return await Photo.objects.aprune(older_than=MONTH, limit=1)

    assert async_to_sync(pruned)() == (1, {"testapp.Photo": 1})


# The fence


@pytest.mark.parametrize("model", [Photo, CompositeKey, Child, Parcel])
def test_a_row_that_was_opened_again_meanwhile_stays(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DELETE looks again: what was chosen may have been opened before it, where nothing could be locked."""
    again, old = completed(model, 2)
    dialect = type(dialect_for(connection))
    usual = dialect.lock_first

    def lock_first(self: Any, queryset: Any, table: Any, limit: int, fields: Any) -> Any:
        locked = usual(self, queryset, table, limit, fields)
        if len(locked) == 2:
            model.objects.filter(pk=again.pk).reset(complete=True)
        return locked

    monkeypatch.setattr(dialect, "lock_first", lock_first)
    assert model.objects.prune(older_than=MONTH)[0] == 1
    assert facts(again).status == "open"
    assert stored(old) == {}


@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Photo, Parcel])
def test_a_locked_row_is_left_alone_and_not_waited_for(rival: Rival, model: Any) -> None:
    locked, free = completed(model, 2)
    rival.lock(locked)
    assert model.objects.prune(older_than=MONTH)[0] == 1
    assert (bool(stored(locked)), stored(free)) == (True, {})


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Photo, Parcel])
def test_a_row_is_opened_again_or_deleted_and_never_both(model: Any, settings: Any) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 5}
    rows = completed(model, 40)
    keys = [row.pk for row in rows]

    def reopen() -> int:
        return sum(model.objects.filter(pk=key).reset(complete=True) for key in reversed(keys))

    opened, (deleted, _) = at_once(reopen, lambda: model.objects.prune(older_than=MONTH))
    left = list(model.objects.values_list("status", flat=True))
    # One that was locked at the wrong moment was left alone by both.
    assert left.count("open") == opened
    assert len(left) == len(keys) - deleted
