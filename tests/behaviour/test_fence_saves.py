"""No save of an instance that was claimed ever inserts it, and none passes the fence by way of a parent."""

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_taskclaim.exceptions import ClaimLost
from tests.behaviour.late_writes import claimed
from tests.behaviour.support import execute, facts, fresh, lose, stored, table_of
from tests.testapp.models import Child, ChildOwnsClaim, CompositeKey, Photo, PhotoProxy, UuidKey

pytestmark = pytest.mark.django_db


# Never an INSERT


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("how", ["save", "force_insert", "bulk_create", "upsert"])
@pytest.mark.parametrize("model", [Photo, PhotoProxy, UuidKey])
def test_an_instance_that_was_claimed_never_inserts_its_own_key(
    model: Any, how: str, ended: bool
) -> None:
    """``row.complete(); row.save()`` under the policy "delete" would loop for ever."""
    row = claimed(model)
    if ended:
        row.claim.complete()
    model._base_manager.filter(pk=row.pk).delete()
    with pytest.raises(ClaimLost), transaction.atomic():
        insert(row, how)
    assert not model._base_manager.exists()


def insert(row: Any, how: str) -> None:
    manager = type(row).objects
    if how == "save":
        row.save()
    elif how == "force_insert":
        row.save(force_insert=True)
    elif how == "bulk_create":
        manager.bulk_create([row])
    else:
        unique = {"unique_fields": ["pk"]} if connection.vendor != "mysql" else {}
        manager.bulk_create([row], update_conflicts=True, update_fields=["note"], **unique)


def test_an_upsert_of_a_claimed_instance_does_not_pass_the_fence() -> None:
    late = claimed(Photo)
    lose(late)
    before = stored(late)
    late.note = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        insert(late, "upsert")
    assert stored(late) == before


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
@pytest.mark.parametrize("ended", [True, False])
def test_an_inheriting_instance_never_inserts_a_key_it_had_claimed(model: Any, ended: bool) -> None:
    row = claimed(model)
    if ended:
        row.claim.complete()
    model._base_manager.filter(pk=row.pk).delete()
    # Of an ended claim Django itself may notice first that the parent's row is gone.
    with pytest.raises((ClaimLost, DatabaseError)), transaction.atomic():
        row.save()
    assert not stored(row)


# Inheritance, both ways


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
@pytest.mark.parametrize("columns", [["extra"], ["note"], ["extra", "note"], None])
def test_a_late_save_of_any_columns_changes_neither_table(model: Any, columns: Any) -> None:
    late = claimed(model)
    lose(late)
    before = stored(late)
    late.extra = late.note = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        late.save(update_fields=columns)
    assert stored(late) == before


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
@pytest.mark.parametrize("columns", [["extra"], ["note"], ["extra", "note"], None])
def test_a_save_in_time_writes_the_columns_named_on_both_tables(model: Any, columns: Any) -> None:
    row = claimed(model)
    row.extra = row.note = "in time"
    row.save(update_fields=columns)
    again = fresh(row)
    expected = [
        "in time" if columns is None or name in columns else "" for name in ("extra", "note")
    ]
    assert [again.extra, again.note] == expected


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
@pytest.mark.parametrize("column", ["extra", "note"])
def test_a_late_bulk_update_changes_neither_table(model: Any, column: str) -> None:
    late = claimed(model)
    lose(late)
    before = stored(late)
    setattr(late, column, "late")
    with pytest.raises(ClaimLost):
        model.objects.bulk_update([late], [column])
    assert stored(late) == before


def test_a_key_given_as_text_is_fenced_like_the_number_it_spells() -> None:
    late = claimed(Photo)
    lose(late)
    before = stored(late)
    late.pk, late.note = str(late.pk), "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        late.save()
    assert stored(late) == before


def test_a_save_that_changes_nothing_is_no_loss(shape: Any) -> None:
    row = claimed(shape)
    row.save()
    row.save()
    row.save(update_fields=["note"])
    row.claim.complete()


@pytest.mark.skipif(
    connection.vendor != "mysql", reason="counts rows found, whatever a client asks"
)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Photo, CompositeKey])
def test_a_connection_that_counts_changed_rows_only_reports_no_false_loss(model: Any) -> None:
    """``client_flag`` in OPTIONS takes away Django's own, and an UPDATE to equal values then counts 0.

    Multi-table children are left out: there Django itself takes 0 for a parent that must be inserted.
    """
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    options["client_flag"] = 0
    try:
        row = claimed(model, lease=60)
        assert execute(f"UPDATE {table_of(model)} SET note = note") == 0
        row.save()
        row.save(update_fields=["note"])
        assert row.claim.renew(lease=1)
        assert row.claim.renew(lease=1)
        row.claim.complete()
    finally:
        del options["client_flag"]
        connection.close()
    assert facts(row).status == "complete"
