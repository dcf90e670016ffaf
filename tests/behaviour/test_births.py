"""How rows are born, and how our columns stay out of every write that is no verb."""

import io
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django import forms
from django.contrib import admin
from django.core.management import call_command
from django.db import IntegrityError, connection, models, transaction
from django.test import RequestFactory
from django.utils import timezone

from django_taskclaim.exceptions import ClaimColumnError
from tests.behaviour.support import (
    execute,
    facts,
    fresh,
    has,
    names,
    owner_of,
    quoted,
    stored,
    table_of,
)
from tests.factories import SHAPES, make
from tests.testapp.models import (
    Child,
    ChildOwnsClaim,
    CompositeKey,
    Parent,
    PercentNames,
    Photo,
    PhotoProxy,
    PlainParent,
    PrefixedOwnStatus,
    TextKey,
    UuidKey,
)

pytestmark = pytest.mark.django_db

NoQueries = Callable[..., Any]

#: Multi-table children cannot be created in bulk, says Django.
BULK = [model for model in SHAPES if not model._meta.concrete_model._meta.parents]

#: A value for each guarded column that differs from every row's.
STRANGE: dict[str, Any] = {
    "status": "complete",
    "claimed_by": "user:thief",
    "claimed_at": timezone.now(),
    "expires_at": timezone.now(),
    "iteration": 77,
    "completed_at": timezone.now(),
    "attempts": 55,
    "not_before": timezone.now(),
    "last_error": "made up",
    "error_class": "MadeUp",
}


def roles(model: Any) -> list[str]:
    """Return the roles that the verbs alone write."""
    return [role for role in names(model) if role != "priority"]


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


# New rows


@pytest.mark.parametrize("model", BULK, ids=lambda model: model.__name__[:20])
def test_rows_created_in_bulk_are_open(model: Any) -> None:
    rows = unsaved(model, 3)
    model.objects.bulk_create(rows)
    assert len(model.objects.claim_batch(5)) == 3


def unsaved(model: Any, n: int) -> list[Any]:
    """Return new instances, with keys where the database gives none."""
    keys: Any = {
        TextKey: lambda i: {"key": f"bulk {i}"},
        CompositeKey: lambda i: {"tenant": i, "number": i},
    }.get(model, lambda i: {})
    return [model(note="new", **keys(i)) for i in range(n)]


def test_a_row_inserted_by_plain_sql_that_knows_nothing_of_us_is_open() -> None:
    execute(
        f"INSERT INTO {table_of(Photo)} (url, country, note, counter) VALUES (%s, %s, %s, 0)",
        ["https://photos.example/sql", "NZ", "plain SQL"],
    )
    (row,) = Photo.objects.all()
    assert_open(row)
    assert [one.pk for one in Photo.objects.claim_batch(5)] == [row.pk]


@pytest.mark.parametrize(
    "shape",
    [model for model in SHAPES if owner_of(model) is model],
    ids=lambda model: model.__name__[:20],
)
def test_plain_sql_needs_no_column_of_ours_on_any_shape(shape: Any) -> None:
    """Every column of ours that must not be NULL has its default in the database."""
    (row,) = make(shape)
    values = stored(row)
    owner = owner_of(shape)
    ours = {owner._meta.get_field(name).column for name in names(shape).values()}
    keys = {field.column for field in owner._meta.pk_fields}
    mine = {
        column: value
        for full, value in values.items()
        for model, _, column in [full.partition(".")]
        if model == owner.__name__ and column not in ours
    }
    owner._base_manager.filter(pk=row.pk)._raw_delete(using="default")
    columns = ", ".join(quoted(column.replace("%", "%%")) for column in mine)
    marks = ", ".join(["%s"] * len(mine))
    assert (
        execute(f"INSERT INTO {table_of(owner)} ({columns}) VALUES ({marks})", mine.values()) == 1
    )
    assert keys
    assert_open(row)
    assert [one.pk for one in shape.objects.claim_batch(2)] == [row.pk]


@pytest.mark.parametrize("state", ["open", "paused", "complete", "failed"])
@pytest.mark.parametrize("how", ["create", "save", "bulk_create", "get_or_create"])
def test_a_new_row_keeps_the_state_and_the_waiting_time_that_it_names(state: str, how: str) -> None:
    later = (timezone.now() + timedelta(hours=1)).replace(microsecond=0)
    row = born(Photo, how, {"status": state, "not_before": later})
    assert (facts(row).status, facts(row).not_before) == (state, later)
    assert Photo.objects.claim_batch(1) == []


