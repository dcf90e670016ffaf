"""The one thread of a process that renews the named leases held in it, on connections of its own.

It lives while something is held, and closes what it opened. Nothing depends on it for safety: a lease that it does
not renew, because it hangs or has died, turns ``lost`` by the clock.
"""

import logging
import os
import random
import threading
from datetime import timedelta

from django.db import connections

from django_taskclaim.claim import clock
from django_taskclaim.connecting import (
    drop_broken,
    ensure_usable,
    guard_connections,
    use_own_connection,
)
from django_taskclaim.leases.held import HeldLease
from django_taskclaim.policy import RENEWALS_PER_LEASE

logger = logging.getLogger("django_taskclaim.leases")

#: Seconds after which a renewal that failed is tried again; sooner for leases that are short.
AGAIN = 1.0
#: After so long the server may end a session of ours that is idle.
IDLE = timedelta(minutes=2)
#: Seconds that one renewal may take before the thread counts as stuck; more than the timeouts of its connections.
STUCK = 15.0


class Renewer:
    """One for each process, for any number of leases, threads and databases."""

    def __init__(self) -> None:
        self._due: dict[HeldLease, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        #: When renewals that failed began, and when the one under way did.
        self._failed: dict[HeldLease, float] = {}
        self._busy_since = float("inf")

    def keep(self, held: HeldLease) -> None:
        """Renew *held* until ``drop``; RuntimeError where no thread can be started."""
        with self._changed:
            self._start()
            self._due[held] = _next(held)
            held.renewer = self
            self._changed.notify_all()

    def drop(self, held: HeldLease) -> None:
        """Renew it no more."""
        with self._changed:
            self._due.pop(held, None)
            self._failed.pop(held, None)
            self._changed.notify_all()

    def renew_now(self, held: HeldLease) -> bool:
        """Renew at once and say whether that was possible; a loss is noted on *held*."""
        asked = clock()
        with self._changed:
            if held in self._due:
                self._due[held] = asked
            self._changed.notify_all()
            while not held.lost and held in self._due and held.renewed < asked:
                if self._failed.get(held, 0.0) >= asked:
                    return False
                # Until the lease counts as lost, at most: the thread may hang in a statement.
                self._changed.wait(min(1.0, held.remaining().total_seconds() + 0.01))
        return held.renewed >= asked

    def _start(self) -> None:
        if self._thread is None or self._is_stuck():
            thread = threading.Thread(target=self._run, name="taskclaim-leases", daemon=True)
            thread.start()
            self._thread, self._busy_since = thread, float("inf")

    def _is_stuck(self) -> bool:
        """Say whether a server that neither answers nor goes away holds the thread up: other leases get a new one."""
        assert self._thread is not None, "asked of a thread that was started"
        return clock() - self._busy_since > STUCK or not self._thread.is_alive()

    # The thread

    def _run(self) -> None:
        guard_connections(IDLE, ours_alone=True)
        try:
            while self._wait():
                for held in self._pending():
                    self._renew(held)
                self._close_unneeded()
        finally:
            for using in _opened():
                drop_broken(using)

    def _wait(self) -> bool:
        """Return True when something is due, False when nothing is held any more: the thread must end then."""
        with self._changed:
            while self._is_current() and self._due:
                rest = min(self._due.values()) - clock()
                if rest <= 0:
                    return True
                self._changed.wait(rest)
            if self._is_current():
                self._thread = None
            return False

    def _is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _pending(self) -> list[HeldLease]:
        """Return what is due, what ends first first."""
        with self._changed:
            now = clock()
            due = [held for held, moment in self._due.items() if moment <= now]
        return sorted(due, key=lambda held: held.renewed + held.lease.total_seconds())

    def _renew(self, held: HeldLease) -> None:
        """Renew one lease; whatever goes wrong, the others depend on this thread going on."""
        began = clock()
        if self._is_current():
            self._busy_since = began
        try:
            if not held.lost:
                self._prepare(held.using)
                held.renew_here()
        except Exception as error:
            self._warn(held, error)
            self._settle(held, began + _pause(held) * random.uniform(0.5, 1.0), failed=began)
            drop_broken(held.using)
        else:
            self._settle(held, _next(held))

    def _prepare(self, using: str) -> None:
        if using not in _opened():
            use_own_connection(using)
        ensure_usable(using)

    def _settle(self, held: HeldLease, due: float, *, failed: float | None = None) -> None:
        """Note what became of a renewal; a lease that is lost is renewed no more, one that was dropped stays so."""
        with self._changed:
            if self._is_current():
                self._busy_since = float("inf")
            if held.lost:
                self._due.pop(held, None)
            if held in self._due:
                self._due[held] = due
                if failed is None:
                    self._failed.pop(held, None)
                else:
                    self._failed[held] = failed
            self._changed.notify_all()

    def _warn(self, held: HeldLease, error: Exception) -> None:
        """Say it once for each time that renewals begin to fail."""
        if held in self._failed or held not in self._due:
            return
        what = f"{type(error).__name__}: {error}"
        facts = held.facts("trouble", what)
        logger.warning("lease %r could not be renewed: %s", held.name, what, extra=facts)

    def _close_unneeded(self) -> None:
        with self._changed:
            needed = {held.using for held in self._due}
        for using in _opened() - needed:
            drop_broken(using)


def _opened() -> set[str]:
    """Return the aliases that the calling thread has connections for."""
    return {connection.alias for connection in connections.all(initialized_only=True)}


def _next(held: HeldLease) -> float:
    """Return when the lease is to be renewed: after a quarter of it, with jitter."""
    quarter = held.lease.total_seconds() / RENEWALS_PER_LEASE
    return held.renewed + quarter * random.uniform(0.75, 1.0)


def _pause(held: HeldLease) -> float:
    return min(AGAIN, held.lease.total_seconds() / 20)


_of_this_process = Renewer()
_of_parents: list[Renewer] = []


def renewer() -> Renewer:
    """Return the renewer of this process."""
    return _of_this_process


def _begin_anew() -> None:
    """Leave to the parent what it holds: its thread is not here, and its lock may be taken for ever."""
    global _of_this_process
    _of_parents.append(_of_this_process)
    _of_this_process = Renewer()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
