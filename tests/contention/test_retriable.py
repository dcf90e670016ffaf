"""The options of a retry, and the proxy that retries the public methods of any object."""

import asyncio
import functools
import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_taskclaim.contention import Retriable, contention_retried, retry_on_contention
from django_taskclaim.exceptions import RetriesExhausted
from tests.contention.conftest import Deadlock, failing

pytestmark = pytest.mark.once


def test_waits_grow_to_their_limit_with_full_jitter() -> None:
    rounds = []
    for _ in range(100):
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


def test_impossible_options_and_functions_are_refused() -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    for options in ({"retries": -1}, {"wait": -1}, {"wait": 2, "max_wait": 1}):
        with pytest.raises(ValueError, match="must"):
            retry_on_contention(**options)
    with pytest.raises(TypeError, match="atomic=False"):
        retry_on_contention(coroutine)
    with pytest.raises(TypeError, match="generator"):
        retry_on_contention(generator)
    with pytest.raises(RuntimeError, match="with attempt"):
        list(retry_on_contention(atomic=False))


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


# The proxy


class Gateway:
    """Docs."""

    def __init__(self, fails: int = 0) -> None:
        self.answer = failing(fails)
        self.limit = 3
        self.opened = False

    def save(self, suffix: str = "") -> str:
        """Save it."""
        return self.answer() + suffix

    async def asave(self) -> str:
        return self.answer()

    @functools.cached_property
    def lazy(self) -> str:
        return self.answer()

    @property
    def current(self) -> str:
        return self.answer()

    def _private(self) -> str:
        return self.answer()

    def itself(self) -> "Gateway":
        self.answer()
        return self

    def pages(self) -> Iterator[str]:
        yield self.answer()

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> "Gateway":
        self.opened = True
        return self

    def __exit__(self, *_: object) -> None:
        self.opened = False


def test_every_public_method_is_retried(retried: list[dict[str, Any]]) -> None:
    assert Retriable(Gateway(fails=2), wait=0).save(suffix="!") == "done!"
    assert asyncio.run(Retriable(Gateway(fails=2), wait=0).asave()) == "done"
    assert len(retried) == 4
    with pytest.raises(RetriesExhausted):
        Retriable(Gateway(fails=3), wait=0).save()
    with pytest.raises(RetriesExhausted):
        asyncio.run(Retriable(Gateway(fails=1), retries=0).asave())


@pytest.mark.parametrize("read", ["_private", "pages", "current", "lazy"])
def test_what_is_no_public_method_is_not_retried(read: str, retried: list[dict[str, Any]]) -> None:
    proxy = Retriable(Gateway(fails=1))

    def use() -> None:
        value = getattr(proxy, read)
        if callable(value):
            list(value())

    with pytest.raises(Deadlock):
        use()
    assert retried == []


def test_the_proxy_looks_like_its_target() -> None:
    gateway = Gateway()
    proxy = Retriable(gateway)
    proxy.limit = 4
    assert (proxy.limit, gateway.limit) == (4, 4)
    del proxy.limit
    assert not hasattr(gateway, "limit")
    assert isinstance(proxy, Gateway)
    assert proxy == gateway
    assert (len(proxy), bool(proxy)) == (0, False)
    assert (proxy.__doc__, proxy.save.__name__, proxy.save.__doc__) == ("Docs.", "save", "Save it.")
    assert inspect.signature(proxy.save) == inspect.signature(gateway.save)


def test_the_proxy_is_handed_on_where_the_target_returns_itself() -> None:
    assert Retriable(Gateway(fails=1), wait=0).itself().save() == "done"
    gateway = Gateway(fails=1)
    with Retriable(gateway, wait=0) as entered:
        assert gateway.opened
        assert entered.save() == "done"
    assert not gateway.opened
