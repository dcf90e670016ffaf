"""What the options do, and which are refused."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_taskclaim.contention import contention_retried, retry_on_contention
from tests.contention.conftest import failing


def test_waits_grow_to_their_limit_and_are_drawn_from_nothing_up() -> None:
    rounds = []
    for _ in range(200):
        waits: list[float] = []
        options = {"wait": timedelta(milliseconds=100), "max_wait": 0.5, "sleep": waits.append}
        retry_on_contention(retries=4, atomic=False, **options).call(failing(4))  # type: ignore[arg-type]
        rounds.append(waits)
    for drawn, limit in zip(zip(*rounds, strict=True), [0.1, 0.2, 0.4, 0.5], strict=True):
        assert 0 <= min(drawn) < limit / 4
        assert limit * 3 / 4 < max(drawn) <= limit


def test_a_receiver_that_raises_stops_no_retry(caplog: pytest.LogCaptureFixture) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("the breaker is broken")

    contention_retried.connect(broken)
    try:
        assert retry_on_contention(atomic=False, wait=0).call(failing(1)) == "done"
    finally:
        contention_retried.disconnect(broken)
    assert "the breaker is broken" in caplog.text


@pytest.mark.parametrize("options", [{"retries": -1}, {"wait": -1}, {"wait": 2, "max_wait": 1}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        retry_on_contention(**options)


def test_what_cannot_be_repeated_is_refused() -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="atomic=False"):
        retry_on_contention(coroutine)
    with pytest.raises(TypeError, match="generator"):
        retry_on_contention(generator)


def test_an_error_caught_inside_the_loop_ends_it() -> None:
    numbers = []
    for attempt in retry_on_contention(atomic=False):
        try:
            with attempt:
                numbers.append(attempt.number)
                raise KeyError("other")
        except KeyError:
            continue
    assert numbers == [1]


def test_a_loop_that_enters_no_attempt_is_refused() -> None:
    with pytest.raises(RuntimeError, match="with attempt"):
        list(retry_on_contention(atomic=False))
