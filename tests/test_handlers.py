"""``@handler`` refuses what cannot work, and knows what kind of function it was given."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.core.exceptions import AppRegistryNotReady, FieldError, ImproperlyConfigured
from django.db.models import QuerySet

from django_taskclaim import handler
from django_taskclaim.handlers import handler_for, unregister
from django_taskclaim.models import ClaimMixin
from django_taskclaim.testing import run_due
from tests.factories import make
from tests.testapp.models import Effect, Photo

pytestmark = [pytest.mark.once, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def no_handler() -> Iterator[None]:
    yield
    unregister(Photo)


def plain(photo: Photo) -> None: ...


async def coroutine(photo: Photo) -> None: ...


def generator(photos: list[Photo]) -> Iterator[Photo]:
    yield from photos


async def async_generator(photos: list[Photo]) -> Any:
    yield photos


def no_row() -> None: ...


class Asynchronous:
    async def __call__(self, photo: Photo) -> None: ...


@pytest.mark.promise(14)
@pytest.mark.parametrize(
    ("options", "function", "error", "named"),
    [
        ({"atomic": True}, coroutine, TypeError, "atomic"),
        ({"atomic": True}, Asynchronous(), TypeError, "atomic"),
        ({"completion": coroutine}, plain, TypeError, "coroutine"),
        ({}, generator, TypeError, "generator"),
        ({"batch": True}, async_generator, TypeError, "async generator"),
        ({"concurrency": 3}, plain, TypeError, "no coroutine function"),
        ({}, no_row, TypeError, "one row"),
        ({"batch": True}, no_row, TypeError, "list of rows"),
        ({"order_by": "url"}, plain, ValueError, "order_by"),
        ({"order_by": ["no_such_column"]}, plain, FieldError, "no_such_column"),
        ({"batch_size": 0}, plain, ValueError, "batch_size"),
        ({"max_attempts": 0}, plain, ValueError, "max_attempts"),
        ({"rate": 3}, plain, ValueError, "rate must be a number of rows"),
        ({"max_running": 10**30}, plain, ValueError, "max_running must be a whole number"),
        ({"atomic": "no"}, plain, ValueError, "atomic must be True or False, not 'no'"),
        ({"wake_up": 1}, plain, ValueError, "wake_up must be True or False"),
        ({"failed_blocks": "no"}, plain, ValueError, "failed_blocks must be True or False"),
        ({"rate": f"0.{'0' * 400}1/s"}, plain, ValueError, "rate must be a number of rows"),
        ({"batchsize": 3}, plain, TypeError, "no option batchsize. It has"),
        ({"own_lease": 3}, plain, TypeError, "own_lease"),
        ({"lease": "soon"}, plain, ValueError, "lease must be a time in seconds"),
        ({"completion": "x"}, plain, TypeError, "completion must be"),
        ({"serial_by": "contry"}, plain, ValueError, "'contry' is none"),
        ({"serial_by": "url", "completion": "clear"}, plain, ValueError, "completion 'clear'"),
        ({"serial_by": "url", "order_by": ["?"]}, plain, ValueError, "an order that stays"),
        ({"queryset": Photo.objects.all()[:3]}, plain, TypeError, "through a slice"),
    ],
)
def test_what_cannot_work_is_refused_and_named(
    options: dict[str, Any], function: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        handler(Photo, **options)(function)
    assert handler_for(Photo) is None


@pytest.mark.promise(14)
@pytest.mark.parametrize("model", ["testapp.Photo", Photo(), ClaimMixin, Effect, plain])
def test_what_is_no_claimable_model_is_refused(model: Any) -> None:
    with pytest.raises((TypeError, ImproperlyConfigured), match=r"model|abstract|claim columns"):
        handler(model)(plain)


def test_a_handler_in_models_is_told_where_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django loads ``models.py`` before all models are there."""
    monkeypatch.setattr(apps, "models_ready", False)
    with pytest.raises(AppRegistryNotReady, match=r"Put the handler into the app's claims\.py"):
        handler(Photo)(plain)


def test_a_second_handler_is_refused() -> None:
    handler(Photo)(functools.partial(plain))
    with pytest.raises(ImproperlyConfigured, match="another_coroutine is a second one"):
        handler(Photo)(functools.partial(another_coroutine))


def test_the_queryset_of_a_handler_needs_no_verbs() -> None:
    make(Photo)
    handler(Photo, queryset=QuerySet(Photo))(plain)
    assert run_due(Photo).completed == 1


def wrapped(function: Callable[..., Any]) -> Any:
    """Decorate *function* as somebody does who does not think of coroutines."""

    @functools.wraps(function)
    def wrapper(given: Any) -> Any:
        Effect.objects.create()
        return function(given)

    return wrapper


async def another_coroutine(photo: Photo) -> Any:
    return coroutine(photo)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("options", "function"),
    [
        ({}, wrapped(coroutine)),
        ({}, wrapped(generator)),
        ({}, another_coroutine),
        ({"batch": True}, wrapped(async_generator)),
        ({"atomic": True}, wrapped(coroutine)),
    ],
)
def test_a_coroutine_that_nobody_ran_is_a_failure(options: dict[str, Any], function: Any) -> None:
    """The row is not complete, and an atomic handler has written nothing."""
    (row,) = make(Photo)
    handler(Photo, max_attempts=1, **options)(function)
    assert run_due(Photo).failed == 1
    row.refresh_from_db()
    assert row.status == "failed"
    assert "so its work was not done" in row.last_error
    if "atomic" in options:
        assert not Effect.objects.exists()
