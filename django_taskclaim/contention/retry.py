"""``retry_on_contention``: repeat a transaction that lost against others, and nothing else."""

import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

import tenacity
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.dispatch import Signal

from django_taskclaim import conf
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
    #: What waits. A worker passes the ``wait`` of its stop event; for coroutines it is a coroutine function.
    sleep: Callable[[float], Any] | None = None

    def __post_init__(self) -> None:
        if self.retries is not None and self.retries < 0:
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

        @functools.wraps(function)
        def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.call(function, *args, **kwargs)

        @functools.wraps(function)
        async def aretried(*args: Any, **kwargs: Any) -> Any:
            return await self.acall(cast("Any", function), *args, **kwargs)

        if not iscoroutinefunction(function):
            return retried
        self._refuse_atomic(function)
        return cast("Callable[P, R]", aretried)

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what ``function`` returns, retrying contention, that of its COMMIT included."""

        def once() -> R:
            with self._try():
                return function(*args, **kwargs)

        return self._retrying()(once)

    def after(self, error: Exception, began: float, function: Callable[[], R]) -> R:
        """Return what further tries of *function* return, after a first one that raised *error*.

        For frequent calls: setting up the retries costs as much as a small statement. *began* is when the first try
        did, by ``time.monotonic()``. What is not to be retried is raised again.
        """
        errors = [self._judged(error)]
        if errors[0] is error:
            raise error

        def once() -> R:
            if errors:
                raise errors.pop()
            with self._try():
                return function()

        def before(state: tenacity.RetryCallState) -> None:
            state.start_time = began

        return self._retrying(before=before)(once)

    async def acall(
        self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return what the coroutine function returns, retrying contention; only with ``atomic=False``."""
        self._refuse_atomic(function)

        async def once() -> R:
            try:
                return await function(*args, **kwargs)
            except Exception as error:
                # Django's async methods run their SQL in this thread, and connections belong to threads.
                judged = await sync_to_async(self._judged)(error)
                if judged is error:
                    raise
                raise judged from error

        rules = self._rules() | {"before_sleep": sync_to_async(self._send)}
        if self.sleep is not None:
            rules["sleep"] = self.sleep
        return cast("R", await tenacity.AsyncRetrying(**rules)(once))

    def __iter__(self) -> Iterator[AbstractContextManager[None]]:
        """Yield attempts until one succeeds: ``for attempt in …: with attempt: …``."""
        for manager in self._retrying():
            yield self._attempt(manager.retry_state)
            if manager.retry_state.outcome is None:
                # Without this error the loop would never end.
                raise RuntimeError(
                    "A loop over retry_on_contention() must enter its attempt: with attempt: ..."
                )

    @contextmanager
    def _attempt(self, state: tenacity.RetryCallState) -> Iterator[None]:
        """Run one try of the loop form; contention in the block is swallowed and leads to the next try."""
        # All else ends the loop, also an error that is caught inside it.
        state.set_result(None)
        block_ended = False
        try:
            with ExitStack() as stack:
                # A block cannot be skipped, so SQLite's BEGIN IMMEDIATE is retried by itself.
                self._retrying()(lambda: stack.enter_context(self._try()))
                yield
                block_ended = True
        except _Contended as contended:
            if block_ended:
                # If this were swallowed, a `return` in the block would look like a success.
                contended.error.add_note(
                    "The loop form cannot repeat a failed COMMIT; decorate a function instead."
                )
                raise contended.error from contended.error.__cause__
            state.set_exception((type(contended), contended, contended.__traceback__))

    def _refuse_atomic(self, function: Callable[..., Any]) -> None:
        if self.atomic:
            raise TypeError(
                f"{function!r} is a coroutine function and cannot hold a transaction: "
                "pass atomic=False."
            )

    def _retrying(self, **more: Any) -> tenacity.Retrying:
        sleep = self.sleep or time.sleep
        return tenacity.Retrying(**self._rules(), sleep=sleep, before_sleep=self._send, **more)

    def _rules(self) -> dict[str, Any]:
        first, longest = _seconds(self.wait), _seconds(self.max_wait)
        retries = int(conf.setting("RETRIES")) if self.retries is None else self.retries
        return {
            "stop": tenacity.stop_after_attempt(retries + 1),
            "wait": tenacity.wait_random_exponential(multiplier=first, max=longest),
            "retry": tenacity.retry_if_exception_type(_Contended),
            "retry_error_callback": _raise_exhausted,
        }

    @contextmanager
    def _try(self) -> Iterator[None]:
        """Raise ``_Contended`` for what may be repeated, and let every other error pass as it is."""
        committed: list[bool] = []
        try:
            with self._transaction(committed) if self.atomic else nullcontext():
                yield
        except Exception as error:
            judged = error if committed else self._judged(error)
            if judged is error:
                raise
            raise judged from error

    @contextmanager
    def _transaction(self, committed: list[bool]) -> Iterator[None]:
        using = self.using or DEFAULT_DB_ALIAS
        is_outermost = not _in_transaction(connections[using])
        with transaction.atomic(using):
            if is_outermost:
                # The first hook of all. A later one can raise contention out of atomic(), too, but then the
                # transaction has committed, and repeating it would double its effects.
                transaction.on_commit(lambda: committed.append(True), using)
            yield

    def _judged(self, error: Exception) -> Exception:
        """Return *error*, or ``_Contended`` if it may be repeated.

        Contention inside a caller's transaction may not: each open one that may have lost effects must roll back.
        """
        code = contention_code(error)
        if code is None:
            return error
        hit = [connection for connection in self._suspects(error) if _in_transaction(connection)]
        for connection in hit:
            if connection.in_atomic_block:
                connection.set_rollback(True)
                # Django names it as the cause when it refuses the next query of the block.
                connection.rollback_exc = error  # type: ignore[attr-defined]
        return error if hit else _Contended(error, code)

    def _suspects(self, error: Exception) -> list[BaseDatabaseWrapper]:
        if self.atomic or self.using is not None:
            return [connections[self.using or DEFAULT_DB_ALIAS]]
        if not isinstance(error, Error):
            return []  # Another library's error comes from another library's transaction.
        return list(connections.all(initialized_only=True))

    def _send(self, state: tenacity.RetryCallState) -> None:
        """Log the retry that is about to be waited for, and send the signal."""
        contended = _contended(state)
        facts = {
            "code": contended.code,
            "attempt": state.attempt_number,
            "elapsed": state.seconds_since_start,
            "wait": state.upcoming_sleep,
            "using": self.using,
        }
        logger.warning(
            "Try %(attempt)d met contention (database code %(code)s) after %(elapsed).3f s, "
            "trying again in %(wait).3f s: %(error)s",
            {**facts, "error": contended.error},
            extra=facts,
        )
        contention_retried.send_robust(sender=ContentionRetry, **facts)


@overload
def retry_on_contention(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def retry_on_contention(
    *, retries: int | None = None, **options: Unpack[RetryOptions]
) -> ContentionRetry: ...
def retry_on_contention(
    function: Callable[..., Any] | None = None,
    /,
    *,
    retries: int | None = None,
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


def _seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    # get_autocommit() would connect, and what is not connected has no transaction open.
    connected = connection.connection is not None
    autocommit = connection.autocommit if connected else connection.settings_dict["AUTOCOMMIT"]
    return connection.in_atomic_block or not autocommit


def _contended(state: tenacity.RetryCallState) -> _Contended:
    assert state.outcome is not None
    return cast("_Contended", state.outcome.exception())


def _raise_exhausted(state: tenacity.RetryCallState) -> None:
    contended = _contended(state)
    elapsed = state.seconds_since_start or 0.0
    raise RetriesExhausted(state.attempt_number, elapsed, contended.code) from contended.error