@pytest.mark.parametrize("state", ["paused", "complete", "failed"])
def test_a_new_row_of_any_shape_keeps_the_state_that_it_names(shape: Any, state: str) -> None:
    (row,) = make(shape, **named(shape, status=state))
    assert facts(row).status == state
    assert getattr(row, names(shape)["status"]) == state
    assert shape.objects.claim_batch(1) == []


def born(model: Any, how: str, values: dict[str, Any]) -> Any:
    if how == "create":
        return model.objects.create(**values)
    if how == "get_or_create":
        return model.objects.get_or_create(note="unique", defaults=values)[0]
    row = model(**values)
    if how == "save":
        row.save()
        return row
    model.objects.bulk_create([row])
    return model.objects.get()


@pytest.mark.parametrize("role", [role for role in STRANGE if role not in ("status", "not_before")])
@pytest.mark.parametrize("how", ["create", "save", "bulk_create"])
def test_a_new_row_may_name_nothing_else(
    role: str, how: str, django_assert_num_queries: NoQueries
) -> None:
    with django_assert_num_queries(0), pytest.raises(ClaimColumnError, match=role):
        born(Photo, how, {role: STRANGE[role]})
    assert not Photo.objects.exists()


@pytest.mark.parametrize("state", ["processing", "finished", "", None])
@pytest.mark.parametrize("how", ["create", "save", "bulk_create"])
def test_no_row_is_born_processing_or_in_a_state_that_is_none(
    state: Any, how: str, django_assert_num_queries: NoQueries
) -> None:
    with django_assert_num_queries(0), pytest.raises(ClaimColumnError):
        born(Photo, how, {"status": state})


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
def test_no_inheriting_row_is_born_processing(
    model: Any, django_assert_num_queries: NoQueries
) -> None:
    with django_assert_num_queries(0), pytest.raises(ClaimColumnError):
        model.objects.create(status="processing")


# A constructed instance with the key of a row that exists


@pytest.mark.parametrize("state", ["open", "paused", "complete", "failed"])
def test_a_constructed_row_that_names_a_state_is_only_ever_inserted(shape: Any, state: str) -> None:
    (row,) = make(shape)
    (held,) = shape.objects.claim_batch(1)
    before = stored(row)
    again = shape(**key_of(row), note="again", **named(shape, status=state))
    with pytest.raises(IntegrityError), transaction.atomic():
        again.save()
    assert stored(row) == before
    assert held.claim.check()


def key_of(row: Any) -> dict[str, Any]:
    fields = type(row)._meta.pk_fields
    return {field.attname: getattr(row, field.attname) for field in fields}


def test_naming_a_waiting_time_counts_as_naming_a_state() -> None:
    (row,) = make(Photo)
    with pytest.raises(IntegrityError), transaction.atomic():
        Photo(pk=row.pk, not_before=timezone.now()).save()


@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim])
def test_what_a_constructed_row_names_is_never_dropped_by_a_forced_update(
    model: Any, django_assert_num_queries: NoQueries
) -> None:
    (row,) = make(model)
    again = model(**key_of(row), status="complete")
    with django_assert_num_queries(0), pytest.raises(ClaimColumnError):
        again.save(force_update=True)


def test_a_constructed_row_that_names_no_state_updates_the_users_columns_only(shape: Any) -> None:
    (row,) = make(shape)
    (held,) = shape.objects.claim_batch(1)
    before = facts(row)
    # Django itself would insert a row whose key has a default.
    shape(**(unnamed(row) | {"note": "overwritten"})).save(force_update=True)
    assert fresh(row).note == "overwritten"
    assert facts(row) == before
    held.claim.complete()


def unnamed(row: Any) -> dict[str, Any]:
    """Return the values of a row without the claim columns."""
    ours = {*names(type(row)).values()}
    return {
        field.attname: getattr(row, field.attname)
        for field in type(row)._meta.concrete_fields
        if field.name not in ours
    }


def test_a_child_of_an_existing_parent_that_names_a_state_is_inserted() -> None:
    parent = PlainParent.objects.create(note="was there")
    child = ChildOwnsClaim(plainparent_ptr=parent, note="now a child", status="paused")
    child.save()
    assert facts(child).status == "paused"


