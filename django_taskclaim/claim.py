"""What an instance remembers of its claim: taken once by ``claim_batch`` and kept outside the fields.

A token read from the fields would be no token: ``refresh_from_db()`` or ``get(pk=…)`` fills them with the next
holder's, and a late worker would then pass the fence.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.fields import AnyField
from django_taskclaim.states import WORKER_MARK, Token

ATTRIBUTE = "_taskclaim"


#: Returns seconds of a clock that no administrator sets and that runs on while the machine sleeps.
clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


class Ended(NamedTuple):
    """How a verb has ended a claim: well, with a failed try, or without one."""

    completed: bool = False
    #: Class and text of the error of a failed try, as the row keeps them.
    failure: tuple[str, str] | None = None
    #: The failure was the row's own, and trying again would be in vain.
    permanent: bool = False


COMPLETED, GIVEN_UP = Ended(completed=True), Ended()


class Claim:
    """One claim of one row, as far as this process knows; whether it stands is decided by the database alone.

    It stands until a verb of this process ends it. An end inside a transaction counts at once, and a rollback lets the
    claim stand again.
    """

    # Defaults stand on the class: a worker makes one of these for every row, and most never learn anything else.

    #: Claimed alone, because the row may have killed the worker that had it on its last try.
    quarantined = False
    #: When the lease ends by the clock of this process, None where it was never known.
    local_deadline: float | None = None
    #: Set once this process has learned that the claim is gone.
    lost = False
    #: Set by a worker that will log a loss itself, with what it knows beside.
    watched = False
    #: Set once the loss is in the log, so that it is logged once.
    loss_logged = False
    #: Set where a transaction that was to end the claim broke off: its COMMIT may have arrived all the same.
    unanswered = False
    #: Set where the row has moved on since, so that nobody can tell whether that COMMIT arrived.
    ambiguous = False
    #: Why the worker wants the row back as soon as its handler can stop; empty if it does not.
    cancel_reason = ""
    #: … and whether the rest of the row is too much for one claim.
    too_long = False
    #: How it has ended; for as long as that is not committed, with the transaction.
    _ending: "Ended | _Ending | None" = None

    def __init__(
        self, token: Token, alias: str, pk: Any, *, lease: timedelta, attempts: int = 0
    ) -> None:
        self.token = token
        self.alias = alias
        self.pk = pk
        #: The lease that was asked for; a renewal asks for the same.
        self.lease = lease
        #: How often the row had failed when it was claimed. While the token stands, the stored number is the same.
        self.attempts = attempts

    @property
    def ended(self) -> bool:
        """Say whether a verb of our own has ended the claim, and was not rolled back since."""
        return self.how_ended() is not None

    def how_ended(self) -> Ended | None:
        """Return how a verb of our own has ended the claim, None as long as it stands, for all we know."""
        ending = self._ending
        if not isinstance(ending, _Ending):
            return ending
        if ending.counts():
            return ending.how
        self._ending = None
        # If the session has ended since, the transaction may have ended with it, by its COMMIT.
        self.unanswered = self.unanswered or ending.connection.connection is not ending.session
        return None

    def extend(self, started: float, lease: timedelta | None = None) -> None:
        """Note that the lease runs from *started* (by ``clock()``, read before the statement was sent)."""
        seconds = (lease or self.lease).total_seconds()
        self.local_deadline = max(self.local_deadline or 0.0, started + seconds)

    def __getstate__(self) -> dict[str, object]:
        # No deadline: the clock of another process or boot says nothing about ours. And no end that is not committed:
        # nobody would tell the copy of a rollback.
        names = ("token", "alias", "pk", "lease", "attempts", "lost", "unanswered", "ambiguous")
        state = {name: getattr(self, name) for name in names}
        if isinstance(self._ending, Ended):
            state["_ending"] = self._ending
        return state


def end_claims(claims: Sequence[Claim], how: Ended) -> None:
    """Note how a verb has ended these claims, of one database; undone if the caller's transaction is rolled back."""
    if not claims:
        return
    connection = connections[claims[0].alias]
    if not connection.in_atomic_block and not connection.get_autocommit():
        # Without autocommit Django does not notice the commit. The fence is enough: it asks the row.
        return
    ending = _Ending(how, claims, connection) if connection.in_atomic_block else how
    for claim in claims:
        claim._ending = ending


