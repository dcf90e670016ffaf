"""How our columns stay out of every write that is no verb: saves, upserts, forms and fixtures."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django import forms
from django.contrib import admin
from django.core.management import call_command
from django.db import connection, models, transaction
from django.test import RequestFactory, override_settings

from django_taskclaim.exceptions import ClaimColumnError
from tests.behaviour.support import BULK, STRANGE, facts, fresh, has, names, stored, unnamed
from tests.factories import SHAPES, make
from tests.testapp.models import (
    Child,
    ChildOwnsClaim,
    PercentNames,
    Photo,
    PhotoProxy,
    PrefixedOwnStatus,
    UuidKey,
)

pytestmark = pytest.mark.django_db

NoQueries = Callable[..., Any]


def roles(model: Any) -> list[str]:
    """Return the roles that the verbs alone write."""
    return [role for role in names(model) if role != "priority"]


# A row that exists


@pytest.mark.parametrize("how", ["save", "save one column", "save named", "update", "bulk_update"])
def test_no_ordinary_write_changes_a_claim_column(
    shape: Any, how: str, django_assert_num_queries: NoQueries
) -> None:
    (row,) = make(shape)
    before = stored(row)
    for role in roles(shape):
        name = names(shape)[role]
        written = fresh(row)
        if how != "update":
            setattr(written, name, STRANGE[role])
        with django_assert_num_queries(0), pytest.raises(ClaimColumnError, match=name):
            write_ours(written, how, name, STRANGE[role])
    assert stored(row) == before


def write_ours(row: Any, how: str, name: str, value: Any) -> None:
    """Write a claim column that was assigned, or is named, in one of Django's own ways."""
    manager = type(row).objects
    if how == "save":
        row.save()
    elif how == "save one column":
        row.save(update_fields=["note"])
    elif how == "save named":
        row.save(update_fields=["note", name])
    elif how == "update":
        manager.update(**{"note": "x", name: value})
    else:
        manager.bulk_update([row], ["note", name])


def test_the_error_names_the_verb() -> None:
    (row,) = make(Photo)
    row.status = "complete"
    with pytest.raises(ClaimColumnError, match=r"row\.claim\.complete\(\)"):
        row.save()


def test_values_that_went_through_a_spreadsheet_and_came_back_are_no_change() -> None:
    """It keeps whole seconds, and does not tell an empty text from none."""
    make(Photo, 2)
    done, failed = Photo.objects.claim_batch(2)
    done.complete()
    failed.fail("no")
    for row in fresh(done), fresh(failed):
        before = facts(row)
        for name in names(Photo).values():
            value = getattr(row, name)
            if isinstance(value, datetime):
                setattr(row, name, value.replace(microsecond=0))
            elif not value and value != 0:
                setattr(row, name, None if value == "" else "")
        row.note = "back"
        row.save()
        assert fresh(row).note == "back"
        assert facts(row) == before
        row.completed_at = datetime(2026, 1, 1, tzinfo=UTC)
        with pytest.raises(ClaimColumnError, match="completed_at"):
            row.save()


def test_an_instance_that_was_created_knows_its_columns_too(shape: Any) -> None:
    (row,) = make(shape)
    setattr(row, names(shape)["status"], "complete")
    with pytest.raises(ClaimColumnError):
        row.save()
    setattr(row, names(shape)["status"], "open")
    row.save()


@pytest.mark.parametrize(
    "shape",
    [model for model in SHAPES if has(model, "priority")],
    ids=lambda model: model.__name__[:20],
)
def test_priority_stays_the_users(shape: Any) -> None:
    (row,) = make(shape)
    name = names(shape)["priority"]
    setattr(row, name, 5)
    row.save()
    assert facts(row).priority == 5
    shape.objects.update(**{name: 6})
    assert facts(row).priority == 6
    row.refresh_from_db()
    setattr(row, name, 7)
    shape.objects.bulk_update([row], [name])
    assert facts(row).priority == 7


def test_a_stale_instance_writes_none_of_our_columns(shape: Any) -> None:
    """What made a complete row ``processing`` again: a save of every column as it was loaded."""
    (stale,) = make(shape)
    (row,) = shape.objects.claim_batch(1)
    row.claim.complete()
    before = facts(stale)
    stale.note = "late but harmless"
    stale.save()
    shape.objects.bulk_update([stale], ["note"])
    assert facts(stale) == before
    assert fresh(stale).note == "late but harmless"


def test_update_or_create_leaves_our_columns_alone(shape: Any) -> None:
    (row,) = make(shape, note="unique")
    shape.objects.claim_batch(1)
    before = facts(row)
    _, created = shape.objects.update_or_create(note="unique", defaults={"counter": 5})
    assert (created, fresh(row).counter) == (False, 5)
    assert facts(row) == before
    _, created = shape.objects.get_or_create(note="unique")
    assert not created
    assert facts(row) == before


def test_update_or_create_that_names_our_column_is_refused() -> None:
    (row,) = make(Photo, note="unique")
    before = stored(row)
    with pytest.raises(ClaimColumnError), transaction.atomic():
        Photo.objects.update_or_create(note="unique", defaults={"status": "complete"})
    assert stored(row) == before


def unique(model: Any) -> dict[str, Any]:
    """MySQL takes any unique key; the others want to be told which."""
    if connection.vendor == "mysql":
        return {}
    return {"unique_fields": [field.name for field in model._meta.pk_fields]}


