"""How rows are born: new ones, copies, and what is constructed with the key of a row that exists."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from django_taskclaim.exceptions import ClaimColumnError
from tests.behaviour.support import (
    BULK,
    STRANGE,
    execute,
    facts,
    fresh,
    names,
    owner_of,
    quoted,
    stored,
    table_of,
    unnamed,
)
from tests.factories import SHAPES, make
from tests.testapp.models import (
    Child,
    ChildOwnsClaim,
    CompositeKey,
    Parent,
    Photo,
    PlainParent,
    TextKey,
    UuidKey,
)

pytestmark = pytest.mark.django_db

NoQueries = Callable[..., Any]


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
def test_a_new_row_that_names_more_is_a_copy_and_open(role: str, how: str) -> None:
    row = born(Photo, how, {"status": "complete", role: STRANGE[role]})
    assert_open(row)
    assert_open(fresh(row))
    assert row.status == "open"


@pytest.mark.parametrize("how", ["create", "save", "bulk_create"])
def test_a_new_row_that_names_a_claim_is_open(how: str) -> None:
    row = born(Photo, how, {"status": "processing", "claimed_by": "user:17", "iteration": 3})
    assert_open(row)
    assert Photo.objects.claim_batch(2) == [row]


def test_a_new_row_of_any_shape_that_names_processing_is_open(shape: Any) -> None:
    (row,) = make(shape, **named(shape, status="processing"))
    assert_open(row)


@pytest.mark.parametrize("state", ["finished", "", None])
@pytest.mark.parametrize("how", ["create", "save", "bulk_create"])
def test_no_row_is_born_in_a_state_that_is_none(
    state: Any, how: str, django_assert_num_queries: NoQueries
) -> None:
    with django_assert_num_queries(0), pytest.raises(ClaimColumnError):
        born(Photo, how, {"status": state})


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
def test_no_inheriting_row_is_born_in_a_state_that_is_none(model: Any) -> None:
    with pytest.raises(ClaimColumnError), transaction.atomic():
        model.objects.create(status="finished")
    assert not model.objects.exists()


# A constructed instance with the key of a row that exists


@pytest.mark.parametrize("state", [None, "open", "paused", "complete", "failed", "processing"])
@pytest.mark.parametrize("force", [True, False])
def test_over_a_row_that_exists_it_writes_the_users_columns_only(
    shape: Any, state: str | None, force: bool
) -> None:
    (row,) = make(shape)
    (held,) = shape.objects.claim_batch(1)
    before = facts(row)
    names_ours = named(shape, status=state, claimed_by="user:thief", iteration=7) if state else {}
    again = shape(**(unnamed(row) | {"note": "again"} | names_ours))
    # Django itself would insert a row whose key has a default.
    again._state.adding = shape is not UuidKey
    again.save(force_update=force)
    assert fresh(row).note == "again"
    assert facts(row) == before
    held.claim.complete()


@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim])
def test_it_shows_and_saves_what_the_row_has(model: Any) -> None:
    (row,) = make(model)
    again = model(**unnamed(row), status="complete", claimed_by="user:thief", iteration=7)
    again.save()
    assert (again.status, again.claimed_by, again.iteration) == ("open", None, 0)
    again.note = "once more"
    again.save()
    assert fresh(row).note == "once more"
    again.status = "failed"
    with pytest.raises(ClaimColumnError):
        again.save()


def test_it_is_saved_by_the_statements_that_django_sends(
    django_assert_num_queries: NoQueries,
) -> None:
    (row,) = make(Photo)
    with django_assert_num_queries(1):
        Photo(pk=row.pk, status="complete").save()
    with django_assert_num_queries(2):
        Photo(pk=row.pk + 1, status="complete").save()
    assert [one.status for one in Photo.objects.order_by("pk")] == ["open", "complete"]
    with pytest.raises(IntegrityError), transaction.atomic():
        Photo(pk=row.pk).save(force_insert=True)


def test_a_child_of_an_existing_parent_that_names_a_state_is_inserted() -> None:
    parent = PlainParent.objects.create(note="was there")
    child = ChildOwnsClaim(plainparent_ptr=parent, note="now a child", status="paused")
    child.save()
    assert facts(child).status == "paused"


def test_a_child_of_an_existing_parent_leaves_the_claim_of_that_alone() -> None:
    parent = Parent.objects.create(note="was there")
    Child(parent_ptr=parent, note="now a child", status="complete").save()
    assert (fresh(parent).note, facts(parent).status) == ("now a child", "open")


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


def test_a_copy_over_a_row_that_exists_leaves_its_claim_alone() -> None:
    original, taken = make(Photo, 2)
    copied = fresh(original)
    copied.pk, copied._state.adding, copied.status = taken.pk, True, "complete"
    before = facts(taken)
    copied.save()
    assert facts(taken) == before
    assert fresh(taken).url == original.url


@pytest.mark.parametrize("model", BULK, ids=lambda model: model.__name__[:20])
def test_copies_made_in_bulk_are_born_open(model: Any) -> None:
    make(model)
    (row,) = model.objects.claim_batch(1)
    copied = copy_of(row, adding=True)
    copied.note = "copied in bulk"
    model.objects.bulk_create([copied])
    assert_open(model._base_manager.get(note="copied in bulk"))
