"""Claims whose COMMIT was never answered: nobody was told of their rows, so nobody works on them."""

from dataclasses import dataclass, field
from typing import Any

from django_taskclaim.claim import clock
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.claiming import Request
from django_taskclaim.worker.inflight import Task

#: Seconds between two looks for what such claims may have taken; fewer for short leases.
EVERY = 1.0


@dataclass(frozen=True, slots=True)
class _Claim:
    handler: Handler
    holder: str
    #: Seconds.
    lease: float
    #: By ``clock()``, when its COMMIT can arrive no more.
    until: float


@dataclass(slots=True)
class UnheardClaims:
    """Noted by the thread that claims, and looked for by the one that gives rows back."""

    using: str
    _claims: list[_Claim] = field(default_factory=list)
    _next_look: float = 0.0

    def note(self, handler: Handler, request: Request) -> None:
        """Remember a claim that ended in an error; its holder is its alone."""
        # The COMMIT may be on its way for as long as the server lets the transaction stand.
        lease = request.lease.total_seconds()
        self._claims.append(_Claim(handler, request.holder, lease, clock() + 2 * lease))

    def find(self, *, now: bool = False) -> list[Task]:
        """Return the rows that have been claimed after all; the database's errors pass on.

        Looks once a second at most, or *now*, until the last COMMIT can arrive no more: a part of what a claim takes
        may have been committed before. A row is returned again until it has been given back.
        """
        if not self._claims or (clock() < self._next_look and not now):
            return []
        noted = list(self._claims)
        # Found before a reaper finds them, which waits for a quarter of the lease.
        self._next_look = clock() + min(EVERY, *(one.lease / 16 for one in noted))
        found = [task for handler in _handlers(noted) for task in self._find(handler, noted)]
        for one in noted:
            if clock() >= one.until:
                # One by one: a new list would lack what the other thread notes meanwhile.
                self._claims.remove(one)
        return found

    def _find(self, handler: Handler, noted: list[_Claim]) -> list[Task]:
        holders = [one.holder for one in noted if one.handler is handler]
        rows: Any = ClaimQuerySet(handler.model, using=self.using)
        return [Task(row, handler) for row in rows._claimed_by(holders)]


def _handlers(noted: list[_Claim]) -> list[Handler]:
    return list({id(one.handler): one.handler for one in noted}.values())
