"""``named_lease`` and ``@synchronized``: the block that runs while a lease is held."""

import asyncio
import contextlib
import functools
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import connections, router

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.contention.retry import is_generator_function
from django_taskclaim.exceptions import ClaimLost, LeaseUnavailable
from django_taskclaim.leases.held import HeldLease
from django_taskclaim.leases.renewer import renewer
from django_taskclaim.leases.rows import take
from django_taskclaim.querysets.claiming import new_holder
from django_taskclaim.tables import NamedLease

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds between two looks of one who waits: from the first to the longest, with jitter.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


def named_lease(
    name: str,
    *,
    lease: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    using: str | None = None,
) -> "LeaseBlock":
    """Run a block while this process holds the lease *name*, and nobody else on any host does.

    ``with named_lease("nightly-report", lease=60) as held: …``, or ``async with``. The lease is committed before the
    block begins and renewed in the background while it runs, so it may be much shorter than the block: it is how long
    a holder that died keeps others out. ``None`` is the setting LEASE.

    Where somebody else holds the name, the same thread included, ``LeaseUnavailable`` tells who and until when: at
    once, or after having tried for *wait* (seconds or a timedelta). Refuses with RuntimeError to begin inside a
    transaction, and where no thread can be started that would renew.

    A lease that could not be renewed, or was taken over after this process had slept, turns ``held.lost`` to True;
    leaving its block then raises ``ClaimLost``, unless another exception is on its way already. ValueError for a name
    that does not fit: 1 to 200 characters, compared byte for byte.
    """
    return LeaseBlock(
        checked_name(name),
        lease=None if lease is None else conf.positive_duration(lease, "lease"),
        wait=_checked_wait(wait),
        using=using,
    )


def synchronized(
    name: str | Callable[..., str],
    *,
    lease: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    using: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run each call of a function, plain or ``async``, in a ``named_lease``; *name* may be made from its arguments.

    ``@synchronized(lambda report: f"report:{report.pk}", lease=60)``. Where the lease cannot be had the function is
    not called and LeaseUnavailable raised.
    """
    if not callable(name):
        checked_name(name)

    def block(*args: Any, **kwargs: Any) -> LeaseBlock:
        chosen = name(*args, **kwargs) if callable(name) else name
        return named_lease(chosen, lease=lease, wait=wait, using=using)

    # A bad option is told when the module is imported, not when the function is first called.
    named_lease("checked", lease=lease, wait=wait, using=using)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if is_generator_function(function):
            raise TypeError(
                f"{function!r} is a generator function: its work is done after the call, so no lease would cover it."
            )

        @functools.wraps(function)
        def held(*args: P.args, **kwargs: P.kwargs) -> R:
            with block(*args, **kwargs):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def aheld(*args: Any, **kwargs: Any) -> Any:
            async with block(*args, **kwargs):
                return await cast("Any", function)(*args, **kwargs)

        return cast("Callable[P, R]", aheld) if iscoroutinefunction(function) else held

    return decorate


class LeaseBlock:
    """One block under a named lease; entered once, with ``with`` or ``async with``."""

    def __init__(
        self, name: str, *, lease: timedelta | None, wait: timedelta, using: str | None
    ) -> None:
        self.name = name
        self.lease = lease
        self.wait = wait
        self.using = using
        self._entered = False
        self._held: HeldLease | None = None

    def __enter__(self) -> HeldLease:
        self._enter_once()
        pauses = _pauses(clock() + self.wait.total_seconds())
        while True:
            try:
                self._take()
                return self._kept()
            except LeaseUnavailable:
                pause = next(pauses, None)
                if pause is None:
                    raise
                time.sleep(pause)
            except RuntimeError:
                self._give_up()
                raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _leave(self._dropped(), error)

    async def __aenter__(self) -> HeldLease:
        self._enter_once()
        pauses = _pauses(clock() + self.wait.total_seconds())
        while True:
            try:
                await sync_to_async(self._take)()
                return self._kept()
            except LeaseUnavailable:
                pause = next(pauses, None)
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            except (RuntimeError, asyncio.CancelledError):
                # When a task is cancelled its thread goes on, and would take a lease for nobody.
                await _to_its_end(self._give_up)
                raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await _to_its_end(functools.partial(_leave, self._dropped(), error))

    def _enter_once(self) -> None:
        if self._entered:
            raise RuntimeError(
                f"The lease {self.name!r} is entered a second time; call named_lease() for each block."
            )
        self._entered = True

    def _take(self) -> None:
        using = self.using or router.db_for_write(NamedLease)
        lease = self.lease or conf.duration("LEASE")
        token, began = take(self.name, new_holder(), lease, using)
        self._held = HeldLease(self.name, using, token, lease, began=began)
        self._held.provisional = connections[using].in_atomic_block

    def _kept(self) -> HeldLease:
        """Have what was taken renewed from here on; RuntimeError where no thread can do so."""
        assert self._held is not None, "kept after it was taken"
        if not self._held.provisional:
            try:
                renewer().keep(self._held)
            except RuntimeError as error:
                raise RuntimeError(
                    f"named_lease() renews in a thread, and none can be started here ({error}). A server may need an"
                    " option for that; code that runs while the interpreter ends cannot take a lease."
                ) from error
        self._held.begin()
        return self._held

    def _dropped(self) -> HeldLease:
        """Have the lease renewed no more, whatever becomes of the rest."""
        assert self._held is not None, "left after it was entered"
        if self._held.renewer is not None and not self._held.is_foreign():
            self._held.renewer.drop(self._held)
        return self._held

    def _give_up(self) -> None:
        """Give back what was taken for a block that will not run."""
        if self._held is not None:
            with contextlib.suppress(ClaimLost):
                self._held.end()


def _pauses(end: float) -> Iterator[float]:
    """Yield the seconds to wait before each further look, until ``clock()`` has reached *end*."""
    longest = FIRST_PAUSE
    while (rest := end - clock()) > 0:
        yield min(longest * random.uniform(0.5, 1.0), rest)
        longest = min(longest * 2, LONGEST_PAUSE)


def _leave(held: HeldLease, error: BaseException | None) -> None:
    """End the hold; a loss is raised, or noted on the exception that is on its way already."""
    try:
        held.end()
    except ClaimLost as lost:
        if error is None:
            raise
        error.add_note(str(lost))


async def _to_its_end(function: Callable[[], R]) -> R:
    """Call *function* where Django's connections are, to its end also when the task is cancelled meanwhile."""
    return await asyncio.shield(asyncio.ensure_future(sync_to_async(function)()))


def checked_name(name: str) -> str:
    """Return the name of a lease; ValueError with one sentence where it is none."""
    try:
        fits = 0 < len(name) <= 200 and "\x00" not in name
        name.encode()
    except (TypeError, AttributeError, UnicodeEncodeError):
        fits = False
    if not fits:
        raise ValueError(f"A lease is named by a text of 1 to 200 characters, not {name!r:.300}.")
    return name


def _checked_wait(wait: float | timedelta | None) -> timedelta:
    """Return how long to wait; ValueError with one sentence for less than nothing."""
    if wait is None or wait in (0, timedelta()):
        return timedelta()
    return conf.positive_duration(wait, "wait")
