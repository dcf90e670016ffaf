"""``complete(update_fields=…)``: results are recorded or lost together with the completion, as ``save()`` would."""

import datetime
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.db import DatabaseError, DataError, connection, models, transaction
from django.db.models import F, Value
from django.test import override_settings
from django.utils import timezone

from django_taskclaim.exceptions import ClaimColumnError, ClaimLost
from tests.behaviour.models import AnyTypeField, EveryField, Narrow
from tests.behaviour.support import claimable_rows, execute, facts, fresh, has, lose, names, stored
from tests.factories import SHAPES, make
from tests.testapp.models import Author, Child, ChildOwnsClaim, Photo

pytestmark = pytest.mark.django_db

AWARE = datetime.datetime(2024, 2, 29, 23, 59, 58, 123456, tzinfo=datetime.UTC)

#: Two values for each column, so that rows of one batch differ.
VALUES: dict[str, tuple[Any, Any]] = {
    "amount": (Decimal("1234.5"), Decimal("-0.125")),
    "reference": (uuid.UUID(int=1), uuid.UUID(int=2**128 - 1)),
    "facts": ({"a": [1, None, "ü%s"]}, [True, 1.5, {"'": '"'}]),
    "blob": (b"\x00\xff%s'\\", b""),
    "moment": (AWARE, AWARE + datetime.timedelta(days=200)),
    "day": (datetime.date(2024, 2, 29), datetime.date(1, 1, 1)),
    "span": (datetime.timedelta(days=-3, microseconds=1), datetime.timedelta(hours=50)),
    "ratio": (0.1, -1e300),
    "flag": (True, False),
    "big": (2**63 - 1, -(2**63)),
    "text": ("100% 'sure' \\ \"é\" 🎈 %s", ""),
}


def claimed(n: int) -> list[EveryField]:
    make(EveryField, n)
    return EveryField.objects.claim_batch(n)


def give(row: Any, which: int) -> None:
    for name, values in VALUES.items():
        setattr(row, name, values[which])


def columns_of(row: Any) -> dict[str, Any]:
    """Return what is stored of the row, without its key and the claim columns."""
    ours = {f"EveryField.{name}" for name in [*names(EveryField).values(), "id"]}
    return {name: value for name, value in stored(row).items() if name not in ours}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("together", [1, 3])
def test_values_are_stored_exactly_as_save_stores_them(which: int, together: int) -> None:
    saved, *rows = claimed(together + 1)
    for row in [saved, *rows]:
        give(row, which)
    saved.save(update_fields=list(VALUES))
    EveryField.objects.complete(rows, update_fields=list(VALUES))
    skip = {"EveryField.changed"}
    expected = {name: value for name, value in columns_of(saved).items() if name not in skip}
    for row in rows:
        assert {n: v for n, v in columns_of(row).items() if n not in skip} == expected
        assert facts(row).status == "complete"


@pytest.mark.parametrize("name", list(VALUES))
def test_each_row_of_a_batch_gets_its_own_value_or_null(name: str) -> None:
    rows = claimed(3)
    wanted = [VALUES[name][0], None, VALUES[name][1]]
    for row, value in zip(rows, wanted, strict=True):
        setattr(row, name, value)
    EveryField.objects.complete(rows, update_fields=[name])
    assert [getattr(fresh(row), name) for row in rows] == wanted


@pytest.mark.parametrize("name", list(VALUES))
def test_a_whole_batch_may_become_null(name: str) -> None:
    rows = claimed(2)
    for row in rows:
        setattr(row, name, None)
    EveryField.objects.complete(rows, update_fields=[name])
    assert [getattr(fresh(row), name) for row in rows] == [None, None]


def test_columns_that_are_not_named_stay_as_they_are() -> None:
    (row,) = claimed(1)
    give(row, 0)
    before = columns_of(row)
    row.complete(update_fields=["big"])
    assert columns_of(row) == before | {"EveryField.big": VALUES["big"][0]}


def test_pre_save_prepares_each_value_and_the_instance_shows_it() -> None:
    rows = claimed(2)
    for number, row in enumerate(rows):
        row.shouted = f"quietly {number}"
        row.changed = AWARE
    EveryField.objects.complete(rows, update_fields=["shouted", "changed"])
    assert [fresh(row).shouted for row in rows] == ["QUIETLY 0", "QUIETLY 1"]
    assert [row.shouted for row in rows] == ["QUIETLY 0", "QUIETLY 1"]
    for row in rows:
        assert fresh(row).changed == row.changed
        assert abs(timezone.now() - row.changed) < datetime.timedelta(minutes=1)


def test_a_file_is_stored_before_its_name_is() -> None:
    (row,) = claimed(1)
    row.document = ContentFile(b"thumbnail", name="thumb.jpeg")
    row.complete(update_fields=["document"])
    with fresh(row).document.open() as file:
        assert file.read() == b"thumbnail"


