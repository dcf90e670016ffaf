"""``@handler`` refuses in one sentence what could not work, and knows what kind of function it was given."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db.models import F

from django_taskclaim import handler
from django_taskclaim.handlers import Handler, handler_for, unregister
from django_taskclaim.policy import Policy, set_policy
from django_taskclaim.testing import run_due
from django_taskclaim.worker.inflight import units_of
from django_taskclaim.worker.outcomes import of_answer
from tests.factories import claimed, make
from tests.testapp.models import Effect, Photo


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


@pytest.mark.parametrize(
    ("options", "function", "said"),
    [
        ({"atomic": True}, coroutine, "coroutine cannot be atomic"),
        ({}, generator, "it is a generator"),
        ({"batch": True}, async_generator, "is an async generator"),
        ({"concurrency": 3}, plain, "is no coroutine function"),
        ({}, no_row, "no_row must take one row"),
        ({"batch": True}, no_row, "no_row must take a list of rows"),
    ],
)
def test_a_function_that_cannot_serve_is_refused(
    options: dict[str, Any], function: Any, said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        handler(Photo, **options)(function)
    assert handler_for(Photo) is None


@pytest.mark.parametrize("order", ["url", None, 5, F("url")])
def test_an_order_must_be_a_list(order: Any) -> None:
    with pytest.raises(TypeError, match="order_by is a list"):
        handler(Photo, order_by=order)


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"batch_size": 0}, {"max_attempts": 0}, {"order_by": ["no_such_column"]}],
)
def test_a_value_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        handler(Photo, **options)


def test_a_second_handler_is_refused() -> None:
    handler(Photo)(plain)
    with pytest.raises(ImproperlyConfigured, match="a second one"):
        handler(Photo, batch=True)(generator)


def test_what_is_yielded_is_part_of_the_call() -> None:
    """A generator has run to its end when the call returns, so it runs inside an atomic handler's transaction."""
    handler(Photo, batch=True)(generator)
    found = handler_for(Photo)
    assert found is not None
    rows = [Photo(pk=1), Photo(pk=2)]
    assert found.call(rows) == rows


def test_a_batch_is_one_unit_and_rows_are_one_each() -> None:
    handler(Photo, batch=True)(generator)
    found = handler_for(Photo)
    assert found is not None
    rows = [claimed(Photo(pk=1)), claimed(Photo(pk=2))]
    assert [len(unit.tasks) for unit in units_of(found, rows)] == [2]
    assert units_of(found, []) == []


def test_an_outcome_may_be_named_by_row_key_or_instance() -> None:
    """Another instance of the same row will do; what names no row of the batch is passed over."""
    first, second, third = (Photo(pk=number) for number in (1, 2, 3))
    error = ValueError("no")
    assert of_answer([first, second, third], {Photo(pk=1): None, 2: error, 3: None, 9: None}) == [
        None,
        error,
        None,
    ]
    assert of_answer([first, second, third], [1, (second, error), third]) == [None, error, None]


@pytest.mark.parametrize("answer", [7, "1", True, object()])
def test_an_answer_that_is_none_is_a_type_error(answer: Any) -> None:
    with pytest.raises(TypeError, match="returns None, a mapping or an iterable"):
        of_answer([Photo(pk=1)], answer)


def test_a_callable_that_compares_by_value_is_a_handler_like_any_other() -> None:
    class Measure:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Measure)

        __hash__ = None  # type: ignore[assignment]

        def __call__(self, row: Any) -> None:
            """Nothing."""

    assert not Handler(Photo, Measure()).is_async


class Asynchronous:
    async def __call__(self, photo: Photo) -> None: ...

    async def method(self, photo: Photo) -> None: ...


@pytest.mark.parametrize(
    "function",
    [Asynchronous(), Asynchronous().method, functools.partial(coroutine)],
    ids=["object", "method", "partial"],
)
def test_a_coroutine_function_is_known_in_every_form(function: Any) -> None:
    handler(Photo, concurrency=3)(function)
    found = handler_for(Photo)
    assert found is not None
    assert found.is_async
    assert found.name.startswith("tests.test_handlers.")
    with pytest.raises(TypeError, match="cannot be atomic"):
        handler(Photo, atomic=True)(function)
    with pytest.raises(TypeError, match="cannot be a coroutine function"):
        handler(Photo, completion=function)


def wrapped(function: Callable[..., Any]) -> Any:
    """Decorate *function* as somebody does who does not think of coroutines."""

    @functools.wraps(function)
    def wrapper(given: Any) -> Any:
        Effect.objects.create()
        return function(given)

    return wrapper


async def another_coroutine(photo: Photo) -> Any:
    return coroutine(photo)


def future(photo: Photo) -> Any:
    class Future:
        def __await__(self) -> Any:
            yield

    return Future()


@pytest.mark.django_db
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("options", "function"),
    [
        ({}, wrapped(coroutine)),
        ({}, wrapped(generator)),
        ({}, wrapped(async_generator)),
        ({}, future),
        ({}, another_coroutine),
        ({"atomic": True}, wrapped(coroutine)),
        ({"batch": True}, wrapped(coroutine)),
        ({"batch": True}, wrapped(future)),
        ({"batch": True, "atomic": True}, wrapped(async_generator)),
        ({"completion": wrapped(coroutine)}, plain),
    ],
)
def test_work_that_nobody_has_run_is_not_done(options: dict[str, Any], function: Any) -> None:
    (row,) = make(Photo)
    handler(Photo, max_attempts=1, **options)(function)
    assert run_due(Photo).failed == 1
    row.refresh_from_db()
    assert row.status == "failed"
    assert "so its work was not done" in row.last_error
    if "atomic" in options or "completion" in options:
        assert not Effect.objects.exists()


@pytest.mark.django_db
def test_the_same_goes_for_a_method_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = make(Photo)
    monkeypatch.setattr(Photo, "process", wrapped(coroutine), raising=False)
    set_policy(Photo, Policy(own_max_attempts=1))
    assert run_due(Photo).failed == 1
    row.refresh_from_db()
    assert "coroutine returned an awaitable that nobody has awaited" in row.last_error
