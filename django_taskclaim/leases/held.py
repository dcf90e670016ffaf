"""A lease in hand: what the code inside the block can ask of it."""

import logging
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import Error, connections

from django_taskclaim.claim import clock
from django_taskclaim.exceptions import ClaimLost, TaskClaimError
from django_taskclaim.leases.rows import LeaseRows, give_back
from django_taskclaim.policy import SELF_FENCE
from django_taskclaim.states import Token

if TYPE_CHECKING:
    from django_taskclaim.leases.renewer import Renewer

logger = logging.getLogger("django_taskclaim.leases")


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
    """One hold of a named lease, from the start of its block to its end. Any thread may use it."""

    def __init__(
        self, name: str, using: str, token: Token, lease: timedelta, *, began: float
    ) -> None:
        self.name = name
        self.using = using
        #: Names this hold for ever; its ``iteration`` grows with each, for whoever can refuse a late holder.
        self.token = token
        self.lease = lease
        #: The clock as it was before the statement by which the hold began, or was last renewed, was sent.
        self.renewed = began
        #: What renews it in the background, if anything does.
        self.renewer: Renewer | None = None
        #: Whether it stands in a transaction of ``TestCase``, which no other connection sees.
        self.provisional = False
        self._gone = ""
        self._ending = False
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<lease {self.name!r}, token {self.token}>"

    @property
    def lost(self) -> bool:
        """Whether this process knows or must assume that the lease is gone; cheap, asks no database.

        Once True it stays so. It turns True at 90 % of a lease that could not be renewed, while others still wait.
        """
        if not self._gone and self.is_foreign():
            self._gone = "it belongs to the process that this one was forked from"
        elif not self._gone and clock() >= self.renewed + self.lease.total_seconds() * SELF_FENCE:
            self.lose("it could not be renewed in time")
        return bool(self._gone)

    def remaining(self) -> timedelta:
        """Return how long the lease lasts by this process's own clock if it is not renewed; nothing once lost."""
        seconds = self.renewed + self.lease.total_seconds() - clock()
        return timedelta() if self.lost else timedelta(seconds=max(0.0, seconds))

    def check(self) -> bool:
        """Ask the database whether the lease is still held: True, or ClaimLost."""
        self.refuse_lost()
        if not LeaseRows.on(self.using).standing(self.name, self.token).exists():
            self.lose("another holder has taken it over")
        self.refuse_lost()
        return True

    def renew(self) -> bool:
        """Have a whole lease ahead, now: True, or ClaimLost. False if the database did not let us, and it runs on.

        The background does this by itself, on a connection of its own; so an open transaction is no obstacle.
        """
        self.refuse_lost()
        renewed = self.renew_here() if self.renewer is None else self.renewer.renew_now(self)
        self.refuse_lost()
        return renewed

    async def acheck(self) -> bool:
        """``check`` for async code."""
        return await sync_to_async(self.check)()

    async def arenew(self) -> bool:
        """``renew`` for async code."""
        return await sync_to_async(self.renew)()

    # For the renewer and the block

    def renew_here(self) -> bool:
        """Renew on the calling thread's connection; False, and the lease is lost, if it is held no more."""
        began = clock()
        stands = LeaseRows.on(self.using).renew(self.name, self.token, self.lease)
        if stands:
            self.renewed = began
        elif not self._ending:
            # Else the end of the block has been faster, and knows better what it found.
            self.lose("another holder has taken it over")
        return stands

    def lose(self, reason: str) -> None:
        """Note that the lease is gone; only the first reason counts."""
        if not self._gone:
            self._gone = reason
            self._log(logging.WARNING, "lost", reason)

    def refuse_lost(self) -> None:
        """Raise ClaimLost if the lease is lost."""
        if self.lost:
            raise LeaseLost(self.name, self.token, self._gone)

    def is_foreign(self) -> bool:
        """Say whether another process took the lease, of which this one is a fork."""
        return os.getpid() != self._process

    def begin(self) -> None:
        self._log(logging.INFO, "taken")

    def end(self) -> None:
        """Give the lease back if it is ours to give; ClaimLost if it was lost before.

        Where the database cannot be reached just now the lease ends by itself.
        """
        self._ending, was_lost = True, self.lost
        if not self.is_foreign():
            was_lost = not self._give_back() or was_lost
        reason, self._gone = self._gone, self._gone or "its block has ended"
        if was_lost:
            raise LeaseLost(self.name, self.token, reason)

    def _give_back(self) -> bool:
        try:
            given = give_back(self.name, self.token, self.using)
        except (Error, TaskClaimError):
            self._give_back_again()
            # The block ran under a lease that had not ended; what is left of it ends by itself.
            return True
        if given:
            self._log(logging.INFO, "released")
        else:
            self.lose("another holder has taken it over")
        return given

    def _give_back_again(self) -> None:
        """Try once more, on a new connection where the old one was cut while the block ran.

        The first try may have been done after all, so finding nothing to give back says nothing.
        """
        try:
            connections[self.using].close_if_unusable_or_obsolete()
            give_back(self.name, self.token, self.using)
        except (Error, TaskClaimError) as error:
            self._log(logging.WARNING, "trouble", f"not given back, it will end by itself: {error}")
        else:
            self._log(logging.INFO, "released")

    def _log(self, level: int, event: str, why: str = "") -> None:
        because = f": {why}" if why else ""
        facts = self.facts(event, why)
        logger.log(level, "lease %r %s%s", self.name, event, because, extra=facts)

    def facts(self, event: str, why: str) -> dict[str, Any]:
        """Return what a log record tells beside its text."""
        token = self.token._asdict()
        return {"event": event, "lease": self.name, **token, "reason": why}