@pytest.mark.parametrize("name", ["author", "author_id"])
def test_a_foreign_key_is_named_by_either_of_its_names(name: str) -> None:
    author = Author.objects.create(name="someone")
    rows = claimed(2)
    for row in rows:
        row.author = author
    EveryField.objects.complete(rows, update_fields=[name])
    assert [fresh(row).author_id for row in rows] == [author.pk, author.pk]


@pytest.mark.parametrize(
    "shape",
    [model for model in SHAPES if has(model, "priority")],
    ids=lambda model: model.__name__[:20],
)
def test_priority_is_the_users_to_write(shape: Any) -> None:
    name = names(shape)["priority"]
    make(shape)
    (row,) = shape.objects.claim_batch(1)
    setattr(row, name, 7)
    row.claim.complete(update_fields=[name])
    assert facts(row).priority == 7


@pytest.mark.parametrize("size", [1, 2, 7])
def test_every_row_of_every_shape_gets_its_own_values(shape: Any, size: int) -> None:
    make(shape, size)
    rows = shape.objects.claim_batch(size)
    for number, row in enumerate(rows):
        row.note, row.counter = f"100% of {number}", number
    assert shape.objects.complete(rows, update_fields=["note", "counter"]) == size
    again = {row.pk: row for row in shape._base_manager.all()}
    for number, row in enumerate(rows):
        assert (again[row.pk].note, again[row.pk].counter) == (f"100% of {number}", number)
        assert facts(row).status == "complete"


@override_settings(TASKCLAIM={"CHUNK_SIZE": 10})
def test_more_rows_than_a_statement_takes_are_all_written(shape: Any) -> None:
    make(shape, 25)
    assert_all_are_written(shape, 25)


@pytest.mark.parametrize("size", [501, 1000])
def test_more_rows_than_the_default_chunk_are_all_written(size: int) -> None:
    claimable_rows(Photo, size)
    assert_all_are_written(Photo, size)


def assert_all_are_written(model: Any, size: int) -> None:
    rows = model.objects.claim_batch(size)
    assert len(rows) == size
    for number, row in enumerate(rows):
        row.counter = number
    assert model.objects.renew(rows) == size
    assert model.objects.complete(rows, update_fields=["counter"]) == size
    assert model.objects.reset(complete=True) == size
    assert sorted(model._base_manager.values_list("counter", flat=True)) == list(range(size))


def test_a_thousand_rows_of_a_composite_key_fit_into_the_largest_chunk() -> None:
    """The condition on a composite key is an OR of a thousand terms, which some databases limit."""
    from tests.testapp.models import CompositeKey

    rows = [CompositeKey(tenant=n % 7, number=n) for n in range(1000)]
    models.QuerySet(CompositeKey).bulk_create(rows)
    with override_settings(TASKCLAIM={"CHUNK_SIZE": 1000}):
        held = CompositeKey.objects.claim_batch(1000)
        for row in held:
            row.counter, row.note = row.number, str(row.number)
        assert CompositeKey.objects.renew(held) == 1000
        assert CompositeKey.objects.complete(held, update_fields=["counter", "note"]) == 1000
    assert not CompositeKey.objects.exclude(counter=F("number")).exists()


# Values that do not fit


def outcome(size: int, name: str, given: Any) -> Any:
    """Return what the database says to this result of *size* rows, or what it stores."""
    make(Narrow, size)
    rows = Narrow.objects.claim_batch(size)
    for row in rows:
        setattr(row, name, given)
    try:
        with transaction.atomic():
            Narrow.objects.complete(rows, update_fields=[name])
    except DatabaseError as error:
        return type(error), error.args[0] if connection.vendor == "mysql" else ""
    first, *others = [getattr(fresh(row), name) for row in rows]
    assert others == [first] * (size - 1)
    return first


