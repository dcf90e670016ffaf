"""The options of a retry, and the proxy that retries the public methods of any object."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from django_taskclaim.contention import Retriable, contention_retried, retry_on_contention
from django_taskclaim.exceptions import RetriesExhausted
from tests.contention.conftest import Deadlock, failing
from tests.meanwhile import connected

pytestmark = pytest.mark.once


def test_waits_are_drawn_below_a_limit_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    retry_on_contention(retries=6, atomic=False).call(failing(6))
    assert len(set(waits)) == 6
    limits = [0.05, 0.1, 0.2, 0.4, 0.8, 1]
    assert all(0 <= wait <= limit for wait, limit in zip(waits, limits, strict=True))


def test_a_receiver_that_raises_stops_no_retry(caplog: pytest.LogCaptureFixture) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("the breaker is broken")

    with connected(contention_retried, broken):
        assert retry_on_contention(atomic=False).call(failing(1)) == "done"
    assert "the breaker is broken" in caplog.text


def test_functions_that_do_nothing_yet_are_refused() -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    for function in (coroutine, generator):
        with pytest.raises(TypeError):
            retry_on_contention()(function)
        assert Retriable(SimpleNamespace(method=function)).method is function
    with pytest.raises(ValueError, match="retries must be a whole number from 0 on"):
        retry_on_contention(retries=-1)


# The proxy


class Gateway:
    """Somebody's object: its answer fails so many times."""

    def __init__(self, fails: int = 0) -> None:
        self.answer = failing(fails)

    def save(self, suffix: str = "") -> str:
        return self.answer() + suffix

    @property
    def current(self) -> str:
        return self.answer()

    def _private(self) -> str:
        return self.answer()


def test_every_public_method_is_retried() -> None:
    assert Retriable(Gateway(fails=2)).save(suffix="!") == "done!"
    with pytest.raises(RetriesExhausted):
        Retriable(Gateway(fails=3)).save()


def test_what_is_no_public_method_is_not_retried() -> None:
    proxy = Retriable(Gateway(fails=2))
    with pytest.raises(Deadlock):
        proxy._private()
    with pytest.raises(Deadlock):
        _ = proxy.current
