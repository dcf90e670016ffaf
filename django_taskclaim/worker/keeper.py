"""The lease keeper: renews what a process holds, and gives up in time what it cannot renew.

What renews runs in the service thread, and waits for no row that somebody has locked: so one stuck handler cannot cost
the others their leases.
"""

import random
import time
from datetime import timedelta

from django.db.models import Model

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import Key
from django_taskclaim.error_text import redact
from django_taskclaim.formatting import format_duration
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import RENEWALS_PER_LEASE, SELF_FENCE
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.querysets.writes import Given, renew
from django_taskclaim.worker.batch import NOT_STARTED, Failed, HeldRow, PutBack
from django_taskclaim.worker.feeds import Feed
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.records import logger, lost, named
from django_taskclaim.worker.threads import stack_of

#: Seconds until a renewal that failed, or passed over locked rows, is tried again; sooner for short leases.
RENEW_AGAIN = 1.0
#: Seconds for which this connection must live on before a broken session is the row's own fault.
SETTLING = 0.5
#: Seconds without an answer after which the database counts as away.
SILENCE = 10.0


class LeaseKeeper:
    """One for each process."""

    def __init__(self, using: str, feeds: list[Feed], inflight: InFlight) -> None:
        self.using, self.feeds, self.inflight = using, feeds, inflight
        #: What transactions that stay open are measured by, in every thread.
        self.longest_lease = max(feed.lease() for feed in feeds)
        #: A handler has overrun, so the process is to be replaced: a thread cannot be killed.
        self.has_overrun = False
        #: By ``clock()``, when the database last answered the service thread, and when it last was away.
        self.answered_at, self.away_at = clock(), float("-inf")
        #: By ``clock()``, when leases that the last renewal could not extend are tried again.
        self._again_at = float("-inf")

    def renewal_interval(self) -> float:
        """Return the seconds between two renewals of the shortest lease: of those held, and of the next claims."""
        leases = [held.claim.lease for held in self.inflight.held()]
        leases += [feed.lease() for feed in self.feeds]
        return min(leases).total_seconds() / RENEWALS_PER_LEASE

    # Whether the database is there

    def healthy(self, lease: timedelta) -> bool:
        """Say whether leases of this length can be kept: no claim is taken that could not be renewed."""
        return clock() - self.answered_at < lease.total_seconds() * SELF_FENCE

    def troubled_since(self, moment: float) -> bool:
        """Say whether the database was away, as the service thread saw it, at any time since *moment*."""
        return self.away_at >= moment

    def was_away_since(self, moment: float) -> bool:
        """Say whether the database was away at any time since *moment*; waits until it has been asked again.

        No answer means that it still is. If it was not, the server has cut off one session, and has its reason in what
        was sent there.
        """
        # A server that goes down ends its sessions one after the other.
        settled, end = clock() + SETTLING, clock() + SILENCE
        while max(self.answered_at, self.away_at) <= settled:
            if clock() >= end:
                return True
            time.sleep(0.05)
        return self.troubled_since(moment)

    # What other threads ask for

    def withdraw(self, model: object) -> None:
        """Give back the rows of *model* that have not started, and ask for those that run."""
        why = "claims of its model are stopped"
        self.inflight.put_back(lambda held: held.handler.model is model, recall=why)

    def fence(self) -> None:
        """Take claims for lost before they expire when they could not be renewed in time; asks no database.

        The main thread calls it: the service thread may hang in a statement.
        """
        for held in self.inflight.held():
            if held.is_overdue(clock()) and not held.claim.lost:
                # A running one is renewed again as soon as that works, for the second run would be beside the first.
                held.claim.lost = held.fenced = True
                lost(held, "could not be renewed in time")
        self.inflight.put_back(lambda held: held.claim.lost)

    # Renewing

    def renew_when_due(self) -> None:
        """Renew the leases that stand once one of them is partly used."""
        # Read once, for both may be a thousand.
        refused = {(claim_columns(one.model).owner, one.key) for one in refusals(None, self.using)}
        all_held, began = self.inflight.held(), clock()
        used = random.uniform(0.75, 1.0) / RENEWALS_PER_LEASE
        due = (one for one in all_held if one.has_used(used, began) and _is_renewable(one, refused))
        if began < self._again_at or not any(due):
            return
        renewable = {id(held.carrier()): held for held in all_held if _is_renewable(held, refused)}
        # What is not extended now stays due: an outage that is over must not cost the rest of a long lease.
        self._again_at = began + min(RENEW_AGAIN, self.renewal_interval() / 4)
        outcome = renew(Given([held.row for held in renewable.values()]))
        for row in outcome.skipped:
            # Locked, perhaps by its own handler, and seen to stand: no loss until the next look, a second away.
            claim = renewable[id(row)].claim
            until_then = claim.lease * (1 - SELF_FENCE) + timedelta(seconds=2)
            claim.extend(began, min(until_then, claim.lease / 2))
        for row in outcome.lost:
            held = renewable[id(row)]
            # A handler may have ended its claim by itself while the statement was under way.
            if not (held.ending or held.claim.ended):
                lost(held, "the renewal found another token")

    # Overrun handlers

    def end_overrun(self) -> None:
        """Wait no more for calls whose time is over, nor for others that may be why they could not end."""
        running = [(item, item.rows, item.overran()) for item in self.inflight.running()]
        # Any of the coroutines may be the one that blocks their event loop.
        is_blocked = any(late and item.handler.is_async for item, _, late in running)
        begun = sum(item.handler.is_async and item.has_begun for item, *_ in running)
        for item, called, late in running:
            if item.will_overrun():
                item.request_cancel("its timeout is near", too_long=True)
            if late:
                self.has_overrun = True
                text = f"{named(called[0].row)} overran; it is here:\n{stack_of(item.thread)}"
                logger.error("%s", redact(text, keep_end=True))
            if late or (is_blocked and item.handler.is_async):
                alone = len(called) == 1 and not (item.handler.is_async and begun > 1)
                outcome = _overrun(item.handler, alone=alone) if item.has_begun else NOT_STARTED
                self.inflight.abandon(item, outcome, called)


def _is_renewable(held: HeldRow, refused: set[tuple[type[Model], Key]]) -> bool:
    claim = held.claim
    if held.abandoned or claim.ended or (claim.lost and not held.fenced):
        return False
    return (claim_columns(type(held.row)).owner, claim.pk) not in refused


def _overrun(handler: Handler, *, alone: bool) -> Failed | PutBack:
    """Return what becomes of the rows of a call that overran.

    A row that ran *alone* has failed. Of several nobody can tell which one it was, so each is claimed alone next.
    """
    why = outlived(handler)
    if alone or claim_columns(handler.model).not_before is None:
        return Failed(why)
    return PutBack(f"it, or a row beside it: {why}", quarantined=True)


def outlived(handler: Handler) -> str:
    """Return what is said of a row whose handler ran too long."""
    return f"The handler ran longer than its timeout of {format_duration(handler.timeout or timedelta())}."
