"""A proxy retries the public methods of any object and is its target in all else."""

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_taskclaim.contention import Retriable
from django_taskclaim.exceptions import RetriesExhausted
from tests.contention.conftest import Deadlock, failing


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
    def callback(self) -> Callable[[], str]:
        return self.answer

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
    assert (len(proxy), bool(proxy), bool(Retriable(object()))) == (0, False, True)
    assert (proxy.__doc__, proxy.save.__name__, proxy.save.__doc__) == ("Docs.", "save", "Save it.")
    assert set(dir(gateway)) == set(dir(proxy))
    assert proxy.callback is gateway.callback
    assert inspect.isgeneratorfunction(proxy.pages)
    assert inspect.signature(proxy.save) == inspect.signature(gateway.save)
    with pytest.raises(TypeError):
        iter(proxy)  # type: ignore[call-overload]


def test_the_proxy_is_handed_on_where_the_target_returns_itself() -> None:
    assert Retriable(Gateway(fails=1), wait=0).itself().save() == "done"
    gateway = Gateway(fails=1)
    with Retriable(gateway, wait=0) as entered:
        assert gateway.opened
        assert entered.save() == "done"
    assert not gateway.opened


def test_a_copy_of_the_proxy_retries() -> None:
    class Plain:
        def __init__(self) -> None:
            self.failures = 1

        def save(self) -> int:
            self.failures -= 1
            if self.failures >= 0:
                raise Deadlock
            return self.failures

    assert copy.deepcopy(Retriable(Plain(), wait=0)).save() == -1
