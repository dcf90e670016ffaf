"""``Retriable``: any object, with contention retried in each of its public methods."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from asgiref.sync import iscoroutinefunction
from django.utils.functional import cached_property as django_cached_property

from django_taskclaim.contention.retry import (
    ContentionRetry,
    RetryOptions,
    is_generator_function,
)

T = TypeVar("T")

if TYPE_CHECKING:

    def Retriable(target: T, retries: int | None = None, **options: Unpack[RetryOptions]) -> T:
        """To a type checker the proxy is its target: every method keeps its signature."""
else:

    class Retriable:
        """Stand in for ``target``, retrying contention in each of its public methods, sync and async.

        All else is the target's: attributes (read, set and deleted), properties, private and dunder names,
        the class that ``isinstance`` sees, and length, iteration, items, calls and ``with`` where it has
        them. A method that returns the target, ``__enter__`` included, returns the proxy. Generators pass
        through unretried, for what they have yielded cannot be taken back.

        The options are those of ``retry_on_contention``, but a method manages its own transactions unless
        ``atomic=True`` is asked for, since the target may be anything. Without ``using``, a transaction open
        on any alias keeps errors of Django's from being retried; errors of other libraries always are.
        """

        __slots__ = ("__weakref__", "_retriable_policy", "_retriable_target")

        def __new__(
            cls, target: Any, retries: int | None = None, **options: Unpack[RetryOptions]
        ) -> Any:
            """Return a proxy that has the special methods its target has."""
            policy = ContentionRetry(retries=retries, **{"atomic": False, **options})
            return _stand_in(target, policy)

        def __getattribute__(self, name: str) -> Any:
            if name in {"__reduce__", "__reduce_ex__"}:
                return object.__getattribute__(self, name)
            target, policy = _parts(self)
            value = getattr(target, name)
            if name.startswith("_") or not _is_method(target, name, value):
                return value
            return _retried(self, target, policy, value)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(_parts(self)[0], name, value)

        def __delattr__(self, name: str) -> None:
            delattr(_parts(self)[0], name)

        def __repr__(self) -> str:
            return f"Retriable({_parts(self)[0]!r})"

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _stand_in, _parts(self)


# Python looks these up on the class, and their mere presence changes what it does (truth falls back on length),
# so a proxy has those that its target has and no others.
_FORWARDED = (
    *("__str__", "__bool__", "__eq__", "__hash__", "__dir__", "__call__", "__await__"),
    *("__len__", "__iter__", "__next__", "__reversed__", "__contains__"),
    *("__getitem__", "__setitem__", "__delitem__", "__enter__", "__exit__"),
    *("__aiter__", "__anext__", "__aenter__", "__aexit__"),
)
_LAZY_ATTRIBUTES = (property, functools.cached_property, django_cached_property)


def _stand_in(target: Any, policy: ContentionRetry) -> Any:
    kind: Any = type(target)
    proxy: Any = object.__new__(_proxy_class(kind))
    object.__setattr__(proxy, "_retriable_target", target)
    object.__setattr__(proxy, "_retriable_policy", policy)
    return proxy


def _parts(proxy: Any) -> tuple[Any, ContentionRetry]:
    return (
        object.__getattribute__(proxy, "_retriable_target"),
        object.__getattribute__(proxy, "_retriable_policy"),
    )


@functools.lru_cache(maxsize=256)
def _proxy_class(kind: type) -> type:
    # None is how a class says that it has not got the method, as __hash__ beside __eq__.
    special = {name: _forward(name) for name in _FORWARDED if getattr(kind, name, None) is not None}
    return type("Retriable", (cast("type", Retriable),), {"__slots__": (), **special})


def _forward(name: str) -> Callable[..., Any]:
    def forwarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        target, _ = _parts(self)
        result = getattr(type(target), name)(target, *args, **kwargs)
        return (_abehind if name == "__aenter__" else _behind)(self, target, result)

    return forwarded


def _behind(proxy: Any, target: Any, result: Any) -> Any:
    """Hand out the proxy where the target hands out itself, or its next method would not be retried."""
    return proxy if result is target else result


async def _abehind(proxy: Any, target: Any, result: Awaitable[Any]) -> Any:
    return _behind(proxy, target, await result)


def _is_method(target: Any, name: str, value: Any) -> bool:
    if isinstance(inspect.getattr_static(type(target), name, None), _LAZY_ATTRIBUTES):
        return False
    routine = inspect.isroutine(value) or isinstance(value, functools.partial)
    return routine and callable(value) and not is_generator_function(value)


def _retried(proxy: Any, target: Any, policy: ContentionRetry, method: Any) -> Any:
    @functools.wraps(method)
    def retried(*args: Any, **kwargs: Any) -> Any:
        return _behind(proxy, target, policy.call(method, *args, **kwargs))

    @functools.wraps(method)
    async def aretried(*args: Any, **kwargs: Any) -> Any:
        return _behind(proxy, target, await policy.acall(method, *args, **kwargs))

    return aretried if iscoroutinefunction(method) else retried
