"""Everything this package raises, with the facts as attributes."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django_taskclaim import conf


class TaskClaimError(Exception):
    """Base of every error of this package."""


class ClaimLost(TaskClaimError):
    """The claim no longer stands, so nothing was written for the rows in ``lost``.

    ``written`` holds the rows of the same call whose claims stood; inside a caller's transaction that is
    provisional until it commits.
    """

    def __init__(
        self,
        lost: Sequence[Any],
        written: Sequence[Any] = (),
        undecided: Sequence[Any] = (),
        *,
        reason: str = "",
    ) -> None:
        self.lost, self.written, self.undecided = list(lost), list(written), list(undecided)
        self.reason = reason or "the claim passed to another holder, was ended, or the row is gone"
        super().__init__(self.lost, self.written)

    def __str__(self) -> str:
        return f"Nothing was written for {_named(self.lost)}: {self.reason}."


class CommitUnknown(ClaimLost):
    """The answer to a COMMIT was lost, and the rows have moved on since: nobody can tell what was written.

    ``lost`` holds them with any others whose claims stand no more. Of those in ``undecided`` it is unknown whether
    this call, or this block of ``take()``, wrote them; either way they are not the caller's any more.
    """

    def __str__(self) -> str:
        others = [row for row in self.lost if all(row is not one for one in self.undecided)]
        rest = f" {ClaimLost(others, reason=self.reason)}" if others else ""
        return (
            f"Nobody can tell whether {_named(self.undecided)} was written: the answer to the COMMIT was lost, and"
            f" what the table holds now does not say.{rest}"
        )


def _named(rows: Sequence[object]) -> str:
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return ", ".join(_describe(row) for row in rows[:5]) + more


def _describe(row: Any) -> str:
    """Name model, key and token of one row without touching the database."""
    meta = getattr(row, "_meta", None)
    if meta is None:
        return repr(row)
    claim = row.__dict__.get("_taskclaim")
    token = f" (token {claim.token})" if claim is not None else ""
    key = claim.pk if claim is not None else row.pk
    return f"{meta.label} {key!r}{token}"


class ClaimColumnError(TaskClaimError):
    """A claim column was about to be written by something that is no verb; nothing was sent to the database."""


class LeaseUnavailable(TaskClaimError):
    """A named lease is held by someone else: ``holder`` until ``expires_at``."""

    def __init__(self, name: str, holder: str | None, expires_at: datetime | None) -> None:
        self.name, self.holder, self.expires_at = name, holder, expires_at
        super().__init__(name, holder, expires_at)

    def __str__(self) -> str:
        return f"Lease {self.name!r} is held by {self.holder} until {self.expires_at}."


class RetriesExhausted(TaskClaimError):
    """The database stayed contended: ``attempts`` tries in ``elapsed`` seconds, the last error being the cause."""

    def __init__(self, attempts: int, elapsed: float, code: str | int | None) -> None:
        self.attempts, self.elapsed, self.code = attempts, elapsed, code
        super().__init__(attempts, elapsed, code)

    def __str__(self) -> str:
        return f"Gave up after {self.attempts} attempts in {self.elapsed:.2f} s (database code {self.code})."


class Permanent(TaskClaimError):
    """Raise it in a handler when trying again is pointless: the row becomes ``failed`` at once."""


class SourceGone(Permanent):
    """The sources of the companions in ``rows`` do not exist any more, so nothing was written for them."""

    def __init__(self, rows: Sequence[object]) -> None:
        self.rows = list(rows)
        super().__init__(self.rows)

    def __str__(self) -> str:
        return f"The source of {_named(self.rows)} does not exist any more."


class RetryLater(TaskClaimError):
    """Raise it in a handler to put the row back for *delay* (seconds or timedelta) without counting a try.

    A moment that has passed is no delay, and none is longer than a hundred years; ValueError for what is no duration.
    With *everyone* nobody claims rows of the model for so long, on any host: for a service that asks all of you to
    wait. *message* is the reason that people read.
    """

    #: A subclass may never have set it.
    everyone = False

    def __init__(
        self, delay: float | timedelta = 0, message: str = "", *, everyone: bool = False
    ) -> None:
        self.delay = conf.waiting_time(delay)
        self.message = message
        self.everyone = everyone
        super().__init__(delay, message)

    def __str__(self) -> str:
        return self.message or f"put back for {self.delay.total_seconds():g} s"


class RangeInterrupted(RetryLater):
    """Ends a handler's work on a range that its worker wants back: the range goes on later, from its checkpoint.

    Or on one that was split since: the key that a checkpoint was to be set at is in the part of others.
    """


class RangeUnfinished(TaskClaimError):
    """A handler returned before its range was done, so the range must not be completed."""