@pytest.fixture(params=["usual", "lenient"])
def sql_mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let MySQL and MariaDB be as strict as Django has them, and not at all."""
    lenient = request.param == "lenient"
    if lenient and connection.vendor != "mysql":
        pytest.skip("has no sql_mode")
    if lenient:
        execute("SET @usual = @@SESSION.sql_mode, SESSION sql_mode = ''")
    yield request.param
    if lenient:
        execute("SET SESSION sql_mode = @usual")


@pytest.mark.parametrize("name", ["code", "folded", "target_id", "of_any_type"])
def test_a_batch_refuses_a_value_as_a_single_row_does(name: str, sql_mode: str) -> None:
    alone = outcome(1, name, "abcdefgh")
    assert outcome(3, name, "abcdefgh") == alone
    refuses = connection.vendor != "sqlite" and sql_mode == "usual"
    assert (alone[0] is DataError) is refuses, alone


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs types that a cast cuts")
@pytest.mark.parametrize(
    ("kind", "too_long", "fits"),
    [
        ("varchar(5)", "abcdefgh", "abcde"),
        ("character varying(5)", uuid.UUID(int=1), "abcde"),
        ("char(5)", "abcdefgh", "abcde"),
        ("character", "ab", "a"),
        ("bit(3)", "10101", "101"),
        ("bit", "10", "1"),
        ("varbit(3)", "10101", "101"),
        ("numeric(4, 1)", Decimal(99999), Decimal("99.5")),
        ("varchar(5)[]", ["abcdefgh"], ["abcde", None]),
        ("CHAR(5)[2][2]", [["abcdefgh"]], [["abcde"]]),
        ("bit(3)[]", ["10101"], ["101"]),
        ("numeric(4,1)[]", [Decimal(99999)], [Decimal("1.5")]),
        ("taskclaim_short", "abcdefgh", "abcde"),
        ("timestamp(0) with time zone", "never", AWARE.replace(microsecond=0)),
        ("json", "{", "[1]"),
    ],
)
def test_no_type_is_cut_by_a_batch(
    kind: str, too_long: Any, fits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute("CREATE DOMAIN taskclaim_short AS varchar(5)")
    execute(f"ALTER TABLE testapp_narrow ALTER of_any_type TYPE {kind} USING NULL::{kind}")
    monkeypatch.setattr(AnyTypeField, "kind", kind)
    assert [outcome(size, "of_any_type", too_long) for size in (1, 3)] == [(DataError, "")] * 2
    alone = outcome(1, "of_any_type", fits)
    assert outcome(3, "of_any_type", fits) == alone
    if kind != "json":
        assert alone == fits


def test_a_generated_column_is_none_to_write() -> None:
    make(Narrow)
    (row,) = Narrow.objects.claim_batch(1)
    with pytest.raises(ValueError, match="doubled"):
        row.complete(update_fields=["doubled"])


# Refused


@pytest.mark.parametrize("rows", [1, 3])
def test_an_expression_is_a_type_error_and_nothing_is_written(shape: Any, rows: int) -> None:
    make(shape, rows)
    held = shape.objects.claim_batch(rows)
    before = [stored(row) for row in held]
    held[-1].counter = F("counter") + 1
    with pytest.raises(TypeError, match="counter"):
        shape.objects.complete(held, update_fields=["note", "counter"])
    assert [stored(row) for row in held] == before
    held[-1].counter = 5
    assert shape.objects.complete(held, update_fields=["counter"]) == rows


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
def test_an_expression_for_another_tables_column_takes_the_completion_back(model: Any) -> None:
    make(model)
    (row,) = model.objects.claim_batch(1)
    before = stored(row)
    row.note = "result"
    row.extra = row.counter = Value(1)
    with pytest.raises(TypeError):
        row.complete(update_fields=["note", "extra", "counter"])
    assert stored(row) == before
    assert row.claim.check()


@pytest.mark.parametrize(
    ("names_given", "error"),
    [
        (["nonsense"], ValueError),
        (["counter", "pk"], ValueError),
        (["note__upper"], ValueError),
        (["status"], ClaimColumnError),
        (["counter", "not_before"], ClaimColumnError),
        (["iteration"], ClaimColumnError),
        ("counter", TypeError),
    ],
)
def test_wrong_names_are_refused_before_any_sql(
    names_given: Any, error: type[Exception], django_assert_num_queries: Callable[..., Any]
) -> None:
    make(Photo)
    (row,) = Photo.objects.claim_batch(1)
    with django_assert_num_queries(0), pytest.raises(error):
        Photo.objects.complete([row], update_fields=names_given)
    assert row.claim.check()


def test_a_many_to_many_relation_is_no_column_to_write() -> None:
    from tests.behaviour.models import Labelled

    make(Labelled)
    (row,) = Labelled.objects.claim_batch(1)
    with pytest.raises(ValueError, match="labels"):
        row.complete(update_fields=["labels"])


# Recorded or lost together


@pytest.mark.parametrize("names_given", [["note"], ["counter"], ["note", "counter"]])
def test_results_of_a_lost_claim_are_not_written(shape: Any, names_given: list[str]) -> None:
    make(shape)
    (late,) = shape.objects.claim_batch(1)
    lose(late)
    before = stored(late)
    late.note, late.counter = "late", 99
    with pytest.raises(ClaimLost):
        shape.objects.complete([late], update_fields=names_given)
    assert stored(late) == before


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
def test_results_on_an_inherited_table_are_lost_with_the_claim(model: Any) -> None:
    make(model, 2)
    kept, late = model.objects.claim_batch(2)
    lose(late)
    before = stored(late)
    for row in (kept, late):
        row.extra = row.note = "result"
        row.counter = 3
    with pytest.raises(ClaimLost) as lost:
        model.objects.complete([kept, late], update_fields=["extra", "note", "counter"])
    assert (lost.value.lost, lost.value.written) == ([late], [kept])
    assert stored(late) == before
    again = fresh(kept)
    assert (again.extra, again.note, again.counter) == ("result", "result", 3)
    assert facts(kept).status == "complete"
