"""What a handler sets on its row although nothing writes it: the worker says so, once."""

import logging
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from django_taskclaim.testing import run_due
from tests.doctor.support import handling
from tests.factories import make
from tests.querysets.models import EveryField
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db

Said = Callable[[], list[tuple[str, list[str]]]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """Return the columns that warnings named since the last call, each with the level."""

    def take() -> list[tuple[str, list[str]]]:
        found = [
            (record.levelname, record.columns)
            for record in caplog.records
            if getattr(record, "event", None) == "unsaved"
        ]
        caplog.clear()
        return found

    caplog.set_level(logging.INFO, "django_taskclaim")
    return take


def set_width(photo: Any) -> None:
    photo.width, photo.note = 640, "seen"


async def set_width_async(photo: Any) -> None:
    set_width(photo)


def set_widths(photos: list[Any]) -> None:
    for photo in photos:
        set_width(photo)


FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (set_width, {}),
    "async": (set_width_async, {}),
    "batch": (set_widths, {"batch": True}),
    "atomic": (set_width, {"atomic": True, "timeout": 5}),
}


@pytest.mark.once
@pytest.mark.parametrize("form", FORMS)
def test_a_column_that_nothing_writes_is_named_once(
    form: str, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are complete all the same, and the record tells what to do."""
    function, options = FORMS[form]
    first, *_ = make(Photo, 3)
    with handling(Photo, function, update_fields=["note"], **options):
        assert run_due(Photo).completed == 3
    assert set(Photo.objects.values_list("width", "note")) == {(None, "seen")}
    (message,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert 'update_fields=["note", "width"]' in message
    assert "save()" in message
    assert f"testapp.Photo {first.pk}: " in message
    assert said() == [("WARNING", ["width"])]


@pytest.mark.once
def test_a_comparison_that_breaks_changes_no_outcome(monkeypatch: Any) -> None:
    """The columns of users read their values by code of the users."""
    make(Photo)
    monkeypatch.setattr("django_taskclaim.worker.answers.models.QuerySet.values", int)
    with handling(Photo, set_width, atomic=True, timeout=5):
        assert run_due(Photo).completed == 1


def write_by_queryset(row: Any) -> None:
    row.text = "seen"
    type(row)._base_manager.filter(pk=row.pk).update(text="seen")


def save_some(row: Any) -> None:
    row.text = "seen"
    row.save(update_fields=["text"])


def save_all(row: Any) -> None:
    row.text = "seen"
    row.save()


def write_what_it_is(row: Any) -> None:
    """A file is a text until it is read."""
    assert row.document.name == "a"
    row.big, row.amount = str(row.big), Decimal("1.5")


WRITES = [write_by_queryset, save_some, save_all, write_what_it_is]


@pytest.mark.parametrize(
    ("write", "atomic"), [*((write, False) for write in WRITES), (save_all, True)]
)
def test_what_the_handler_writes_itself_is_not_lost(write: Any, atomic: bool, said: Said) -> None:
    for _ in range(3):
        EveryField.objects.create(document="a", big=7, amount="1.500")
    with handling(EveryField, write, atomic=atomic, timeout=5):
        assert run_due(EveryField).completed == 3
    assert said() == []
