"""``Retriable``: any object, with contention retried in each of its public methods."""

import inspect
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from django_taskclaim.contention.retry import (
    ContentionRetry,
    RetryOptions,
    is_generator_function,
)

T = TypeVar("T")

if TYPE_CHECKING:

    def Retriable(target: T, **options: Unpack[RetryOptions]) -> T:
        """To a type checker the proxy is its target: every method keeps its signature."""
else:

    class Retriable:
        """Stand in for ``target``, retrying contention in each of its public methods, sync and async.

        Every other attribute is read from the target as it is. Generators pass through unretried, for what they have
        yielded cannot be taken back.

        The options are those of ``retry_on_contention``, but a method manages its own transactions unless
        ``atomic=True`` is asked for, since the target may be anything. Without ``using``, a transaction open
        on any alias keeps errors of Django's from being retried; errors of other libraries always are.
        """

        def __init__(self, target: Any, **options: Unpack[RetryOptions]) -> None:
            self._target = target
            self._retry = ContentionRetry(**{"atomic": False, **options})

        def __getattr__(self, name: str) -> Any:
            if name in {"_target", "_retry"}:
                # Asked while it is copied or unpickled, before it has either.
                raise AttributeError(name)
            value = getattr(self._target, name)
            is_method = inspect.isroutine(value) and not is_generator_function(value)
            return self._retry(value) if is_method and not name.startswith("_") else value

        def __repr__(self) -> str:
            return f"Retriable({self._target!r})"