def test_a_parent_with_our_columns_is_not_overwritten_by_a_child_that_names_a_state() -> None:
    parent = Parent.objects.create(note="was there")
    with pytest.raises(IntegrityError), transaction.atomic():
        Child(parent_ptr=parent, status="complete").save()
    assert facts(parent).status == "open"


# Copies


def copy_of(row: Any, *, adding: bool) -> Any:
    """Django's copy idiom, with a new key where none is given by the database."""
    original = fresh(row)
    return as_copy(original, adding=adding)


def as_copy(row: Any, *, adding: bool) -> Any:
    model = type(row)
    if model in (TextKey, UuidKey, CompositeKey):
        new = {TextKey: "a copy", UuidKey: None, CompositeKey: (99, 99)}[model]
        row.pk = new if new else UuidKey._meta.pk.get_default()
    else:
        row.pk = None
        if model._meta.concrete_model._meta.parents:
            row.id = None
    if adding or model in (TextKey, UuidKey, CompositeKey):
        row._state.adding = True
    return row


@pytest.mark.parametrize("adding", [True, False])
@pytest.mark.parametrize("state", ["processing", "complete", "failed", "open again"])
def test_a_copy_is_born_open_whatever_its_original_is(shape: Any, state: str, adding: bool) -> None:
    make(shape, note="original")
    (row,) = shape.objects.claim_batch(1)
    if state == "complete":
        row.claim.complete()
    if state == "failed":
        row.claim.fail("no", retry=False)
    if state == "open again":
        row.claim.fail("no")
    before = stored(row)
    copied = copy_of(row, adding=adding)
    copied.save()
    assert copied.pk != row.pk
    assert fresh(copied).note == "original"
    assert_open(copied)
    assert stored(row) == before


@pytest.mark.parametrize("ended", [False, True])
def test_a_copy_made_of_the_claimed_instance_itself_is_open_and_carries_no_claim(
    shape: Any, ended: bool
) -> None:
    make(shape, note="original")
    (row,) = shape.objects.claim_batch(1)
    if ended:
        row.claim.complete()
    before, key = stored(row), row.pk
    copied = as_copy(row, adding=True)
    copied.save()
    assert_open(copied)
    assert stored(copied, key) == before
    copied.note = "an ordinary instance"
    copied.save()
    assert fresh(copied).note == "an ordinary instance"


def test_a_copy_is_born_open_also_where_its_state_was_assigned(shape: Any) -> None:
    (row,) = make(shape)
    copied = copy_of(row, adding=True)
    setattr(copied, names(shape)["status"], "complete")
    copied.save()
    assert_open(copied)
    assert getattr(copied, names(shape)["status"]) == "open"


@pytest.mark.parametrize("model", BULK, ids=lambda model: model.__name__[:20])
def test_copies_made_in_bulk_are_born_open(model: Any) -> None:
    make(model)
    (row,) = model.objects.claim_batch(1)
    copied = copy_of(row, adding=True)
    copied.note = "copied in bulk"
    model.objects.bulk_create([copied])
    assert_open(model._base_manager.get(note="copied in bulk"))


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


def test_a_form_of_all_fields_has_none_of_our_columns_but_priority(shape: Any) -> None:
    form = forms.modelform_factory(shape, fields="__all__")
    ours = set(names(shape).values()) & set(form.base_fields)
    assert ours == ({names(shape)["priority"]} if has(shape, "priority") else set())


def test_a_form_saves_a_running_row_without_touching_its_claim() -> None:
    make(Photo)
    (row,) = Photo.objects.claim_batch(1)
    before = facts(row)
    form_class = forms.modelform_factory(Photo, fields="__all__")
    data = {"note": "by hand", "counter": 3, "priority": 9, "status": "complete", "iteration": 7}
    form = form_class(data, instance=fresh(row))
    assert form.is_valid(), form.errors
    form.save()
    assert fresh(row).note == "by hand"
    before.priority = 9
    assert facts(row) == before


@pytest.mark.parametrize("model", [Photo, PhotoProxy, Child, ChildOwnsClaim, PrefixedOwnStatus])
def test_an_admin_form_has_none_of_our_columns_but_priority(model: Any) -> None:
    model_admin = admin.ModelAdmin(model, admin.AdminSite())
    form = model_admin.get_form(RequestFactory().get("/"))
    ours = set(names(model).values()) & set(form.base_fields)
    assert ours == {names(model)["priority"]}


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
