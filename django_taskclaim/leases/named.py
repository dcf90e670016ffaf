"""``named_lease``: a block that runs while this process holds a lease."""

import asyncio
import logging
import os
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self, TypeVar

from asgiref.sync import sync_to_async
from django.db import Error, connections, router

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.connecting import ensure_usable
from django_taskclaim.contention import retry_on_contention
from django_taskclaim.exceptions import ClaimLost, LeaseUnavailable, TaskClaimError
from django_taskclaim.leases.renewer import Renewer, renewer
from django_taskclaim.leases.rows import LeaseRows
from django_taskclaim.policy import SELF_FENCE
from django_taskclaim.querysets.claiming import new_holder
from django_taskclaim.querysets.transactions import belongs_to_the_caller
from django_taskclaim.states import Token
from django_taskclaim.tables import NamedLease

R = TypeVar("R")

logger = logging.getLogger("django_taskclaim.leases")

#: Seconds between two tries of a caller that waits: the first and the longest pause, with jitter.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

#: What every database can store.
NAME = re.compile("[^\x00\ud800-\udfff]{1,200}")


def named_lease(
    name: str,
    *,
    lease: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    using: str | None = None,
) -> "HeldLease":
    """Run a block while this process holds the lease *name*, and nobody else on any host does.

    ``with named_lease("nightly-report", lease=60) as held: …``, or ``async with``. The lease is committed before the
    block begins and renewed in the background while it runs. So it may be much shorter than the block: it says how
    long a holder that died keeps others out. ``None`` is the setting LEASE.

    Where somebody else holds the name, the same thread included, ``LeaseUnavailable`` names the holder and the
    expiry: at once, or after having tried for *wait* (seconds or a timedelta). Raises RuntimeError inside a
    transaction, and where no thread can be started that would renew.

    A lease that could not be renewed, or was taken over, turns ``held.lost`` to True. Leaving its block then raises
    ``ClaimLost``, unless another exception is on its way already. ValueError for a name that does not fit: 1 to 200
    characters, compared byte for byte.
    """
    return HeldLease(
        _checked_name(name),
        lease=None if lease is None else conf.positive_duration(lease, "lease"),
        wait=conf.positive_duration(wait, "wait") if wait else timedelta(),
        using=using,
    )


class LeaseLost(ClaimLost):
    """The ``ClaimLost`` of a named lease: ``name`` and ``token`` say which hold is gone."""

    def __init__(self, name: str, token: Token, reason: str) -> None:
        super().__init__([name], reason=reason)
        self.name, self.token = name, token

    def __str__(self) -> str:
        return f"Lease {self.name!r} (token {self.token}) is not held here: {self.reason}."

    def __reduce__(self) -> Any:
        return LeaseLost, (self.name, self.token, self.reason)


