"""Claims whose COMMIT was not answered: nobody works on the rows that they may have taken, so these are given back."""

from itertools import groupby
from typing import Any

from django_taskclaim.claim import clock
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.claiming import Request
from django_taskclaim.querysets.holdings import claimed_by
from django_taskclaim.worker.inflight import Task

#: Seconds between two looks for such rows; fewer for short leases.
EVERY = 1.0


class UnansweredClaims:
    """Noted by the thread that claims, and looked for by the one that gives rows back."""

    def __init__(self, using: str) -> None:
        self.using = using
        #: Each with the moment, by ``clock()``, after which its COMMIT can arrive no more.
        self._claims: list[tuple[Handler, Request, float]] = []
        self._next_look = 0.0

    def note(self, handler: Handler, request: Request) -> None:
        """Remember a claim that ended in an error; its holder is its alone."""
        # The COMMIT may be on its way for as long as the server lets the transaction stand.
        self._claims.append((handler, request, clock() + 2 * request.lease.total_seconds()))

    def find(self, *, now: bool = False) -> list[Task]:
        """Return the rows that have been claimed after all; the database's errors pass on.

        Looks once a second at most, or *now*, until the last COMMIT can arrive no more: a part of what a claim takes
        may have been committed before. A row is returned again until it has been given back.
        """
        if not self._claims or (clock() < self._next_look and not now):
            return []
        noted = sorted(self._claims, key=lambda one: id(one[0]))
        # Found before a reaper finds them, which waits for a quarter of the lease.
        shortest = min(request.lease.total_seconds() for _, request, _ in noted)
        self._next_look = clock() + min(EVERY, shortest / 16)
        found: list[Task] = []
        for handler, same in groupby(noted, lambda one: one[0]):
            rows: Any = ClaimQuerySet(handler.model, using=self.using)
            held = claimed_by(rows, [request.holder for _, request, _ in same])
            found += [Task(row, handler) for row in held]
        for one in noted:
            if clock() >= one[2]:
                # One by one: a new list would lack what the other thread notes meanwhile.
                self._claims.remove(one)
        return found
