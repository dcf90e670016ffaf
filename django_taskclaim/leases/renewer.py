"""The one thread of a process that renews the named leases held in it, on connections of its own.

It lives while something is held, and then closes what it opened. Safety does not depend on it: a lease that it does
not renew, because it hangs or has died, turns ``lost`` by the clock.
"""

import logging
import os
import random
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import connections

from django_taskclaim.claim import clock
from django_taskclaim.connecting import (
    close_all,
    drop_broken,
    ensure_usable,
    guard_connections,
    use_own_connection,
)
from django_taskclaim.policy import RENEWALS_PER_LEASE

if TYPE_CHECKING:
    from django_taskclaim.leases.named import HeldLease

#: Longest pause in seconds before a renewal that failed is tried again; it is shorter for short leases.
AGAIN = 1.0
#: After so long the server may end a transaction of this thread that is idle.
IDLE = timedelta(minutes=2)


class Renewer:
    """One for each process, for any number of leases, threads and databases."""

    def __init__(self) -> None:
        self.process = os.getpid()
        #: When each lease is renewed next, by ``clock()``.
        self._due: dict[HeldLease, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, held: "HeldLease") -> None:
        """Renew *held* until ``drop``; RuntimeError where no thread can be started."""
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="taskclaim-leases", daemon=True)
                thread.start()
                self._thread = thread
            self._due[held] = _next(held)
            self._changed.notify_all()

    def drop(self, held: "HeldLease") -> None:
        """Renew it no more."""
        with self._changed:
            self._due.pop(held, None)
            self._changed.notify_all()

    # The thread

    def _run(self) -> None:
        guard_connections(IDLE, ours_alone=True)
        try:
            while (held := self._next_due()) is not None:
                self._renew(held)
        finally:
            close_all()

    def _next_due(self) -> "HeldLease | None":
        """Wait for the next renewal; None when nothing is held any more, and the thread must end."""
        with self._changed:
            while self._due:
                held = min(self._due, key=self._due.__getitem__)
                if (rest := self._due[held] - clock()) <= 0:
                    return held
                self._changed.wait(rest)
            self._thread = None
            return None

    def _renew(self, held: "HeldLease") -> None:
        """Try to renew one lease. The others depend on this thread, so no error may end it."""
        failure = ""
        try:
            if not held.lost:
                _connect(held.using)
                held.renew_here()
        except Exception as error:
            failure = f"could not be renewed, {type(error).__name__}: {error}"
            drop_broken(held.using)
        with self._changed:
            if held.lost:
                self._due.pop(held, None)
            if held in self._due:
                self._due[held] = _again(held) if failure else _next(held)
        if failure and not held.has_trouble:
            held.log(logging.WARNING, "trouble", failure)
        held.has_trouble = bool(failure)


def _connect(using: str) -> None:
    """Have a usable connection of the calling thread's own, outside Django's pool."""
    if using not in {connection.alias for connection in connections.all(initialized_only=True)}:
        use_own_connection(using)
    ensure_usable(using)


def _next(held: "HeldLease") -> float:
    """Return when the lease is renewed next: a quarter of it after the last time, with jitter."""
    quarter = held.lease.total_seconds() / RENEWALS_PER_LEASE
    return held.renewed_at + quarter * random.uniform(0.75, 1.0)


def _again(held: "HeldLease") -> float:
    return clock() + min(AGAIN, held.lease.total_seconds() / 20) * random.uniform(0.5, 1.0)


_renewer = Renewer()


def renewer() -> Renewer:
    """Return the renewer of this process. A fork has none of its parent's threads, so it gets a new one."""
    global _renewer
    if _renewer.process != os.getpid():
        _renewer = Renewer()
    return _renewer
