"""The one thread of a process that renews the named leases held in it, on connections of its own.

It lives while something is held, and then closes what it opened. Safety does not depend on it: a lease that it does
not renew, because it hangs or has died, turns ``lost`` by the clock.
"""

import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import connections

from django_taskclaim.claim import clock
from django_taskclaim.connecting import (
    close_all,
    ensure_usable,
    guard_connections,
    use_own_connection,
)

if TYPE_CHECKING:
    from django_taskclaim.leases.named import HeldLease

#: Why a forked process holds no lease.
FORKED = "it belongs to the process that this one was forked from"

#: After so long the server may end a transaction of this thread that is idle.
IDLE = timedelta(minutes=2)


class Renewer:
    """One for each process, for any number of leases, threads and databases."""

    def __init__(self) -> None:
        self._held: set[HeldLease] = set()
        self.begin()

    def begin(self) -> None:
        """Begin with nothing: also in a forked process, which has no thread of its parent's and none of its leases."""
        for held in self._held:
            held.gone = FORKED
        self._held = set()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def keep(self, held: "HeldLease") -> None:
        """Renew *held* until ``drop``; RuntimeError where no thread can be started."""
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="taskclaim-leases", daemon=True)
                thread.start()
                self._thread = thread
            self._held.add(held)
            self._changed.notify_all()

    def drop(self, held: "HeldLease") -> None:
        """Renew it no more."""
        with self._changed:
            self._held.discard(held)
            self._changed.notify_all()

    def _run(self) -> None:
        guard_connections(IDLE, ours_alone=True)
        try:
            while (held := self._next_due()) is not None:
                held.renew_in_background()
        finally:
            close_all()

    def _next_due(self) -> "HeldLease | None":
        """Wait for the next renewal; None when nothing is held any more, and the thread must end."""
        with self._changed:
            while self._held:
                held = min(self._held, key=lambda one: one.renew_at)
                rest = held.renew_at - clock()
                if held.lost:
                    self._held.discard(held)
                elif rest <= 0:
                    return held
                else:
                    self._changed.wait(rest)
            self._thread = None
            return None


def connect(using: str) -> None:
    """Have a usable connection of the calling thread's own, outside Django's pool."""
    if using not in {connection.alias for connection in connections.all(initialized_only=True)}:
        use_own_connection(using)
    ensure_usable(using)


#: The renewer of this process.
RENEWER = Renewer()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RENEWER.begin)
