"""What the history of a row keeps, for the models that are named and no others."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_taskclaim.control.models import ClaimEvent
from django_taskclaim.control.reading import history
from django_taskclaim.exceptions import ClaimLost
from tests.factories import make
from tests.test_commands import lapsed
from tests.testapp.models import Child, CompositeKey, Parent, Photo, UuidKey

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture(autouse=True)
def kept(settings: Any) -> None:
    labels = ["testapp.photo", "testapp.UuidKey", "testapp.CompositeKey", "testapp.Parent"]
    settings.TASKCLAIM = {"HISTORY": labels}


def events(row: Any) -> list[str]:
    return [event.event for event in history(type(row), row.pk, using="default")]


@pytest.fixture(params=[Photo, UuidKey, CompositeKey, Parent])
def row(request: pytest.FixtureRequest) -> Any:
    """One claimed row, of models with keys of every kind."""
    make(request.param, 1)
    (claimed,) = request.param.objects.claim_batch(1)
    return claimed


def test_a_life_is_told_whatever_the_key(row: Any) -> None:
    model = type(row)
    row.claim.renew()
    row.claim.renew()
    row.claim.release()
    (row,) = model.objects.claim_batch(1)
    row.claim.fail("no such picture", retry=False)
    model.objects.reset()
    (row,) = model.objects.claim_batch(1)
    model.objects.all().take_back()
    with pytest.raises(ClaimLost):
        row.claim.complete()
    model.objects.pause_rows()
    model.objects.resume_rows()
    (again,) = lapsed_again(model)
    (row,) = model.objects.claim_batch(1)
    row.claim.complete()
    assert events(row) == [
        *("claimed", "renewed", "released"),
        *("claimed", "failed", "reset"),
        *("claimed", "taken back", "lost", "paused", "resumed"),
        *("claimed", "expired", "claimed", "completed"),
    ]
    found = history(model, row.pk, using="default")
    assert found[1].times == 2
    assert found[4].detail == "no such picture"
    assert found[12].holder == again.claim.token.holder
    assert [e.iteration for e in found if e.event == "claimed"] == [0, 1, 2, 4, 5]


def lapsed_again(model: Any) -> list[Any]:
    """Let the claim of the one open row lapse, and put it back."""
    claimed = lapsed_claim(model)
    assert model.objects.release_expired() == 1
    return claimed


def lapsed_claim(model: Any) -> list[Any]:
    claimed = list(model.objects.claim_batch(1, lease=0.001))
    while not model.objects.expired().exists():
        continue
    return claimed


def test_a_failed_try_that_is_put_back(row: Any) -> None:
    row.claim.fail(ValueError("odd"))
    assert events(row) == ["claimed", "retried"]
    assert history(type(row), row.pk, using="default")[-1].detail == "ValueError: odd"


def test_other_models_have_none(settings: Any) -> None:
    make(Child, 1)
    (child,) = Child.objects.claim_batch(1)
    child.claim.complete()
    settings.TASKCLAIM = {}
    lapsed(Photo, 1)
    assert not ClaimEvent.objects.exists()


def test_a_batch_is_one_insert() -> None:
    make(Photo, 50)
    rows = Photo.objects.claim_batch(50)
    with CaptureQueriesContext(connection) as asked:
        Photo.objects.complete(rows)
    inserts = [q["sql"] for q in asked.captured_queries if q["sql"].startswith("INSERT")]
    assert len(inserts) == 1
    assert ClaimEvent.objects.filter(event="completed").count() == 50


def test_an_error_of_the_history_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    make(Photo, 1)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE taskclaim_claimevent RENAME TO elsewhere")
    try:
        (photo,) = Photo.objects.claim_batch(1)
        photo.claim.complete()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO taskclaim_claimevent")
    assert Photo.objects.progress().complete == 1
    assert "taskclaim" in caplog.text
