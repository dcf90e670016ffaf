"""``row.claim``: what a handler or a view can ask of, and do with, the claim of one row."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.db import models

from django_taskclaim.awaitables import async_twin
from django_taskclaim.claim import Claim, claim_of, standing_claim
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.states import Token


class ClaimHandle:
    """The claim of one row. Every verb raises ClaimLost, and writes nothing, once the claim stands no more."""

    __slots__ = ("_row",)

    def __init__(self, row: models.Model) -> None:
        self._row = row

    def __repr__(self) -> str:
        claim = claim_of(self._row)
        return (
            f"<no claim on {self._row!r}>"
            if claim is None
            else f"<claim {claim.token} on {self._row!r}>"
        )

    @property
    def token(self) -> Token:
        """Names this claim, with the row's key, for ever: ``(holder, iteration)``.

        Raises ClaimLost for a row that carries no claim.
        """
        return self._standing().token

    @property
    def lost(self) -> bool:
        """Whether this process already knows that the claim is gone; cheap, asks no database."""
        claim = claim_of(self._row)
        if claim is None or claim.ended or claim.lost:
            return True
        remaining = claim.remaining()
        return remaining is not None and remaining <= timedelta(0)

    def remaining(self) -> timedelta | None:
        """Return how long the lease lasts by this process's own clock; None where that was never known."""
        return self._standing().remaining()

    def check(self) -> bool:
        """Ask the database whether the claim stands: True, or ClaimLost."""
        claim = self._standing()
        target = ClaimTarget.of(type(self._row), claim.alias)
        if not target.dialect.select_keys(
            target.table, [claim.pk], target.table.standing(claim.token)
        ):
            claim.lost = True
            raise ClaimLost([self._row])
        return True

    def complete(self, *, update_fields: Collection[str] = ()) -> None:
        """Finish the row well, writing the named columns of your model in the same fenced statement."""
        self._verbs().complete([self._row], update_fields=update_fields)

    def fail(self, error: BaseException | str, *, retry: bool = True) -> None:
        """Finish the row badly; it is tried again unless its tries are used up or *retry* is False."""
        self._verbs().fail([self._row], error, retry=retry)

    def release(self, *, delay: float | timedelta | None = None) -> None:
        """Give the row back unfinished and uncounted."""
        self._verbs().release([self._row], delay=delay)

    def hand_over(self, to: str, *, lease: float | timedelta | None = None) -> None:
        """Let *to* hold the row from now on; this claim is ended."""
        self._verbs().hand_over([self._row], to=to, lease=lease)

    def renew(self, lease: float | timedelta | None = None) -> bool:
        """Extend the lease, never shorten it. False where another transaction has the row locked just now."""
        return bool(self._verbs().renew([self._row], lease))

    acheck = async_twin(check)
    acomplete = async_twin(complete)
    afail = async_twin(fail)
    arelease = async_twin(release)
    ahand_over = async_twin(hand_over)
    arenew = async_twin(renew)

    def _verbs(self) -> ClaimQuerySet[Any]:
        return ClaimQuerySet(type(self._row))

    def _standing(self) -> Claim:
        claim = standing_claim(self._row)
        if claim is None:
            raise ClaimLost(
                [self._row], reason="it carries no claim, or a verb of its own has ended it"
            )
        return claim
