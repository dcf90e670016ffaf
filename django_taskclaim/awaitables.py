"""Async twins of plain methods; functions that are async, and work that a plain one returned without running it."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async

S = TypeVar("S")
R = TypeVar("R")
P = ParamSpec("P")


def async_twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Return the coroutine method ``a<name>`` that runs *method*, or what a subclass has for it, in Django's thread."""
    name = method.__name__

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = await sync_to_async(getattr(self, name))(*args, **kwargs)
        return answer

    twin.__module__, twin.__name__ = method.__module__, f"a{name}"
    twin.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.a{name}"
    twin.__doc__ = f"``{name}`` for async code."
    vars(twin)["__signature__"] = inspect.signature(method)
    # The plain function that Django's manager makes of a queryset's method keeps the mark.
    return markcoroutinefunction(twin)


def is_coroutine_function(function: Callable[..., object]) -> bool:
    """Say whether to call *function* makes a coroutine: also a partial, a method, an object with ``async __call__``.

    A plain function that wraps an ``async def`` is none: it may run that itself, so only its answer tells.
    """
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def name_of(function: Callable[..., object]) -> str:
    """Return the dotted name of *function*; of a partial that of its function, of an object that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def refuse_not_run(
    answer: object, function: Callable[..., object], *, may_yield: bool = False
) -> None:
    """Raise TypeError where *answer*, what *function* returned, is work that nobody has run."""
    is_unread = inspect.isasyncgen(answer) or (inspect.isgenerator(answer) and not may_yield)
    if not is_unread and not inspect.isawaitable(answer):
        return
    if inspect.iscoroutine(answer) or inspect.isgenerator(answer):
        # Python would complain, later and elsewhere, that a coroutine was never awaited.
        answer.close()
    raise TypeError(
        f"{name_of(function)} returned a {type(answer).__name__} that nobody has run, so its work was not done. Declare"
        " it, or its decorator's wrapper, as async def, and await the work there; or do the work before it returns."
    )
