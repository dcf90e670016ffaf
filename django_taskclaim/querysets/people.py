"""What people do with rows that they hold, and may know of rows that they do not; ``ClaimQuerySet`` inherits this."""

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models

from django_taskclaim import querysets
from django_taskclaim.awaitables import async_twin
from django_taskclaim.columns import claim_columns
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets.operators import OperatorVerbs

if TYPE_CHECKING:
    from django_taskclaim.querysets.why_empty import WhyEmpty

M = TypeVar("M", bound=models.Model)

Lease = float | timedelta | None


class PeopleVerbs(OperatorVerbs[M]):
    """Passing claims from one holder to another, and looking at them."""

    if TYPE_CHECKING:
        # Of ClaimQuerySet.
        def _claimed_by(self, holders: Collection[str], *, whole: bool = False) -> list[M]: ...
        def renew(self, rows: M | Iterable[M], lease: Lease = None) -> int: ...

    def holdings(self, who: str, *, lease: Lease = None) -> list[M]:
        """Return the rows that *who* holds, in the order of claims, each carrying its claim; none is claimed.

        What this queryset selects, defers, joins and annotates is kept; TypeError for ``values()``. With *lease* they
        are renewed as ``renew`` does, and rows lost in that moment are left out.
        """
        if self._fields is not None:  # type: ignore[attr-defined]
            raise TypeError("holdings() returns rows that carry claims; values() has none.")
        ordered: Any = querysets.scope.in_policy_order(self)
        if not ordered.query.order_by:
            ordered = ordered.order_by(*claim_columns(self.model).order)
        rows: list[M] = ordered._claimed_by([who], whole=True)
        if lease is None or not rows:
            return rows
        try:
            self.renew(rows, lease)
        except ClaimLost as error:
            return [row for row in rows if all(row is not lost for lost in error.lost)]
        return rows

    def hand_over(self, rows: M | Iterable[M], *, to: str, lease: Lease = None) -> int:
        """Let *to* hold rows from now on, and return how many; the claims that the instances carry are ended.

        *to* is a name as for ``claim_batch(claimed_by=…)``. The rows have *lease* ahead of them at least (by default
        the policy's), or what was left of the old one. Raises ClaimLost as ``complete`` does.
        """
        return querysets.passing.hand_over(rows, to, lease)

    def take_over(self, *, by: str, reason: str, lease: Lease = None) -> int:
        """Let *by* hold the rows of this queryset that others hold, and return how many; those lose them.

        An operator's act, which needs no token and is recorded with its *reason* where the control app is installed.
        Rows that *by* holds already stay as they are, open and finished ones too; a row that somebody has locked is
        left alone. ``holdings(by)`` then returns them with their claims. *lease* is as for ``hand_over``.
        """
        self._for_write = True
        return querysets.passing.take_over(self, by, reason, lease)

    def why_empty(self, who: str = "") -> "WhyEmpty":
        """Say why *who* gets no rows of this queryset; for an answer that was empty, since it counts rows.

        ``str()`` of it reads ``3 held by others, next free 14:20``.
        """
        self._for_write = True
        return querysets.why_empty.why_empty(self, who)

    # Async twins

    aholdings = async_twin(holdings)
    ahand_over = async_twin(hand_over)
    atake_over = async_twin(take_over)
    awhy_empty = async_twin(why_empty)
