"""``retry_on_contention``: repeat a transaction that lost against others, and nothing else."""

import functools
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast, overload

import tenacity
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.dispatch import Signal

from django_taskclaim.contention.codes import Code, contention_code
from django_taskclaim.exceptions import RetriesExhausted

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("django_taskclaim.contention")

#: Sent before each wait for another try, with ``code``, ``attempt`` (the try that failed, from 1), ``elapsed``
#: and ``wait`` (seconds) and ``using``. So a circuit breaker hears of contention that no caller ever sees.
#: A receiver that raises is logged and stops nothing.
contention_retried = Signal()


class RetryOptions(TypedDict, total=False):
    """The fields of ``ContentionRetry``, without the number of retries, as keyword arguments."""

    wait: float | timedelta
    max_wait: float | timedelta
    using: str | None
    atomic: bool
    savepoint: bool
    sleep: Callable[[float], Any] | None


class _Contended(Exception):
    """Tells tenacity that a try met contention and may be repeated; it never leaves this module."""

    def __init__(self, error: Exception, code: Code) -> None:
        super().__init__(error, code)
        self.error, self.code = error, code


@dataclass(frozen=True, kw_only=True)
class ContentionRetry:
    """How contention is retried: made by ``retry_on_contention(...)``, which says what to rely on.

    It keeps nothing between calls, so one serves any number of threads, coroutines and nested calls.
    """

    #: Tries after the first.
    retries: int = 2
    #: Longest wait before the first retry, in seconds or as a timedelta; it doubles with each retry. The wait
    #: itself lies anywhere between nothing and that (full jitter), so that those who met do not meet again.
    wait: float | timedelta = 0.05
    #: Where the doubling ends.
    max_wait: float | timedelta = 1.0
    #: The database alias. None is the default one, or, with ``atomic=False``, any that has a transaction open.
    using: str | None = None
    #: Whether each try gets a transaction. False is for code that manages its own, and for coroutines.
    atomic: bool = True
    #: Whether a try inside the caller's transaction gets a savepoint, as with Django's ``atomic``. False joins
    #: the transaction as it is and saves two round trips.
    savepoint: bool = True
    #: What waits. A worker passes the ``wait`` of its stop event; for coroutines it is a coroutine function.
    sleep: Callable[[float], Any] | None = None

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries must be 0 or more, not {self.retries!r}.")
        if not 0 <= _seconds(self.wait) <= _seconds(self.max_wait):
            raise ValueError(
                f"wait must lie between 0 and max_wait ({self.max_wait!r}), not {self.wait!r}."
            )

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Return ``function`` wrapped so that each call of it is retried."""
        if is_generator_function(function):
            raise TypeError(
                f"{function!r} is a generator function: what it has yielded cannot be taken back."
            )
        if iscoroutinefunction(function):
            self._refuse_atomic(function)
            return cast("Callable[P, R]", self._retried_coroutine(function))
        return self._retried(function)

    def _retried(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.call(function, *args, **kwargs)

        return retried

    def _retried_coroutine(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @functools.wraps(function)
        async def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            return await self.acall(function, *args, **kwargs)

        return retried

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what ``function`` returns, retrying contention, that of its COMMIT included."""

        def once() -> R:
            with self._try():
                return function(*args, **kwargs)

        began = time.monotonic()
        try:
            return once()
        except _Contended as contended:
            first = contended
        # Most calls meet none, and setting up the machine costs as much as a small statement.
        return self._machine(began)(_raising_first(first, once))

    def after(self, error: Exception, began: float, function: Callable[[], R]) -> R:
        """Return what further tries of *function* return, after a first one that raised *error*.

        For whoever calls so often that only a failure is worth more than a bare call; TypeError unless
        ``atomic=False``. *began* is when the first try did, by ``time.monotonic()``. What is not to be retried is
        raised again.
        """
        if self.atomic:
            raise TypeError(
                "after() is for tries that manage their own transactions: atomic=False."
            )
        code = contention_code(error)
        if code is None or self._hits_the_caller(error):
            raise error

        def once() -> R:
            with self._try():
                return function()

        return self._machine(began)(_raising_first(_Contended(error, code), once))

    async def acall(
        self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return what the coroutine function returns, retrying contention; only with ``atomic=False``."""
        self._refuse_atomic(function)

        async def once() -> R:
            async with self._atry():
                return await function(*args, **kwargs)

        rules = self._rules() | {"before_sleep": functools.partial(_atell, self.using)}
        if self.sleep is not None:
            rules["sleep"] = self.sleep
        return cast("R", await tenacity.AsyncRetrying(**rules)(once))

    def __iter__(self) -> Iterator["Attempt"]:
        """Yield attempts until one succeeds: ``for attempt in …: with attempt: …``."""
        managers = iter(self._machine())
        for manager in managers:
            yield Attempt(self._try, manager, managers)
            if manager.retry_state.outcome is None:
                # Left unsaid, the loop would never end.
                raise RuntimeError(
                    "A loop over retry_on_contention() must enter its attempt: with attempt: ..."
                )

    def _machine(self, began: float | None = None) -> tenacity.Retrying:
        """Return what repeats; *began* says when a first try was made without it."""

        def before(state: tenacity.RetryCallState) -> None:
            if began is not None:
                state.start_time = began

        tell = functools.partial(_tell, self.using)
        return tenacity.Retrying(
            **self._rules(), sleep=self.sleep or time.sleep, before=before, before_sleep=tell
        )

    def _rules(self) -> dict[str, Any]:
        first, longest = _seconds(self.wait), _seconds(self.max_wait)
        return {
            "stop": tenacity.stop_after_attempt(self.retries + 1),
            "wait": tenacity.wait_random_exponential(multiplier=first, max=longest),
            "retry": tenacity.retry_if_exception_type(_Contended),
            "retry_error_callback": _give_up,
        }

    def _refuse_atomic(self, function: Callable[..., Any]) -> None:
        if self.atomic:
            raise TypeError(
                f"{function!r} is a coroutine function and cannot hold a transaction: "
                "pass atomic=False."
            )

    def _try(self) -> AbstractContextManager[None]:
        """Raise ``_Contended`` for what may be repeated, and let every other error pass as it is."""
        if not self.atomic:
            return self._bare()
        connection = connections[self.using or DEFAULT_DB_ALIAS]
        if _in_transaction(connection):
            return self._joined(connection)
        return self._opened(connection.alias)

    @contextmanager
    def _opened(self, using: str) -> Iterator[None]:
        """Run the try in the outermost transaction."""
        committed: list[bool] = []
        try:
            with transaction.atomic(using):
                # The first hook of all. Those after it can raise contention out of atomic(), too, but then
                # the transaction has committed, and repeating it would double its effects.
                transaction.on_commit(lambda: committed.append(True), using)
                yield
        except Exception as error:
            code = contention_code(error)
            if code is None or committed:
                raise
            raise _Contended(error, code) from error

    @contextmanager
    def _joined(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """Run the try in the caller's transaction: contention is the caller's to repeat."""
        try:
            with transaction.atomic(connection.alias) if self.savepoint else nullcontext():
                yield
        except Exception as error:
            if contention_code(error) is not None:
                _mark_for_rollback(connection, error)
            raise

    @contextmanager
    def _bare(self) -> Iterator[None]:
        """Run a try that manages its own transactions."""
        try:
            yield
        except Exception as error:
            code = contention_code(error)
            if code is None or self._hits_the_caller(error):
                raise
            raise _Contended(error, code) from error

    @asynccontextmanager
    async def _atry(self) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            code = contention_code(error)
            # Asked in the thread in which Django's async methods run their SQL: connections belong to threads.
            if code is None or await sync_to_async(self._hits_the_caller)(error):
                raise
            raise _Contended(error, code) from error

    def _hits_the_caller(self, error: Exception) -> bool:
        """Mark for rollback each open transaction that may have lost effects, and tell if there was one."""
        hit = [connection for connection in self._suspects(error) if _in_transaction(connection)]
        for connection in hit:
            _mark_for_rollback(connection, error)
        return bool(hit)

    def _suspects(self, error: Exception) -> list[BaseDatabaseWrapper]:
        if self.using is not None:
            return [connections[self.using]]
        if not isinstance(error, Error):
            return []  # Another library's error comes from another library's transaction.
        return list(connections.all(initialized_only=True))


class Attempt:
    """One try of the loop form: swallows contention while another try may follow."""

    def __init__(
        self,
        new_try: Callable[[], AbstractContextManager[None]],
        manager: tenacity.AttemptManager,
        managers: Iterator[tenacity.AttemptManager],
    ) -> None:
        self._new_try, self._manager, self._managers = new_try, manager, managers

    @property
    def number(self) -> int:
        """Which try this is, from 1."""
        return self._manager.retry_state.attempt_number

    def __enter__(self) -> Self:
        while True:
            self._block = self._new_try()
            try:
                self._block.__enter__()
            except _Contended as contended:
                # SQLite's BEGIN IMMEDIATE. The body cannot be skipped, so the next try begins right here.
                self._record(contended)
                next(self._managers)
            else:
                return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        contended = None
        try:
            self._block.__exit__(kind, error, traceback)
        except _Contended as caught:
            contended = caught
        finally:
            # Every other error leaves the loop, or ends it when it is caught inside.
            self._manager.__exit__(None, None, None)
        if contended is None:
            return False
        if error is None:
            # The COMMIT failed. Were that swallowed, a `return` in the block would pass for a success.
            contended.error.add_note(
                "The loop form cannot repeat a failed COMMIT; decorate a function instead."
            )
            raise contended.error
        self._record(contended)
        return True

    def _record(self, contended: _Contended) -> None:
        self._manager.__exit__(type(contended), contended, contended.__traceback__)


@overload
def retry_on_contention(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def retry_on_contention(
    *, retries: int = 2, **options: Unpack[RetryOptions]
) -> ContentionRetry: ...
def retry_on_contention(
    function: Callable[..., Any] | None = None,
    /,
    *,
    retries: int = 2,
    **options: Unpack[RetryOptions],
) -> Any:
    """Repeat a whole transaction that lost against others.

    As a decorator, with or without options::

        @retry_on_contention(using="orders")
        def transfer(source, target, amount): ...

    or, since a ``with`` block cannot run twice, as a loop around one::

        for attempt in retry_on_contention():
            with attempt:
                ...

    Each try is a transaction of its own. One that ends by a lock timeout, a deadlock or a serialization
    failure is repeated up to ``retries`` times, each after a growing random wait; then ``RetriesExhausted``
    tells ``attempts``, ``elapsed`` and ``code``, with the last error as its cause. Every other error passes
    untouched, and so does one of an ``on_commit`` hook, for by then the transaction has committed. What a
    try did outside of its transaction is done again. Each retry is logged as a WARNING and sends
    ``contention_retried``.

    Inside a transaction of the caller's nothing is retried: the database's error passes, and that
    transaction is marked for rollback. ``TestCase`` is such a transaction. So is switched-off autocommit,
    where Django has no mark and the caller must roll back.

    ``atomic=False`` opens no transaction: what is called manages its own and must bear being repeated. Only
    so can ``async def`` be decorated. The loop form passes a failed COMMIT on, a decorated function repeats
    it. Every option is described at ``ContentionRetry``.
    """
    policy = ContentionRetry(retries=retries, **options)
    return policy if function is None else policy(function)


def is_generator_function(function: Callable[..., Any]) -> bool:
    """Tell whether calling ``function`` only prepares the work, so that no retry could cover it."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _raising_first(first: _Contended, again: Callable[[], R]) -> Callable[[], R]:
    """Return a function whose first call ends as a try that was made before has ended."""
    pending = [first]

    def once() -> R:
        if pending:
            raise pending.pop()
        return again()

    return once


def _seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    # get_autocommit() would connect, and what is not connected has no transaction open.
    connected = connection.connection is not None
    autocommit = connection.autocommit if connected else connection.settings_dict["AUTOCOMMIT"]
    return connection.in_atomic_block or not autocommit


def _mark_for_rollback(connection: BaseDatabaseWrapper, error: Exception) -> None:
    if connection.in_atomic_block:
        connection.set_rollback(True)
        # Django names it as the cause when it refuses the next query of the block.
        connection.rollback_exc = error  # type: ignore[attr-defined]


def _contended(state: tenacity.RetryCallState) -> _Contended:
    assert state.outcome is not None
    return cast("_Contended", state.outcome.exception())


def _log(using: str | None, state: tenacity.RetryCallState) -> dict[str, Any]:
    """Log the retry that is about to be waited for, and return its facts."""
    contended = _contended(state)
    facts = {
        "code": contended.code,
        "attempt": state.attempt_number,
        "elapsed": state.seconds_since_start,
        "wait": state.upcoming_sleep,
        "using": using,
    }
    logger.warning(
        "Try %(attempt)d met contention (database code %(code)s) after %(elapsed).3f s, "
        "trying again in %(wait).3f s: %(error)s",
        {**facts, "error": contended.error},
        extra=facts,
    )
    return facts


def _tell(using: str | None, state: tenacity.RetryCallState) -> None:
    contention_retried.send_robust(sender=ContentionRetry, **_log(using, state))


async def _atell(using: str | None, state: tenacity.RetryCallState) -> None:
    await contention_retried.asend_robust(sender=ContentionRetry, **_log(using, state))


def _give_up(state: tenacity.RetryCallState) -> None:
    contended = _contended(state)
    elapsed = state.seconds_since_start or 0.0
    raise RetriesExhausted(state.attempt_number, elapsed, contended.code) from contended.error
