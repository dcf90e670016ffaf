"""``complete(update_fields=…)``: results are recorded or lost together with the completion, as ``save()`` would."""

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.db import DatabaseError, DataError, connection, transaction
from django.db.models import F, TextChoices, Value
from django.utils import timezone

from django_taskclaim.db.base import Dialect
from django_taskclaim.exceptions import ClaimColumnError, ClaimLost
from tests.factories import make_claimed
from tests.querysets.models import AnyTypeField, EveryField, Labelled, Narrow
from tests.querysets.support import execute, facts, fresh, lose, stored
from tests.testapp.models import Author, Child, ChildOwnsClaim, CompositeKey, Photo

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


class Country(TextChoices):
    PERU = "PE"


def results_of(row: Any) -> dict[str, Any]:
    """Return the results as they are stored."""
    found = stored(row)
    return {name: found[f"EveryField.{name}"] for name in VALUES}


@pytest.mark.parametrize("named", [[*VALUES][:-1], *[[name] for name in VALUES]], ids=len)
@pytest.mark.parametrize("together", [1, 2])
def test_values_are_stored_exactly_as_save_stores_them(together: int, named: list[str]) -> None:
    """Alone or in a batch, where each row has its own; NULL too. Columns that are not named stay as they are."""
    for values in (*zip(*VALUES.values(), strict=True), [None] * len(VALUES)):
        saved, *rows = make_claimed(EveryField, together + 1)
        before = list(map(results_of, rows))
        for row in (saved, rows[0]):
            for name, value in zip(VALUES, values, strict=True):
                setattr(row, name, value)
        saved.save(update_fields=named)
        EveryField.objects.complete(rows, update_fields=named)
        written = {name: results_of(saved)[name] for name in named}
        assert [results_of(row) for row in rows] == [before[0] | written, *before[1:]]
        assert {facts(row).status for row in rows} == {"complete"}
        saved.claim.complete()


def test_texts_of_a_batch_are_stored_as_they_are() -> None:
    odd = r'NULL {} {"a",b} " \ \" %s %% é🎈'
    texts = ["", " a, b ", "\n\t", *odd.split(), Country.PERU]
    rows = make_claimed(EveryField, len(texts))
    for row, text in zip(rows, texts, strict=True):
        row.text = text
    EveryField.objects.complete(rows, update_fields=["text"])
    assert [fresh(row).text for row in rows] == texts


def test_fields_prepare_their_values_and_the_instance_shows_them() -> None:
    """As by ``pre_save``: also ``auto_now``, a file that is stored before its name is, either name of a link."""
    author = Author.objects.create(name="someone")
    rows = make_claimed(EveryField, 2)
    for row, link in zip(rows, ("author", "author_id"), strict=True):
        row.shouted, row.changed, row.author = "quietly", AWARE, author
        row.document = ContentFile(b"thumbnail", name="thumb.jpeg")
        row.complete(update_fields=["shouted", "changed", "document", link])
        assert fresh(row).shouted == row.shouted == "QUIETLY"
        assert fresh(row).changed == row.changed
        assert timezone.now() - row.changed < datetime.timedelta(hours=1)
        assert fresh(row).author == author
        with fresh(row).document.open() as file:
            assert file.read() == b"thumbnail"


@pytest.mark.parametrize("size", [1, 25])
def test_every_row_of_every_shape_gets_its_own_values(
    shape: Any, size: int, monkeypatch: Any
) -> None:
    """Also where one statement does not take them all."""
    monkeypatch.setattr(Dialect, "MOST_KEYS", 10)
    rows = make_claimed(shape, size)
    for number, row in enumerate(rows):
        row.note, row.counter = f"100% of {number}", number
    assert shape.objects.renew(rows) == size
    assert shape.objects.complete(rows, update_fields=["note", "counter"]) == size
    for number, row in enumerate(rows):
        again = fresh(row)
        assert (again.note, again.counter) == (f"100% of {number}", number)
        assert facts(row).status == "complete"


# Values that do not fit


