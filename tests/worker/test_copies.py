"""A handler may save the instance that it got as another row, as Django's documentation copies one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_taskclaim import handler
from django_taskclaim.handlers import unregister
from django_taskclaim.testing import Ran, run_due
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def register() -> Iterator[Callable[..., Any]]:
    """Give Photo a handler for one test."""

    def with_options(**options: Any) -> Any:
        return handler(Photo, **options)

    yield with_options
    unregister(Photo)


def save_as_copy(photo: Photo) -> None:
    photo.pk, photo._state.adding, photo.url = None, True, "copy"
    photo.save()


def copy_each(given: Any) -> None:
    for photo in [given] if isinstance(given, Photo) else given:
        save_as_copy(photo)


@pytest.mark.parametrize(
    ("options", "function"),
    [
        pytest.param({}, copy_each, id="row"),
        pytest.param({"batch": True}, copy_each, id="batch"),
        pytest.param({"atomic": True}, copy_each, id="atomic"),
    ],
)
def test_the_row_that_was_claimed_is_done(
    register: Callable[..., Any], options: dict[str, Any], function: Any
) -> None:
    """Once, and the copy is a row of its own."""
    register(batch_size=2, **options)(function)
    claimed = {photo.pk for photo in make(Photo, 2)}
    assert run_due(Photo, limit=2) == Ran(completed=2)
    assert {
        row.pk for row in Photo.objects.filter(status="complete").exclude(url="copy")
    } == claimed
    assert [row.status for row in Photo.objects.filter(url="copy")] == ["open", "open"]
