"""Leases on a name rather than on a row, for any critical section: a lock that a dead holder cannot keep.

The idea is that of a distributed lock whose time to live a background thread extends. The protocol is that of the rows:
a token names each hold for ever and is part of every write, only the database's clock decides, and a process that
cannot renew treats its lease as lost before it ends.
"""

import asyncio
import logging
import os
import random
import re
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Self

from asgiref.sync import sync_to_async
from django.db import Error, IntegrityError, connections, models, router

from django_taskclaim import conf, connecting
from django_taskclaim.awaitables import async_twin
from django_taskclaim.claim import clock, new_holder
from django_taskclaim.contention import retry_on_contention
from django_taskclaim.db import DatabaseLater, DatabaseNow, dialect_for
from django_taskclaim.exceptions import ClaimLost, LeaseUnavailable, TaskClaimError
from django_taskclaim.policy import RENEWALS_PER_LEASE, SELF_FENCE
from django_taskclaim.querysets.scope import refuse_transaction
from django_taskclaim.states import Token
from django_taskclaim.tables import NamedLease

logger = logging.getLogger("django_taskclaim.leases")

#: Seconds between two tries of a caller that waits: the shortest and the longest pause.
PAUSES = 0.1, 0.5

#: Longest pause in seconds before a renewal that failed is tried again; it is shorter for short leases.
AGAIN = 1.0

#: Seconds between two checks of what is due in the renewing thread; they ask no database.
CHECK_EVERY = 0.1

#: What every database can store.
NAME = re.compile("[^\x00\ud800-\udfff]{1,200}")

#: From where the iterations of new names count seconds.
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)

#: Why a lease is gone.
ENDED = "its block has ended"
NOT_RENEWED = "it could not be renewed in time"
TAKEN_OVER = "another holder has taken it over"
FORKED = "it belongs to the process that this one was forked from"

#: After so long the server may end a transaction of the renewing thread that is idle.
IDLE = timedelta(minutes=2)