class _Ending:
    """How a verb has ended claims in a transaction that has not committed yet."""

    def __init__(
        self, how: Ended, claims: Sequence[Claim], connection: BaseDatabaseWrapper
    ) -> None:
        self.how, self.claims = how, claims
        self.connection, self.session = connection, connection.connection
        transaction.on_commit(self, using=connection.alias)
        if not any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            # This hook comes first, so that hooks of the user's find an ordinary instance. TestCase never commits,
            # and finds hooks by their position.
            connection.run_on_commit.insert(0, connection.run_on_commit.pop())

    def __call__(self) -> None:
        """Learn of the commit."""
        # From now on the claims do not keep the connection: they may outlive its thread.
        for claim in self.claims:
            claim._ending = self.how

    def counts(self) -> bool:
        """Say whether the transaction is still undecided: a rollback throws its hooks away unrun."""
        return any(hook[1] is self for hook in self.connection.run_on_commit)


def claim_of(row: models.Model) -> Claim | None:
    """Return the claim that *row* carries, standing or ended; None for a row that never carried one."""
    claim: Claim | None = row.__dict__.get(ATTRIBUTE)
    return claim


def carried_claim(row: models.Model) -> Claim:
    """Return the claim of an instance that must carry one, ended or not; KeyError for any other."""
    claim: Claim = row.__dict__[ATTRIBUTE]
    return claim


def carried_claims(rows: Iterable[models.Model]) -> list[Claim]:
    """Return the claims of instances that must carry one, in their order; KeyError for any other."""
    return [row.__dict__[ATTRIBUTE] for row in rows]


def standing_claim(row: models.Model) -> Claim | None:
    """Return the claim that *row* carries unless one of our own verbs has ended it."""
    claim: Claim | None = row.__dict__.get(ATTRIBUTE)
    if claim is None or (claim._ending is not None and claim.ended):
        return None
    return claim


def attach(row: models.Model, claim: Claim) -> None:
    """Let *row* carry *claim*."""
    row.__dict__[ATTRIBUTE] = claim


# What an instance shows of its row


#: An instance keeps what its row has stored under this name: names and values as they were loaded, by reference, and
#: by attname what was written or loaded since. Nothing is copied for rows that are only read.
LOADED = "_taskclaim_loaded"


#: The third value for a row that was only loaded.
UNCHANGED: Mapping[str, Any] = {}


def remember(row: models.Model, attnames: Iterable[str]) -> None:
    """Take the row's present values of these columns for the stored ones."""
    stored = {name: row.__dict__.get(name, models.DEFERRED) for name in attnames}
    names, values, since = row.__dict__.get(LOADED, ((), (), UNCHANGED))
    row.__dict__[LOADED] = (names, values, {**since, **stored})


def show(rows: Iterable[models.Model], values: Mapping[AnyField | None, Any]) -> None:
    """Let instances show what a verb has written to all of them; ``DEFERRED`` values are read again when asked for."""
    written = {field.attname: value for field, value in values.items() if field is not None}
    unknown = [name for name, value in written.items() if value is models.DEFERRED]
    for row in rows:
        own = row.__dict__
        own.update(written)
        for name in unknown:
            del own[name]
        names, values, since = own.get(LOADED, ((), (), UNCHANGED))
        # Rows that a verb has written alike share what it wrote.
        own[LOADED] = (names, values, {**since, **written} if since else written)


# Who holds rows


def new_holder(worker: str | None = None) -> str:
    """Return an id for one batch: ``<process>#<random>``, never used before or again.

    A worker's begins with the name that its process reports under.
    """
    process = process_name(worker) if worker else f"{os.getpid()}@{socket.gethostname()}"[:170]
    return process + WORKER_MARK + secrets.token_hex(8)


def process_name(worker: str) -> str:
    """Return the name of this process of *worker*, unique on its host while it lives: ``<worker>@<host>:<pid>``."""
    pid = f":{os.getpid()}"
    return f"{worker}@{socket.gethostname()}"[: 170 - len(pid)] + pid


def checked_name(name: str, argument: str = "claimed_by") -> str:
    """Return a holder named by the caller; the mark of workers tells the reaper who is none of them."""
    if not isinstance(name, str) or not name or len(name) > 200 or "\x00" in name:
        raise ValueError(f"{argument} must be a text of 1 to 200 characters, not {name!r}.")
    if WORKER_MARK in name:
        raise ValueError(
            f"{argument} {name!r} contains {WORKER_MARK!r}, which marks the ids of workers."
        )
    return name
