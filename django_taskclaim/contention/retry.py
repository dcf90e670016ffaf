"""``retry_on_contention`` and ``Retriable``: repeat a transaction that lost against others, and nothing else."""

import asyncio
import functools
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.dispatch import Signal

from django_taskclaim import conf
from django_taskclaim.contention.codes import LOCK_TIMEOUTS, contention_code
from django_taskclaim.exceptions import RetriesExhausted

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("django_taskclaim.contention")

#: Sent before each wait for another try, with ``code``, ``attempt`` (the try that failed, from 1), ``elapsed``
#: and ``wait`` (seconds) and ``using``. So a circuit breaker hears of contention that no caller ever sees.
#: A receiver that raises is logged and stops nothing.
contention_retried = Signal()


class RetryOptions(TypedDict, total=False):
    """The fields of ``ContentionRetry`` as keyword arguments."""

    retries: int | None
    wait: float | timedelta
    max_wait: float | timedelta
    using: str | None
    atomic: bool
    lock_timeouts: bool
    sleep: Callable[[float], object]


@dataclass(frozen=True, kw_only=True)
class ContentionRetry:
    """How contention is retried: made by ``retry_on_contention(...)``, which says what to rely on.

    It keeps nothing between calls, so one serves any number of threads, coroutines and nested calls.
    """

    #: Tries after the first; None is the setting RETRIES, which is 2.
    retries: int | None = None
    #: Longest wait before the first retry, in seconds or as a timedelta; it doubles with each retry. The wait
    #: itself lies anywhere between nothing and that (full jitter), so that those who met do not meet again.
    wait: float | timedelta = 0.05
    #: Where the doubling ends.
    max_wait: float | timedelta = 1.0
    #: The database alias. None is the default one, or, with ``atomic=False``, any that has a transaction open.
    using: str | None = None
    #: Whether each try gets a transaction. False is for code that manages its own, and for coroutines.
    atomic: bool = True
    #: False passes a lock timeout on at once, to a caller who can go around the lock.
    lock_timeouts: bool = True
    #: What waits, unless a coroutine is retried.
    sleep: Callable[[float], object] = time.sleep

    def __post_init__(self) -> None:
        if self.retries is not None and self.retries < 0:
            raise ValueError(f"retries must be 0 or more, not {self.retries!r}.")
        if not 0 <= _seconds(self.wait) <= _seconds(self.max_wait):
            raise ValueError(
                f"wait must lie between 0 and max_wait ({self.max_wait!r}), not {self.wait!r}."
            )

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Return ``function`` wrapped so that each call of it is retried."""
        if _is_generator_function(function):
            raise TypeError(
                f"{function!r} is a generator function: what it has yielded cannot be taken back."
            )
        if iscoroutinefunction(function):
            return cast("Callable[P, R]", self._wrap_coroutine(function))

        @functools.wraps(function)
        def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.call(function, *args, **kwargs)

        return retried

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what ``function`` returns, retrying contention, that of its COMMIT included."""
        attempt, began = 1, time.monotonic()
        while True:
            committed: list[bool] = []
            try:
                with self._transaction(committed) if self.atomic else nullcontext():
                    return function(*args, **kwargs)
            except Exception as error:
                pause = None if committed else self._pause_after(error, attempt, began)
                if pause is None:
                    raise
            self.sleep(pause)
            attempt += 1

    def _wrap_coroutine(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        if self.atomic:
            raise TypeError(
                f"{function!r} is a coroutine function and cannot hold a transaction: pass atomic=False."
            )

        @functools.wraps(function)
        async def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            attempt, began = 1, time.monotonic()
            while True:
                try:
                    return await function(*args, **kwargs)
                except Exception as error:
                    # Django's async methods run their SQL in this thread, and connections belong to threads.
                    pause = await sync_to_async(self._pause_after)(error, attempt, began)
                    if pause is None:
                        raise
                await asyncio.sleep(pause)
                attempt += 1

        return retried

    @contextmanager
    def _transaction(self, committed: list[bool]) -> Iterator[None]:
        """Open the transaction of one try; *committed* is filled once it has committed."""
        using = self.using or DEFAULT_DB_ALIAS
        is_outermost = not _in_transaction(connections[using])
        with transaction.atomic(using):
            if is_outermost:
                # The first hook of all. A later one can raise contention out of atomic(), too, but then the
                # transaction has committed, and repeating it would double its effects.
                transaction.on_commit(lambda: committed.append(True), using)
            yield

    def _pause_after(self, error: Exception, attempt: int, began: float) -> float | None:
        """Report the next try and return the seconds until it; None if *error* must pass.

        RetriesExhausted after the last try. Contention inside a caller's transaction passes: each open one that may
        have lost effects must roll back.
        """
        code = contention_code(error)
        if code is None or (code in LOCK_TIMEOUTS and not self.lock_timeouts):
            return None
        hit = [connection for connection in self._suspects(error) if _in_transaction(connection)]
        for connection in hit:
            if connection.in_atomic_block:
                connection.set_rollback(True)
                # Django names it as the cause when it refuses the next query of the block.
                vars(connection)["rollback_exc"] = error
        if hit:
            return None
        elapsed = time.monotonic() - began
        retries = int(conf.setting("RETRIES")) if self.retries is None else self.retries
        if attempt > retries:
            raise RetriesExhausted(attempt, elapsed, code) from error
        # Bounded, for the power grows without an end.
        longest = min(_seconds(self.wait) * 2 ** min(attempt - 1, 60), _seconds(self.max_wait))
        pause = random.uniform(0, longest)
        facts: dict[str, object]
        facts = {"code": code, "attempt": attempt, "elapsed": elapsed, "wait": pause}
        facts["using"] = self.using
        logger.warning(
            "Try %d met contention (database code %s) after %.3f s, trying again in %.3f s: %s",
            *(attempt, code, elapsed, pause, error),
            extra=facts,
        )
        contention_retried.send_robust(sender=ContentionRetry, **facts)
        return pause

    def _suspects(self, error: Exception) -> list[BaseDatabaseWrapper]:
        """Return the connections that *error* may have come from."""
        if self.atomic or self.using is not None:
            return [connections[self.using or DEFAULT_DB_ALIAS]]
        if not isinstance(error, Error):
            return []  # Another library's error comes from another library's transaction.
        return list(connections.all(initialized_only=True))


@overload
def retry_on_contention(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def retry_on_contention(**options: Unpack[RetryOptions]) -> ContentionRetry: ...
def retry_on_contention(
    function: Callable[P, R] | None = None, /, **options: Unpack[RetryOptions]
) -> Callable[P, R] | ContentionRetry:
    """Repeat a whole transaction that lost against others.

    A decorator, with or without options::

        @retry_on_contention(using="orders")
        def transfer(source, target, amount): ...

    or for one call: ``retry_on_contention().call(transfer, source, target, amount)``.

    Each try is a transaction of its own. One that ends by a lock timeout, a deadlock or a serialization
    failure, at its COMMIT too, is repeated up to ``retries`` times, each after a growing random wait. Then
    ``RetriesExhausted`` has ``attempts``, ``elapsed`` and ``code``, with the last error as its cause. Every other
    error passes untouched. So does one of an ``on_commit`` hook, for by then the transaction has committed. What a
    try did outside of its transaction is done again. Each retry is logged as a WARNING and sends
    ``contention_retried``.

    Inside a transaction of the caller's nothing is retried: the database's error passes, and that
    transaction is marked for rollback. ``TestCase`` is such a transaction. So is switched-off autocommit,
    where Django has no mark and the caller must roll back.

    ``atomic=False`` opens no transaction: what is called manages its own and must bear being repeated. Only
    so can ``async def`` be decorated. Every option is described at ``ContentionRetry``.
    """
    policy = ContentionRetry(**options)
    return policy if function is None else policy(function)


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

        def __init__(self, target: object, **options: Unpack[RetryOptions]) -> None:
            self._target = target
            self._retry = ContentionRetry(**{"atomic": False, **options})

        def __getattr__(self, name: str) -> object:
            if name in {"_target", "_retry"}:
                # Asked while it is copied or unpickled, before it has either.
                raise AttributeError(name)
            value = getattr(self._target, name)
            is_method = inspect.isroutine(value) and not _is_generator_function(value)
            return self._retry(value) if is_method and not name.startswith("_") else value

        def __repr__(self) -> str:
            return f"Retriable({self._target!r})"


def _is_generator_function(function: Callable[..., object]) -> bool:
    """Return whether calling ``function`` only prepares the work, so that no retry could cover it."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    # get_autocommit() would connect, and what is not connected has no transaction open.
    connected = connection.connection is not None
    autocommit = connection.autocommit if connected else connection.settings_dict["AUTOCOMMIT"]
    return connection.in_atomic_block or not autocommit