class named_lease:
    """Run a block while this process holds the lease *name*, and nobody else on any host does.

    ``with named_lease("nightly-report", lease=60) as held: …``, or ``async with``. The lease is committed before the
    block begins and renewed in the background while it runs. So it may be much shorter than the block: it says how
    long a holder that died keeps others out. ``None`` is the setting LEASE.

    ``LeaseUnavailable`` names the holder and the expiry if the name is held, by the same thread too. It is raised at
    once, or after *wait* (seconds or a timedelta). RuntimeError is raised inside a transaction, and if no thread can be
    started to renew the lease. ValueError is raised for a name that is not 1 to 200 characters; names are compared byte
    for byte.

    ``held.lost`` turns True if the lease could not be renewed or was taken over. The end of the block then raises
    ``ClaimLost``, unless the block raises another exception. Any thread may use ``held`` in the block.
    """

    #: Names this hold for ever. Its ``iteration`` grows with each hold, for a system that can refuse a late holder.
    token: Token

    def __init__(
        self,
        name: str,
        *,
        lease: float | timedelta | None = None,
        wait: float | timedelta | None = None,
        using: str | None = None,
    ) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            text = "A lease is named by a text of 1 to 200 characters"
            raise ValueError(f"{text}, not {name!r:.300}.")
        self.name = name
        own_or_usual = conf.setting("LEASE") if lease is None else lease
        self.lease = conf.DURATION.check(own_or_usual, "lease")
        self.using = using or router.db_for_write(NamedLease)
        self._wait = conf.DURATION.check(wait, "wait") if wait else timedelta()
        #: What decides is never read from a replica.
        self._row = NamedLease.objects.using(self.using).filter(name=name)
        self._retry = retry_on_contention(using=self.using, atomic=False)
        #: By ``clock()``: before the statement that began or last extended the lease, and when the next one is due.
        self.renewed_at, self.renew_at = 0.0, 0.0
        #: Whether the last renewal failed.
        self.has_trouble = False
        #: Why the lease is held no more, once that is known.
        self.gone = ""

    @property
    def lost(self) -> bool:
        """Whether this process knows or must assume that the lease is gone; cheap, asks no database.

        Once True it stays so. It turns True at 90 % of a lease that could not be renewed, while others still wait.
        Before the block begins it is False.
        """
        if self.renewed_at and clock() >= self.renewed_at + self.lease.total_seconds() * SELF_FENCE:
            self._lose(NOT_RENEWED)
        return bool(self.gone)

    def check(self) -> bool:
        """Ask the database inside the block whether the lease is still held: True, or ClaimLost."""
        if not self.lost and not self._standing().exists():
            self._lose(TAKEN_OVER)
        if self.lost:
            raise self._loss()
        return True

    acheck = async_twin(check)

    def __enter__(self) -> Self:
        end = clock() + self._wait.total_seconds()
        while (pause := self._try(end)) is not None:
            time.sleep(pause)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end()
        if self.gone == ENDED:
            return
        if error is None:
            raise self._loss()
        error.add_note(str(self._loss()))

    async def __aenter__(self) -> Self:
        end = clock() + self._wait.total_seconds()
        try:
            while (pause := await sync_to_async(self._try)(end)) is not None:
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            # The thread of a cancelled task goes on and may still take the lease.
            await asyncio.shield(asyncio.ensure_future(sync_to_async(self._end)()))
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # Shielded: the lease is given back also when the task is cancelled meanwhile.
        leaving = sync_to_async(self.__exit__)(kind, error, traceback)
        await asyncio.shield(asyncio.ensure_future(leaving))

    def _try(self, end: float) -> float | None:
        """Take the lease, or return the seconds until the next try; LeaseUnavailable at the *end*, by ``clock()``."""
        connection = connections[self.using]
        refuse_transaction(connection, "named_lease() must commit before its block begins")
        try:
            taken = self._retry.call(self._take, new_holder())
        except LeaseUnavailable:
            rest = end - clock()
            if rest <= 0:
                raise
            return min(random.uniform(*PAUSES), rest)
        self.token, self.renewed_at = taken
        self.gone, self.has_trouble = "", False
        self._plan_renewal()
        try:
            # No other connection sees what TestCase's transaction writes, so nothing could renew it.
            if not connection.in_atomic_block:
                RENEWER.keep(self)
        except RuntimeError:
            # No thread can be started to renew it.
            self._end()
            raise
        self._log(logging.INFO, "taken")
        return None

    # Each statement stands outside any transaction. A process that is frozen or cut off between two of them leaves no
    # lock behind, and keeps nobody out for longer than its lease.

    def _take(self, holder: str) -> tuple[Token, float]:
        """Take the lease if it is free; return its token, and ``clock()`` from before the lease began.

        *holder* must be unique. Raises LeaseUnavailable with the holder and the expiry seen.
        """
        while True:
            began = clock()
            self._row.filter(is_free()).update(
                claimed_by=holder,
                claimed_at=DatabaseNow(),
                expires_at=DatabaseLater(self.lease),
                iteration=models.F("iteration") + 1,
            )
            found = self._row.first()
            if found is None:
                # Another process may be faster; the next try decides who of the two gets the lease.
                with suppress(IntegrityError):
                    first = _first_iteration(self.using)
                    self._row.create(name=self.name, claimed_at=DatabaseNow(), iteration=first)
            elif found.claimed_by == holder:
                return Token(holder, found.iteration), began
            elif found.claimed_by is not None:
                raise LeaseUnavailable(self.name, found.claimed_by, found.expires_at)

    def _standing(self) -> models.QuerySet[NamedLease]:
        """Match the name only while this hold is the current one."""
        return self._row.filter(claimed_by=self.token.holder, iteration=self.token.iteration)

    def _end(self) -> None:
        """Give the lease back, if it was taken; a lease that was lost before stays lost."""
        # In a forked process the connection is the parent's as well.
        if not hasattr(self, "token") or self.gone == FORKED:
            return
        was_lost = self.lost
        # From here on, a renewal that finds the lease given back is no loss.
        self.gone = self.gone or ENDED
        RENEWER.drop(self)
        try:
            # The server may have ended the session while the block ran.
            connecting.ensure_usable(self.using)
            if self._retry.call(self._standing().update, claimed_by=None, expires_at=None):
                self._log(logging.INFO, "released")
            elif not was_lost:
                self.gone = ""
                self._lose(TAKEN_OVER)
        except (Error, TaskClaimError) as error:
            self._log(logging.WARNING, "trouble", f"not given back, it ends by itself: {error}")

    def renew_in_background(self) -> None:
        """Renew the lease, in the thread of the renewer. The other leases depend on that, so no error may end it."""
        began, failure = clock(), ""
        try:
            if self.using not in {one.alias for one in connections.all(initialized_only=True)}:
                connecting.use_own_connection(self.using)
            connecting.ensure_usable(self.using)
            if self._standing().update(expires_at=DatabaseLater(self.lease)):
                self.renewed_at = began
            else:
                self._lose(TAKEN_OVER)
        except Exception as error:
            failure = f"could not be renewed, {type(error).__name__}: {error}"
            connecting.drop_broken(self.using)
        if failure and not self.has_trouble:
            self._log(logging.WARNING, "trouble", failure)
        self.has_trouble = bool(failure)
        self._plan_renewal()

    def _plan_renewal(self) -> None:
        """A lease is renewed a quarter of it after the last time, with jitter, and after a failure sooner."""
        seconds = self.lease.total_seconds()
        pause = min(AGAIN, seconds / 20) if self.has_trouble else seconds / RENEWALS_PER_LEASE
        self.renew_at = clock() + pause * random.uniform(0.75, 1.0)

    def _lose(self, reason: str) -> None:
        """Note that the lease is gone; only the first reason counts."""
        if not self.gone:
            self.gone = reason
            self._log(logging.WARNING, "lost", reason)

    def _loss(self) -> ClaimLost:
        return ClaimLost([self.name], reason=f"the lease {self.token} is gone, {self.gone}")

    def _log(self, level: int, event: str, reason: str = "") -> None:
        because = f": {reason}" if reason else ""
        facts = {"event": event, "lease": self.name, **self.token._asdict(), "reason": reason}
        logger.log(level, "lease %r %s%s", self.name, event, because, extra=facts)