class HeldLease:
    """One hold of a named lease, entered once with ``with`` or ``async with``. Any thread may use it in the block."""

    #: Names this hold for ever. Its ``iteration`` grows with each hold, for a system that can refuse a late holder.
    token: Token

    def __init__(
        self, name: str, *, lease: timedelta | None, wait: timedelta, using: str | None
    ) -> None:
        self.name = name
        self.lease = lease or conf.duration("LEASE")
        self.using = using or router.db_for_write(NamedLease)
        #: By ``clock()``, the moment before the statement that began or last extended the lease.
        self.renewed_at = 0.0
        #: Whether the last renewal failed.
        self.has_trouble = False
        self._wait = wait
        self._waits_until: float | None = None
        self._pause = FIRST_PAUSE / 2
        self._renewer: Renewer | None = None
        self._gone = ""
        self._ending = False
        self._process = os.getpid()

    @property
    def lost(self) -> bool:
        """Whether this process knows or must assume that the lease is gone; cheap, asks no database.

        Once True it stays so. It turns True at 90 % of a lease that could not be renewed, while others still wait.
        """
        if not self._gone and os.getpid() != self._process:
            self._gone = "it belongs to the process that this one was forked from"
        elif not self._gone and clock() >= self._lasts_until(SELF_FENCE):
            self._lose("it could not be renewed in time")
        return bool(self._gone)

    def remaining(self) -> timedelta:
        """Return how long the lease lasts by this process's own clock if it is not renewed; nothing once lost."""
        return timedelta(seconds=0 if self.lost else max(0.0, self._lasts_until(1) - clock()))

    def check(self) -> bool:
        """Ask the database whether the lease is still held: True, or ClaimLost."""
        self._refuse_lost()
        if not LeaseRows.on(self.using).standing(self.name, self.token).exists():
            self._lose("another holder has taken it over")
        self._refuse_lost()
        return True

    async def acheck(self) -> bool:
        """``check`` for async code."""
        return await sync_to_async(self.check)()

    def renew_here(self) -> None:
        """Renew on the calling thread's connection; the lease is lost if somebody else holds it by now."""
        began = clock()
        if LeaseRows.on(self.using).renew(self.name, self.token, self.lease):
            self.renewed_at = began
        elif not self._ending:
            # Otherwise the end of the block was faster and has given it back.
            self._lose("another holder has taken it over")

    # The block

    def __enter__(self) -> Self:
        self._begin_once()
        while (refusal := self._take()) is not None:
            time.sleep(self._pause_after(refusal))
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end(error)

    async def __aenter__(self) -> Self:
        self._begin_once()
        try:
            while (refusal := await sync_to_async(self._take)()) is not None:
                await asyncio.sleep(self._pause_after(refusal))
        except asyncio.CancelledError:
            # The thread of a cancelled task goes on, and would take a lease for nobody.
            await _shielded(self._abandon)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await _shielded(lambda: self._end(error))

    def _begin_once(self) -> None:
        if self._waits_until is not None:
            raise RuntimeError(
                f"The lease {self.name!r} is entered a second time; call named_lease() for each block."
            )
        self._waits_until = clock() + self._wait.total_seconds()

    def _pause_after(self, refusal: LeaseUnavailable) -> float:
        """Return the seconds until the next try; raises *refusal* when the caller has waited long enough."""
        rest = (self._waits_until or 0.0) - clock()
        if rest <= 0:
            raise refusal
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return min(self._pause * random.uniform(0.5, 1.0), rest)

    def _take(self) -> LeaseUnavailable | None:
        """Take the lease and have it renewed; return the refusal where somebody else holds it."""
        connection = connections[self.using]
        if belongs_to_the_caller(connection):
            raise RuntimeError(
                "named_lease() must commit before its block begins, but a transaction is open here (atomic(),"
                " ATOMIC_REQUESTS, or autocommit switched off): others would not see the lease, and would take it too"
                " once you commit. Take it outside and open the transaction inside its block."
            )
        retry = retry_on_contention(using=self.using, atomic=False)
        try:
            taken = retry.call(LeaseRows.on(self.using).take, self.name, new_holder(), self.lease)
        except LeaseUnavailable as refusal:
            return refusal
        self.token, self.renewed_at = taken
        # What TestCase's transaction holds no other connection sees, so nothing could renew it.
        if not connection.in_atomic_block:
            self._have_renewed()
        self.log(logging.INFO, "taken")
        return None

    def _have_renewed(self) -> None:
        self._renewer = renewer()
        try:
            self._renewer.keep(self)
        except RuntimeError as error:
            self._abandon()
            raise RuntimeError(
                f"named_lease() renews in a thread, and none can be started here ({error}). A server may need an"
                " option for that; code that runs while the interpreter ends cannot take a lease."
            ) from error

    def _abandon(self) -> None:
        """Give back what was taken for a block that will not run."""
        if hasattr(self, "token"):
            with suppress(ClaimLost):
                self._end(None)

    def _end(self, error: BaseException | None) -> None:
        """End the hold. A loss is raised, or noted on the *error* that is on its way already."""
        self._ending, was_lost = True, self.lost
        if os.getpid() == self._process:
            if self._renewer is not None:
                self._renewer.drop(self)
            was_lost = not self._give_back() or was_lost
        loss = LeaseLost(self.name, self.token, self._gone)
        self._gone = self._gone or "its block has ended"
        if not was_lost:
            return
        if error is None:
            raise loss
        error.add_note(str(loss))

    def _give_back(self) -> bool:
        """Return False if another holder has the lease by now."""
        try:
            # The server may have ended the session while the block ran.
            ensure_usable(self.using)
            retry = retry_on_contention(using=self.using, atomic=False)
            if not retry.call(LeaseRows.on(self.using).give_back, self.name, self.token):
                self._lose("another holder has taken it over")
                return False
        except (Error, TaskClaimError) as error:
            self.log(logging.WARNING, "trouble", f"not given back, it ends by itself: {error}")
        else:
            self.log(logging.INFO, "released")
        return True

    # What it knows of itself

    def _lasts_until(self, share: float) -> float:
        return self.renewed_at + self.lease.total_seconds() * share

    def _lose(self, reason: str) -> None:
        """Note that the lease is gone; only the first reason counts."""
        if not self._gone:
            self._gone = reason
            self.log(logging.WARNING, "lost", reason)

    def _refuse_lost(self) -> None:
        if self.lost:
            raise LeaseLost(self.name, self.token, self._gone)

    def log(self, level: int, event: str, reason: str = "") -> None:
        """Write a log record about this hold."""
        because = f": {reason}" if reason else ""
        facts = {"event": event, "lease": self.name, **self.token._asdict(), "reason": reason}
        logger.log(level, "lease %r %s%s", self.name, event, because, extra=facts)


async def _shielded(function: Callable[[], R]) -> R:
    """Call *function* where Django's connections are; it ends also when the task is cancelled meanwhile."""
    return await asyncio.shield(asyncio.ensure_future(sync_to_async(function)()))


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"A lease is named by a text of 1 to 200 characters, not {name!r:.300}.")
    return name
