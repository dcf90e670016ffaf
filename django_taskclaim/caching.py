"""What a model is asked for again and again is worked out once."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def memoized(function: F) -> F:
    """Keep each answer of *function*, as ``functools.cache`` does; for type checkers it takes what it took before."""
    return cache(function)  # type: ignore[return-value]  # a wrapper of the same signature
