"""In which state rows begin: new ones, copies, and instances constructed with the key of a row that exists."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_taskclaim.exceptions import ClaimColumnError
from tests.factories import make, make_claimed
from tests.querysets.support import (
    BULK,
    STRANGE,
    NoQueries,
    execute,
    facts,
    fresh,
    names,
    stored,
    table_of,
    unnamed,
)
from tests.testapp.models import ClaimOnly, CompositeKey, Photo, PrefixedOwnStatus, UuidKey

pytestmark = pytest.mark.django_db
BORN = ["create", "save", "bulk_create"]


def named(model: Any, **by_role: Any) -> dict[str, Any]:
    """Spell values by the model's own names."""
    return {names(model)[role]: value for role, value in by_role.items()}


def assert_open(row: Any) -> None:
    now = facts(row)
    assert (now.status, now.iteration, now.claimed_by) == ("open", 0, None)
    assert (now.claimed_at, now.expires_at) == (None, None)
    assert getattr(now, "attempts", 0) == 0
    assert getattr(now, "completed_at", None) is None
    assert getattr(now, "last_error", "") == ""


def born(how: str, **values: Any) -> Any:
    if how == "create":
        return Photo.objects.create(**values)
    if how == "get_or_create":
        return Photo.objects.get_or_create(note="unique", defaults=values)[0]
    row = Photo(**values)
    if how == "save":
        row.save()
        return row
    Photo.objects.bulk_create([row])
    return Photo.objects.get()


# New rows


@pytest.mark.parametrize(
    ("model", "of_the_user"),
    [
        (Photo, "(url, country, note, counter) VALUES ('', '', '', 1)"),
        (ClaimOnly, "(note, counter) VALUES ('', 1)"),
        (PrefixedOwnStatus, "(status, priority, note, counter) VALUES ('', '', '', 1)"),
    ],
)
def test_plain_sql_inserts_open_rows_without_our_columns(model: Any, of_the_user: str) -> None:
    """Every claim column that must not be NULL has its default in the database."""
    execute(f"INSERT INTO {table_of(model)} {of_the_user}")
    row = model.objects.get()
    assert_open(row)
    assert [one.pk for one in model.objects.claim_batch(2)] == [row.pk]


@pytest.mark.parametrize("how", [*BORN, "get_or_create"])
def test_a_new_row_keeps_the_state_that_it_names(
    how: str, django_assert_num_queries: NoQueries
) -> None:
    later = (timezone.now() + timedelta(hours=1)).replace(microsecond=0)
    for state in ("open", "paused", "complete", "failed"):
        row = born(how, status=state, not_before=later)
        assert (facts(row).status, facts(row).not_before) == (state, later)
        assert Photo.objects.claim_batch(1) == []
        row.delete()
    born(how, not_before=datetime(9999, 12, 31, tzinfo=UTC))
    assert Photo.objects.claim_batch(1) == []
    if how != "get_or_create":
        for unknown in ("finished", "", None):
            with django_assert_num_queries(0), pytest.raises(ClaimColumnError):
                born(how, status=unknown)


def test_a_new_row_of_any_shape_may_be_complete_and_never_processing(shape: Any) -> None:
    (done,) = make(shape, **named(shape, status="complete"))
    assert facts(done).status == getattr(done, names(shape)["status"]) == "complete"
    assert shape.objects.claim_batch(1) == []
    (row,) = make(shape, **named(shape, status="processing"))
    assert_open(row)


@pytest.mark.parametrize("how", BORN)
def test_a_new_row_that_names_more_is_a_copy_and_open(how: str) -> None:
    for role, value in STRANGE.items():
        if role not in ("status", "not_before"):
            row = born(how, status="complete", **{role: value})
            assert_open(fresh(row))
            assert row.status == "open"
            row.delete()
    assert_open(born(how, status="processing", claimed_by="user:17", iteration=3))


# A constructed instance with the key of a row that exists


@pytest.mark.parametrize("state", [None, "complete", "processing"])
def test_an_instance_saved_over_a_row_writes_the_users_columns_only(
    shape: Any, state: str | None
) -> None:
    """After that the instance shows what is stored."""
    (row,) = make(shape)
    (held,) = shape.objects.claim_batch(1)
    before = facts(row)
    claim = named(shape, status=state, claimed_by="user:thief", iteration=7) if state else {}
    for force in (True, False):
        again = shape(**(unnamed(row) | {"note": f"again {force}"} | claim))
        # Django itself would insert a row whose key has a default.
        again._state.adding = shape is not UuidKey
        again.save(force_update=force)
        assert (fresh(row).note, facts(row)) == (f"again {force}", before)
        assert getattr(again, names(shape)["status"]) != "complete"
        again.save()
        setattr(again, names(shape)["iteration"], 9)
        with pytest.raises(ClaimColumnError):
            again.save()
    held.claim.complete()


# Copies


def as_copy(row: Any, *, adding: bool = True) -> Any:
    """Apply Django's copy idiom, with a new key where the database gives none."""
    model = type(row)
    own_keys = {UuidKey: UuidKey._meta.pk.get_default(), CompositeKey: (99, 99)}
    row.pk = own_keys.get(model)
    if model._meta.concrete_model._meta.parents:
        row.id = None
    if adding or model in own_keys:
        row._state.adding = True
    return row


@pytest.mark.parametrize("state", ["processing", "complete", "failed", "open again"])
def test_a_copy_is_open_whatever_its_original_is(shape: Any, state: str) -> None:
    """Also one made of the claimed instance itself, and one made in bulk."""
    (row,) = make_claimed(shape, note="original")
    if state == "complete":
        row.claim.complete()
    if state in ("failed", "open again"):
        row.claim.fail("no", retry=state != "failed")
    before, key = stored(row), row.pk
    if shape in BULK:
        copied = as_copy(fresh(row))
        shape.objects.bulk_create([copied])
        copied = shape._base_manager.exclude(pk=key).get()
        assert_open(copied)
        copied.delete()
    for adding in (True, False) if shape is not CompositeKey else (True,):
        copied = as_copy(fresh(row), adding=adding)
        copied.save()
        assert copied.pk != key
        assert fresh(copied).note == "original"
        assert_open(copied)
        copied.delete()
    copied = as_copy(row)
    setattr(copied, names(shape)["status"], "complete")
    copied.save()
    assert_open(copied)
    assert getattr(copied, names(shape)["status"]) == "open"
    assert stored(copied, key) == before
    copied.note = "an ordinary instance"
    copied.save()
    assert fresh(copied).note == "an ordinary instance"