class Renewer:
    """The one thread of a process that renews the leases held in it, on connections of its own.

    It lives while something is held, and then closes what it opened. Safety does not depend on it: a lease that it does
    not renew, because it hangs or has died, turns ``lost`` by the clock.
    """

    def __init__(self) -> None:
        self._held: set[named_lease] = set()
        self.begin()

    def begin(self) -> None:
        """Begin without leases; a forked process does so again, because it has no thread and no lease of its parent."""
        for held in self._held:
            held.gone = FORKED
        self._held = set()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def keep(self, held: named_lease) -> None:
        """Renew *held* until ``drop``; RuntimeError where no thread can be started."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                # It comes to its first look once the lock is free.
                self._thread = connecting.start_thread("leases", self._run)
            self._held.add(held)

    def drop(self, held: named_lease) -> None:
        """Renew it no more."""
        with self._lock:
            self._held.discard(held)

    def _run(self) -> None:
        connecting.guard_connections(IDLE, ours_alone=True)
        while kept := self._kept():
            for held in kept:
                if clock() >= held.renew_at and not held.lost:
                    held.renew_in_background()
            time.sleep(CHECK_EVERY)

    def _kept(self) -> list[named_lease]:
        """Return what is held; where that is nothing, this thread must end."""
        with self._lock:
            if not self._held:
                self._thread = None
            return [*self._held]


RENEWER = Renewer()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RENEWER.begin)


# The names that nobody holds


def is_free(since: timedelta = timedelta()) -> models.Q:
    """Match names that nobody holds, or whose lease ended *since* ago."""
    unheld = models.Q(claimed_by=None) | models.Q(expires_at=None)
    return unheld | models.Q(expires_at__lte=DatabaseLater(-since))


def forget(using: str, unused_for: timedelta, limit: int) -> int:
    """Delete up to *limit* names that nobody has held for so long, and return how many.

    A name that changed hands more than once a second stays for now: a new count would begin below its old one.
    """
    unused = NamedLease.objects.using(using).filter(
        is_free(since=unused_for),
        claimed_at__lt=DatabaseLater(-unused_for),
        iteration__lt=_first_iteration(using),
    )
    names = list(unused.values_list("name", flat=True)[:limit])
    # One statement that repeats the condition; delete() would read the rows first where signals are connected.
    return int(unused.filter(name__in=names)._raw_delete(using)) if names else 0


def _first_iteration(using: str) -> int:
    """Return the seconds since 2020 by the database's clock, where a new name begins: above every iteration it had."""
    return int((dialect_for(connections[using]).current_time() - EPOCH).total_seconds())
