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
        #: By ``clock()``, when leases were last renewed, and when that must be tried again at the latest.
        self._renewed, self._renew_by = float("-inf"), float("inf")

    def renewal_interval(self) -> float:
        """Return the seconds between two renewals of the shortest lease: of those held, and of the next claims."""
        leases = [
            *(feed.lease() for feed in self.feeds),
            *(held.claim.lease for held in self.inflight.held()),
        ]
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

    def renew_when_due(self) -> bool:
        """Renew the leases that stand, often enough for the shortest of them; True if the database has answered."""
        # Read once, for both may be a thousand.
        refused = {(claim_columns(one.model).owner, one.key) for one in refusals(None, self.using)}
        renewables = [held for held in self.inflight.held() if _is_renewable(held, refused)]
        # By the shortest lease held now, which may be shorter than any at the last renewal.
        shortest = min((held.claim.lease for held in renewables), default=timedelta.max)
        pause = random.uniform(0.75, 1.0) * shortest.total_seconds() / RENEWALS_PER_LEASE
        if not renewables or clock() < min(self._renewed + pause, self._renew_by):
            return False
        renewable = {id(held.carrier()): held for held in renewables}
        self._renewed = began = clock()
        # Unless all goes well, again soon: an outage that is over must not cost the rest of a long lease.
        self._renew_by = again = began + min(RENEW_AGAIN, self.renewal_interval() / 4)
        outcome = renew(Given([held.row for held in renewable.values()]))
        # Of many rows that are refused, a few are found each time.
        self._renew_by = again if outcome.skipped or outcome.refused else float("inf")
        for row in outcome.skipped:
            # Locked, perhaps by its own handler, and seen to stand: no loss until the next look, a second away.
            held = renewable[id(row)]
            held.claim.extend(began, held.claim.lease * (1 - SELF_FENCE) + timedelta(seconds=2))
        # A handler may have ended its claim by itself while the statement was under way.
        gone = [
            held
            for row in outcome.lost
            if not ((held := renewable[id(row)]).ending or held.claim.ended)
        ]
        for held in gone:
            lost(held, "the renewal found another token")
        self.inflight.put_back(lambda held: held in gone)
        return True

    # Overrun handlers

    def end_overrun(self) -> None:
        """Wait no more for calls whose time is over, nor for others that may be why they could not end."""
        running = [(item, item.rows) for item in self.inflight.running()]
        for item, _ in running:
            if item.will_overrun():
                item.request_cancel("its timeout is near", too_long=True)
        late = [(item, called) for item, called in running if item.overran()]
        for item, called in late:
            self.has_overrun = True
            text = f"{named(called[0].row)} overran; it is here:\n{stack_of(item.thread)}"
            logger.error("%s", redact(text, keep_end=True))
        coroutines = [one for one in running if one[0].handler.is_async]
        if any(one in late for one in coroutines):
            # Any of them may be the one that blocks their event loop.
            late += [one for one in coroutines if one not in late]
        begun = [item for item, _ in coroutines if item.has_begun]
        for item, called in late:
            alone = len(called) == 1 and not (item.handler.is_async and len(begun) > 1)
            outcome = _overrun(item.handler, alone=alone) if item.has_begun else NOT_STARTED
            self.inflight.abandon(item, outcome, item.ran(), called)


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
