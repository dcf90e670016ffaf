"""``@handler`` refuses in one sentence what could not work, and knows what kind of function it was given."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db.models import F

from django_taskclaim import handler
from django_taskclaim.handlers import Handler, handler_for, unregister
from django_taskclaim.worker.inflight import units_of
from django_taskclaim.worker.outcomes import of_answer
from tests.factories import claimed
from tests.testapp.models import Photo


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