def outcome(size: int, name: str, given: Any) -> Any:
    """Return what the database says to this result of *size* rows, or what it stores."""
    rows = make_claimed(Narrow, size)
    for row in rows:
        setattr(row, name, given)
    try:
        with transaction.atomic():
            Narrow.objects.complete(rows, update_fields=[name])
    except DatabaseError as error:
        return type(error)
    first, *others = [getattr(fresh(row), name) for row in rows]
    assert others == [first] * (size - 1)
    return first


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.parametrize("name", ["code", "folded", "target_id", "of_any_type"])
def test_a_batch_refuses_a_value_as_a_single_row_does(name: str, strict: bool) -> None:
    """Also where MySQL or MariaDB refuses nothing."""
    lenient = connection.vendor == "mysql" and not strict
    if lenient:
        execute("SET @usual = @@SESSION.sql_mode, SESSION sql_mode = ''")
    try:
        alone, together = [outcome(size, name, "abcdefgh") for size in (1, 3)]
    finally:
        if lenient:
            execute("SET SESSION sql_mode = @usual")
    assert together == alone
    assert (alone is DataError) is (connection.vendor != "sqlite" and not lenient), alone


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs types that a cast cuts")
@pytest.mark.parametrize(
    ("kind", "too_long", "fits"),
    [
        ("varchar(5)", "abcdefgh", "abcde"),
        ("char(5)", "abcdefgh", "abcde"),
        ("bit(3)", "10101", "101"),
        ("numeric(4, 1)", Decimal(99999), Decimal("99.5")),
        ("varchar(5)[]", ["abcdefgh"], ["abcde", None]),
        ("taskclaim_short", "abcdefgh", "abcde"),
        ("timestamp(0) with time zone", "never", AWARE.replace(microsecond=0)),
    ],
)
def test_no_type_is_cut_by_a_batch(
    kind: str, too_long: Any, fits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute("CREATE DOMAIN taskclaim_short AS varchar(5)")
    execute(f"ALTER TABLE testapp_narrow ALTER of_any_type TYPE {kind} USING NULL::{kind}")
    monkeypatch.setattr(AnyTypeField, "kind", kind)
    assert [outcome(size, "of_any_type", too_long) for size in (1, 3)] == [DataError] * 2
    assert [outcome(size, "of_any_type", fits) for size in (1, 3)] == [fits] * 2


# Refused


@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim])
@pytest.mark.parametrize("number", [1, 3])
def test_an_expression_is_a_type_error_and_nothing_is_written(model: Any, number: int) -> None:
    """On the table of the claim columns or on another one."""
    held = make_claimed(model, number)
    before = [stored(row) for row in held]
    for name in ["counter", "extra"] if hasattr(held[-1], "extra") else ["counter"]:
        usual = getattr(held[-1], name)
        setattr(held[-1], name, F("counter") + 1 if name == "counter" else Value("x"))
        with pytest.raises(TypeError, match=name):
            model.objects.complete(held, update_fields=["note", name])
        setattr(held[-1], name, usual)
        assert [stored(row) for row in held] == before
    held[-1].counter = 5
    assert model.objects.complete(held, update_fields=["counter"]) == number


WRONG: list[tuple[Any, Any, type[Exception]]] = [
    (Photo, ["nonsense"], ValueError),
    (Photo, ["counter", "pk"], ValueError),
    (Photo, ["note__upper"], ValueError),
    (Photo, ["counter", "not_before"], ClaimColumnError),
    (Photo, "counter", TypeError),
    (Photo, None, TypeError),
    (Labelled, ["labels"], ValueError),
    (Narrow, ["doubled"], ValueError),
]


def test_wrong_names_are_refused_before_any_sql(django_assert_num_queries: Any) -> None:
    for model, named, error in WRONG:
        (row,) = make_claimed(model)
        with django_assert_num_queries(0), pytest.raises(error):
            model.objects.complete([row], update_fields=named)
        assert row.claim.check()


# Recorded or lost together


@pytest.mark.promise(3)
@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, CompositeKey])
def test_results_of_a_lost_claim_are_not_written(model: Any) -> None:
    """Nor are those on another table of the row."""
    names = ["note", "extra"] if hasattr(model, "extra") else ["note"]
    kept, late = make_claimed(model, 2)
    lose(late)
    before = stored(late)
    for row in (kept, late):
        row.note = row.extra = "result"
    with pytest.raises(ClaimLost) as lost:
        model.objects.complete([kept, late], update_fields=names)
    assert (lost.value.lost, lost.value.written) == ([late], [kept])
    assert stored(late) == before
    assert {getattr(fresh(kept), name) for name in names} == {"result"}
    assert facts(kept).status == "complete"
