"""On a row that exists, the verbs alone write the claim columns: no save, upsert, form, fixture or revert does."""

from collections.abc import Callable
from typing import Any

import pytest
from django import forms
from django.core import serializers
from django.db import connection, models, transaction
from django.test import override_settings

from django_taskclaim.exceptions import ClaimColumnError, ClaimLost
from tests.factories import make, make_claimed
from tests.querysets.support import (
    BULK,
    STRANGE,
    NoQueries,
    facts,
    fresh,
    lose,
    names,
    stored,
    tables_of,
    unnamed,
)
from tests.testapp.models import Child, ChildOwnsClaim, Photo, PrefixedOwnStatus, UuidKey

pytestmark = [pytest.mark.django_db, pytest.mark.promise(3, 4)]


# Saves, updates and upserts

#: Each is given a row whose claim column has been assigned, its name, and the value; ``update`` needs no instance.
ORDINARY: list[Callable[[Any, str, Any], Any]] = [
    lambda row, name, value: row.save(),
    lambda row, name, value: row.save(update_fields=["note"]),
    lambda row, name, value: row.save(update_fields=["note", name]),
    lambda row, name, value: type(row).objects.bulk_update([row], ["note", name]),
    lambda row, name, value: type(row).objects.update(**{"note": "x", name: value}),
]


def test_no_ordinary_write_changes_our_columns(
    shape: Any, django_assert_num_queries: NoQueries
) -> None:
    (row,) = make(shape)
    before = stored(row)
    for role, name in names(shape).items():
        for write in ORDINARY if role != "priority" else ():
            written = fresh(row)
            setattr(written, name, STRANGE[role])
            with django_assert_num_queries(0), pytest.raises(ClaimColumnError, match=name):
                write(written, name, STRANGE[role])
    assert stored(row) == before


@pytest.mark.parametrize("model", [Child, PrefixedOwnStatus])
def test_priority_stays_the_users(model: Any) -> None:
    (row,) = make(model)
    name = names(model)["priority"]
    for number, write in enumerate(ORDINARY):
        setattr(row, name, number)
        write(row, name, number)
        assert facts(row).priority == (number if number != 1 else 0)


def unique(model: Any) -> dict[str, Any]:
    """MySQL takes any unique key; the other databases need its name."""
    if connection.vendor == "mysql":
        return {}
    return {"unique_fields": [field.name for field in model._meta.pk_fields]}


def test_a_stale_instance_writes_no_claim_column(shape: Any) -> None:
    """A save of every column as it was loaded would make a complete row open again."""
    (stale,) = make(shape)
    (row,) = shape.objects.claim_batch(1)
    row.claim.complete()
    before = facts(stale)
    stale.note = "late but harmless"
    stale.save()
    shape.objects.bulk_update([stale], ["note"])
    shape.objects.update_or_create(note=stale.note, defaults={"counter": 5})
    assert facts(stale) == before
    assert (fresh(stale).note, fresh(stale).counter) == ("late but harmless", 5)
    if shape in BULK:
        again = shape(**(unnamed(row) | {"note": "upserted"}))
        options = {"update_conflicts": True, **unique(shape)}
        shape.objects.bulk_create([again], update_fields=["note"], **options)
        assert (fresh(stale).note, facts(stale)) == ("upserted", before)


def test_deferred_columns_that_were_read_later_were_not_assigned() -> None:
    make(Photo)
    row = Photo.objects.only("note").get()
    assert row.status == "open"
    row.save()
    row.iteration = 3
    with pytest.raises(ClaimColumnError, match="iteration"):
        row.save()


def test_an_upsert_that_names_ours_is_refused(django_assert_num_queries: NoQueries) -> None:
    (row,) = make(Photo, note="unique")
    before = stored(row)
    again, fields = Photo(pk=row.pk), ["note", "status"]
    options = {"update_conflicts": True, **unique(Photo)}
    with django_assert_num_queries(0):
        with pytest.raises(ClaimColumnError):
            Photo.objects.bulk_create([again], update_fields=fields, **options)
        with pytest.raises(ClaimColumnError):
            Photo.objects.bulk_create([again], None, False, True, fields, ["id"])
    with pytest.raises(ClaimColumnError, match="complete"), transaction.atomic():
        Photo.objects.update_or_create(note="unique", defaults={"status": "complete"})
    assert stored(row) == before


@pytest.mark.once
def test_a_form_of_all_fields_has_no_claim_column_but_a_priority_declared_again(shape: Any) -> None:
    form = forms.modelform_factory(shape, fields="__all__")
    ours = set(names(shape).values()) & set(form.base_fields)
    assert ours == ({"priority"} if shape is UuidKey else set())


# Raw saves: fixtures, and packages that bring back an old version of a row


def version_of(*rows: Any) -> str:
    """Return the rows as a fixture or a version table keeps them, with all the tables that they are on."""
    tables = reversed(tables_of(type(rows[0])))
    kept = [model._base_manager.get(pk=row.pk) for model in tables for row in rows]
    return serializers.serialize("json", kept)


def revert(version: str) -> None:
    """Do what ``loaddata`` does with each object of a file, and django-reversion with each of a revision."""
    with transaction.atomic():
        for one in serializers.deserialize("json", version):
            one.save()


def test_a_fixture_leaves_claims_and_restores_them_in_an_empty_table(shape: Any) -> None:
    """It names a claim that was lost since as the one that stands; a setting lets fixtures rule."""
    make(shape, 4, note="of the fixture")
    running, done, failed = shape.objects.claim_batch(3, claimed_by="user:17")
    failed.claim.fail("no", retry=False)
    rows = list(shape._base_manager.all())
    before, old = [tokens(row) for row in rows], version_of(*rows)
    done.claim.complete()
    current = lose(running)
    for row in shape._base_manager.all():
        row.note = "later"
        row.save()
    later = [facts(row) for row in rows]
    revert(old)
    assert [facts(row) for row in rows] == later
    assert {row.note for row in shape._base_manager.all()} == {"of the fixture"}
    with pytest.raises(ClaimLost):
        running.claim.complete()
    current.claim.complete()
    with override_settings(TASKCLAIM={"FIXTURES_WRITE_CLAIMS": True}):
        revert(old)
    assert [tokens(row) for row in rows] == before
    for model in tables_of(shape):
        model._base_manager.all()._raw_delete(using="default")
    revert(old)
    assert [tokens(row) for row in rows] == before
    assert shape.objects.with_token(running.pk, running.claim.token).claim.check()


def tokens(row: Any) -> tuple[Any, ...]:
    return facts(row).status, facts(row).claimed_by, facts(row).iteration


@pytest.mark.parametrize("model", [Photo, ChildOwnsClaim])
@pytest.mark.parametrize("rules", [True, False])
def test_a_raw_save_of_the_claimed_instance_itself_is_fenced(model: Any, rules: bool) -> None:
    (late,) = make_claimed(model)
    lose(late)
    before = stored(late)
    late.note = "late"
    with (
        override_settings(TASKCLAIM={"FIXTURES_WRITE_CLAIMS": rules}),
        pytest.raises(ClaimLost),
        transaction.atomic(),
    ):
        models.Model.save_base(late, raw=True)
    assert stored(late) == before