@pytest.mark.parametrize("model", BULK, ids=lambda model: model.__name__[:20])
def test_an_upsert_leaves_our_columns_alone(model: Any) -> None:
    make(model)
    (row,) = model.objects.claim_batch(1)
    row.claim.complete()
    before = facts(row)
    values = unnamed(row) | {"note": "upserted"}
    model.objects.bulk_create(
        [model(**values)], update_conflicts=True, update_fields=["note"], **unique(model)
    )
    assert fresh(row).note == "upserted"
    assert facts(row) == before


@pytest.mark.parametrize("by_position", [False, True])
def test_an_upsert_that_names_our_column_is_refused(
    by_position: bool, django_assert_num_queries: NoQueries
) -> None:
    (row,) = make(Photo)
    again = Photo(pk=row.pk, url="https://photos.example/again")
    fields = ["note", "status"]
    by_name = {"update_conflicts": True, "update_fields": fields, **unique(Photo)}
    given = ([None, False, True, fields, ["id"]], {}) if by_position else ([], by_name)
    with django_assert_num_queries(0), pytest.raises(ClaimColumnError):
        Photo.objects.bulk_create([again], *given[0], **given[1])


@pytest.mark.skipif(not hasattr(models, "FETCH_PEERS"), reason="Django 6.1 brings fetch modes")
def test_columns_that_were_fetched_for_all_peers_at_once_were_not_assigned() -> None:
    make(Photo, 3)
    rows = list(Photo.objects.only("note").fetch_mode(models.FETCH_PEERS))
    assert rows[0].status == "open"
    for row in rows:
        row.save()


def test_deferred_columns_that_were_read_later_were_not_assigned(shape: Any) -> None:
    make(shape)
    row = shape.objects.only("note").get()
    assert getattr(row, names(shape)["status"]) == "open"
    row.save()
    setattr(row, names(shape)["iteration"], 3)
    with pytest.raises(ClaimColumnError):
        row.save()


# Forms and admin


def test_a_form_of_all_fields_has_none_of_our_columns_but_a_priority_declared_again(
    shape: Any,
) -> None:
    form = forms.modelform_factory(shape, fields="__all__")
    ours = set(names(shape).values()) & set(form.base_fields)
    assert ours == ({"priority"} if shape is UuidKey else set())


def test_a_form_saves_a_running_row_without_touching_its_claim() -> None:
    make(UuidKey)
    (row,) = UuidKey.objects.claim_batch(1)
    before = facts(row)
    form_class = forms.modelform_factory(UuidKey, fields="__all__")
    data = {"note": "by hand", "counter": 3, "priority": 9, "status": "complete", "iteration": 7}
    form = form_class(data, instance=fresh(row))
    assert form.is_valid(), form.errors
    form.save()
    assert fresh(row).note == "by hand"
    before.priority = 9
    assert facts(row) == before


@pytest.mark.parametrize("model", [Photo, PhotoProxy, Child, ChildOwnsClaim, PrefixedOwnStatus])
def test_an_admin_form_has_none_of_our_columns(model: Any) -> None:
    model_admin = admin.ModelAdmin(model, admin.AdminSite())
    form = model_admin.get_form(RequestFactory().get("/"))
    assert set(names(model).values()).isdisjoint(form.base_fields)


# Fixtures


@pytest.mark.parametrize(
    "shape",
    # Django's loaddata looks for the table under its name with two percent signs.
    [model for model in SHAPES if model is not PercentNames],
    ids=lambda model: model.__name__[:20],
)
def test_a_dump_that_is_loaded_again_restores_our_columns_as_they_were(
    shape: Any, tmp_path: Path
) -> None:
    make(shape, 5)
    running, done, failed, waiting = shape.objects.claim_batch(4, claimed_by="user:17")
    done.claim.complete()
    failed.claim.fail("no", retry=False)
    waiting.claim.fail("later")
    rows = [*shape._base_manager.all()]
    before = [stored(row) for row in rows]
    labels = [model._meta.label for model in tables(shape)]
    dump = io.StringIO()
    call_command("dumpdata", *labels, stdout=dump)
    assert len(json.loads(dump.getvalue())) == 5 * len(labels)
    file = tmp_path / "dump.json"
    file.write_text(dump.getvalue())
    with override_settings(TASKCLAIM={"FIXTURES_WRITE_CLAIMS": True}):
        restored_over_changed_rows(shape, rows, before, file)
    for model in tables(shape):
        model._base_manager.all()._raw_delete(using="default")
    call_command("loaddata", str(file), verbosity=0)
    assert_same_but_for_precision(before, [stored(row) for row in rows])
    assert shape.objects.with_token(running.pk, running.claim.token).claim.check()


def tables(model: Any) -> list[Any]:
    concrete = model._meta.concrete_model
    return [concrete, *concrete._meta.all_parents]


def restored_over_changed_rows(shape: Any, rows: Any, before: Any, file: Path) -> None:
    shape.objects.reset(complete=True, running=True)
    call_command("loaddata", str(file), verbosity=0)
    assert_same_but_for_precision(before, [stored(row) for row in rows])


def assert_same_but_for_precision(before: list[Any], after: list[Any]) -> None:
    """Django's JSON keeps milliseconds, the databases microseconds."""
    for old, new in zip(before, after, strict=True):
        assert old.keys() == new.keys()
        for column, value in old.items():
            if hasattr(value, "microsecond"):
                value, other = (
                    moment.replace(microsecond=moment.microsecond // 1000)
                    for moment in (value, new[column])
                )
                assert (column, other) == (column, value)
            else:
                assert (column, new[column]) == (column, value)
