"""What people do with rows that they hold, and may know of rows that they do not; ``ClaimQuerySet`` inherits this."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from asgiref.sync import sync_to_async
from django.db import models
from django.db.models import Count, Min, Q
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns
from django_taskclaim.dialects import DatabaseNow
from django_taskclaim.dialects.statements import SQL, sql
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.fields import UNSETTLED, as_utc
from django_taskclaim.guard import show
from django_taskclaim.localized import clock_time, number
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import fencing, operating
from django_taskclaim.querysets.assignments import Assignments, pass_on
from django_taskclaim.querysets.claiming import checked_name
from django_taskclaim.querysets.everyone import everyones_stop
from django_taskclaim.querysets.fleet import Refusal, refused_now
from django_taskclaim.querysets.limits import without_room
from django_taskclaim.querysets.losses import raise_unless_all
from django_taskclaim.querysets.operators import OperatorVerbs
from django_taskclaim.querysets.scope import (
    Desk,
    in_policy_order,
    on_claim_table,
    refuse_unclaimable,
)
from django_taskclaim.querysets.telling import tell
from django_taskclaim.signals import rows_handed_over
from django_taskclaim.states import Status
from django_taskclaim.switch_reading import scopes_over

M = TypeVar("M", bound=models.Model)

Lease = float | timedelta | None


class WhyEmpty(NamedTuple):
    """Why somebody who asks for rows gets none; its ``str()`` says so in a sentence, in the active language."""

    #: The switch is off. Nothing was counted then.
    paused: bool = False
    #: How many rows others hold, and when the first of their leases ends, which may have passed.
    held: int = 0
    next_free: datetime | None = None
    #: How many open rows are not due yet, and when the first one is.
    waiting: int = 0
    next_due: datetime | None = None
    #: How many are open and due: freed since, or locked at that moment.
    ready: int = 0
    #: How many more of those would be, but for a limit per key that others have used up.
    limited: int = 0
    #: Why nobody claims for a while, and until when. Nothing was counted then.
    throttled: str = ""
    throttled_until: datetime | None = None
    #: The hours outside of which nobody claims, and when they begin. Nothing was counted then.
    hours: str = ""
    opens: datetime | None = None
    #: How many more would be ready, but for what holds for all together, ``rate`` or ``max_running``; what that is, and
    #: when it lets the next one be claimed, where that can be told.
    kept_back: int = 0
    kept_back_by: str = ""
    limit: str = ""
    next_allowed: datetime | None = None

    def __str__(self) -> str:
        if self.paused:
            return _("paused")
        if self.throttled_until is not None:
            facts = {"time": clock_time(self.throttled_until), "reason": self.throttled}
            return _("throttled until %(time)s: %(reason)s") % facts
        if self.opens is not None:
            facts = {"time": clock_time(self.opens), "hours": self.hours}
            return _("outside the hours %(hours)s, next %(time)s") % facts
        parts = [
            self._kept_back(),
            _("%(number)s just freed, ask again") % {"number": number(self.ready)},
            self._held(),
            self._waiting(),
            _("%(number)s kept back by a limit per key") % {"number": number(self.limited)},
        ]
        counts = (self.kept_back, self.ready, self.held, self.waiting, self.limited)
        told = [part for part, count in zip(parts, counts, strict=True) if count]
        return "; ".join(told) or _("nothing is left")

    def _kept_back(self) -> str:
        facts = {"number": number(self.kept_back), "limit": self.limit}
        if self.next_allowed is None:
            return _("%(number)s kept back, for no more than %(limit)s may run at once") % facts
        facts["time"] = clock_time(self.next_allowed)
        return _("%(number)s kept back by the rate %(limit)s, next %(time)s") % facts

    def _held(self) -> str:
        told = _("%(number)s held by others") % {"number": number(self.held)}
        if self.next_free is None:
            return told
        return _("%(rows)s, next free %(time)s") % {
            "rows": told,
            "time": clock_time(self.next_free),
        }

    def _waiting(self) -> str:
        told = _("%(number)s waiting") % {"number": number(self.waiting)}
        if self.next_due is None:
            return told
        return _("%(rows)s, next due %(time)s") % {"rows": told, "time": clock_time(self.next_due)}


class PeopleVerbs(OperatorVerbs[M]):
    """Passing claims from one holder to another, and looking at them."""

    if TYPE_CHECKING:
        # Of ClaimQuerySet.
        def _claimed_by(self, holders: Collection[str]) -> list[M]: ...
        def renew(self, rows: M | Iterable[M], lease: Lease = None) -> int: ...

    def holdings(self, who: str, *, lease: Lease = None) -> list[M]:
        """Return the rows that *who* holds, in the order of claims, each carrying its claim; none is claimed.

        With *lease* they are renewed as ``renew`` does, and rows lost in that moment are left out.
        """
        ordered: Any = in_policy_order(self)
        if not ordered.query.order_by:
            ordered = ordered.order_by(*claim_columns(self.model).order)
        rows: list[M] = ordered._claimed_by([who])
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
        holder = checked_name(to, "to")
        duration = None if lease is None else conf.positive_duration(lease, "lease")
        given = fencing.as_rows(rows)
        carrying, _ = fencing.carrying(given)
        written: list[M] = fencing.write_held(carrying, _passed_to(holder, duration))
        fencing.end(written)
        for row in written:
            _show_passed(row, holder)
        tell(rows_handed_over, written, to=holder)
        raise_unless_all(given, written)
        return len(written)

    def take_over(self, *, by: str, reason: str, lease: Lease = None) -> int:
        """Let *by* hold the rows of this queryset that others hold, and return how many; those lose them.

        An operator's act, which needs no token and is recorded with its *reason* where the control app is installed.
        Rows that *by* holds already stay as they are, open and finished ones too; a row that somebody has locked is
        left alone. ``holdings(by)`` then returns them with their claims. *lease* is as for ``hand_over``.
        """
        holder = checked_name(by, "by")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError("take_over() needs a reason, for whoever loses the rows.")
        duration = _duration(self.model, lease)
        self._for_write = True
        return operating.take_over(self, holder, reason.strip(), duration)

    def why_empty(self, who: str = "") -> WhyEmpty:
        """Say why *who* gets no rows of this queryset; for an answer that was empty, since it counts rows.

        ``str()`` of it reads ``3 held by others, next free 14:20``.
        """
        refuse_unclaimable(self)
        self._for_write = True
        if self.query.is_empty():
            return WhyEmpty()
        desk = Desk.of(self.model, self.db)
        if _is_paused(desk):
            return WhyEmpty(paused=True)
        if (stop := everyones_stop(self.model, desk.alias)) is not None:
            return WhyEmpty(throttled=stop.reason, throttled_until=as_utc(stop.until))
        refusal = refused_now(desk)
        if refusal is not None and refusal.option == "hours":
            return WhyEmpty(hours=str(refusal.terms.hours), opens=refusal.until)
        columns = desk.columns
        states = Q(**{f"{columns.status.name}__in": [Status.OPEN, Status.PROCESSING]})
        rows = on_claim_table(self, desk).filter(states)
        found = WhyEmpty(**rows.aggregate(**_counts(desk, who, without_room(desk))))
        return found if refusal is None else _kept_back(found, refusal)

    # Async twins

    async def aholdings(self, who: str, *, lease: Lease = None) -> list[M]:
        """``holdings`` for async code."""
        return await sync_to_async(self.holdings)(who, lease=lease)

    async def ahand_over(self, rows: M | Iterable[M], *, to: str, lease: Lease = None) -> int:
        """``hand_over`` for async code."""
        return await sync_to_async(self.hand_over)(rows, to=to, lease=lease)

    async def atake_over(self, *, by: str, reason: str, lease: Lease = None) -> int:
        """``take_over`` for async code."""
        return await sync_to_async(self.take_over)(by=by, reason=reason, lease=lease)

    async def awhy_empty(self, who: str = "") -> WhyEmpty:
        """``why_empty`` for async code."""
        return await sync_to_async(self.why_empty)(who)


def _kept_back(found: WhyEmpty, refusal: Refusal) -> WhyEmpty:
    return found._replace(
        ready=0,
        kept_back=found.ready,
        kept_back_by=refusal.option,
        limit=str(getattr(refusal.terms, refusal.option)),
        next_allowed=refusal.until,
    )


def _duration(model: type[models.Model], lease: Lease) -> timedelta:
    return policy_for(model).lease if lease is None else conf.positive_duration(lease, "lease")


def _passed_to(holder: str, lease: timedelta | None) -> Assignments:
    def assignments(desk: Desk, rows: Any) -> list[SQL]:
        return pass_on(desk, holder, lease or policy_for(desk.model).lease)

    return assignments


def _show_passed(row: models.Model, holder: str) -> None:
    columns = claim_columns(type(row))
    unknown = (columns.claimed_at, columns.expires_at, columns.iteration)
    show([row], {columns.claimed_by: holder, **dict.fromkeys(unknown, models.DEFERRED)})


def _is_paused(desk: Desk) -> bool:
    is_on = desk.dialect.switch_is_on(scopes_over(desk.model))
    ((on,),) = desk.dialect.fetch(sql("SELECT CASE WHEN {} THEN 1 ELSE 0 END", is_on))
    return not on


def _counts(desk: Desk, who: str, limited: Q) -> dict[str, Any]:
    """Return what ``WhyEmpty`` holds, as aggregates over open and running rows."""
    columns = desk.columns
    status = columns.status.name
    is_open = Q(**{status: Status.OPEN})
    held = Q(**{status: Status.PROCESSING}) & ~Q(**{columns.claimed_by.name: who})
    counts: dict[str, Any] = {
        "held": Count(status, filter=held),
        "next_free": Min(columns.expires_at.name, filter=held),
    }
    due = is_open
    if columns.not_before is not None:
        due &= Q(**{f"{columns.not_before.name}__lte": DatabaseNow()})
    counts["ready"] = Count(status, filter=due & ~limited if limited else due)
    if limited:
        counts["limited"] = Count(status, filter=due & limited)
    if columns.not_before is None:
        return counts
    later = is_open & Q(**{f"{columns.not_before.name}__gt": DatabaseNow()})
    return counts | {
        "waiting": Count(status, filter=later),
        "next_due": Min(
            columns.not_before.name, filter=later & ~Q(**{columns.not_before.name: UNSETTLED})
        ),
    }
