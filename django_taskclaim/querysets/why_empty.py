"""Why somebody gets no rows: a sentence for people, from counts."""

from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count, Min, Q
from django.utils.translation import gettext as _

from django_taskclaim.db.sql import sql
from django_taskclaim.fields import OPEN_ENDED, as_utc
from django_taskclaim.formatting import format_clock_time, format_number
from django_taskclaim.limits.grant import Refusal, refused_now
from django_taskclaim.limits.key_limits import without_room
from django_taskclaim.querysets.everyone import everyones_stop
from django_taskclaim.querysets.scope import (
    ClaimTarget,
    Rows,
    due_condition,
    is_open,
    on_claim_table,
    refuse_unclaimable,
    waits,
)
from django_taskclaim.states import Status
from django_taskclaim.tables import scopes_over


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
    #: when it lets the next one be claimed, where that is known.
    kept_back: int = 0
    kept_back_by: str = ""
    limit: str = ""
    next_allowed: datetime | None = None

    def __str__(self) -> str:
        if self.paused:
            return _("paused")
        if self.throttled_until is not None:
            facts = {"time": format_clock_time(self.throttled_until), "reason": self.throttled}
            return _("throttled until %(time)s: %(reason)s") % facts
        if self.opens is not None:
            facts = {"time": format_clock_time(self.opens), "hours": self.hours}
            return _("outside the hours %(hours)s, next %(time)s") % facts
        parts = [
            self._kept_back(),
            _("%(number)s just freed, ask again") % {"number": format_number(self.ready)},
            self._held(),
            self._waiting(),
            _("%(number)s kept back by a limit per key") % {"number": format_number(self.limited)},
        ]
        counts = (self.kept_back, self.ready, self.held, self.waiting, self.limited)
        text = [part for part, count in zip(parts, counts, strict=True) if count]
        return "; ".join(text) or _("nothing is left")

    def _kept_back(self) -> str:
        facts = {"number": format_number(self.kept_back), "limit": self.limit}
        if self.next_allowed is None:
            return _("%(number)s kept back, for no more than %(limit)s may run at once") % facts
        facts["time"] = format_clock_time(self.next_allowed)
        return _("%(number)s kept back by the rate %(limit)s, next %(time)s") % facts

    def _held(self) -> str:
        text = _("%(number)s held by others") % {"number": format_number(self.held)}
        if self.next_free is None:
            return text
        return _("%(rows)s, next free %(time)s") % {
            "rows": text,
            "time": format_clock_time(self.next_free),
        }

    def _waiting(self) -> str:
        text = _("%(number)s waiting") % {"number": format_number(self.waiting)}
        if self.next_due is None:
            return text
        return _("%(rows)s, next due %(time)s") % {
            "rows": text,
            "time": format_clock_time(self.next_due),
        }


def why_empty(queryset: Rows, who: str) -> WhyEmpty:
    """Say why *who* gets no rows of *queryset*; see ``ClaimQuerySet.why_empty``."""
    refuse_unclaimable(queryset)
    if queryset.query.is_empty():
        return WhyEmpty()
    target = ClaimTarget.of(queryset.model, queryset.db)
    if _is_paused(target):
        return WhyEmpty(paused=True)
    if (stop := everyones_stop(queryset.model, target.alias)) is not None:
        return WhyEmpty(throttled=stop.reason, throttled_until=as_utc(stop.until))
    refusal = refused_now(target)
    if refusal is not None and refusal.option == "hours":
        return WhyEmpty(hours=str(refusal.limits.hours), opens=refusal.until)
    columns = target.columns
    states = Q(**{f"{columns.status.name}__in": [Status.OPEN, Status.PROCESSING]})
    rows = on_claim_table(queryset, target).filter(states)
    found = WhyEmpty(**rows.aggregate(**_counts(target, who, without_room(target))))
    return found if refusal is None else _kept_back(found, refusal)


def _kept_back(found: WhyEmpty, refusal: Refusal) -> WhyEmpty:
    return found._replace(
        ready=0,
        kept_back=found.ready,
        kept_back_by=refusal.option,
        limit=str(getattr(refusal.limits, refusal.option)),
        next_allowed=refusal.until,
    )


def _is_paused(target: ClaimTarget) -> bool:
    is_on = target.dialect.switch_is_on(scopes_over(target.model))
    ((on,),) = target.dialect.fetch(sql("SELECT CASE WHEN {} THEN 1 ELSE 0 END", is_on))
    return not on


def _counts(target: ClaimTarget, who: str, limited: Q) -> dict[str, Any]:
    """Return what ``WhyEmpty`` holds, as aggregates over open and running rows."""
    columns = target.columns
    status = columns.status.name
    held = Q(**{status: Status.PROCESSING}) & ~Q(**{columns.claimed_by.name: who})
    counts: dict[str, Any] = {
        "held": Count(status, filter=held),
        "next_free": Min(columns.expires_at.name, filter=held),
    }
    due = is_open(columns) & due_condition(target.model)
    counts["ready"] = Count(status, filter=due & ~limited if limited else due)
    if limited:
        counts["limited"] = Count(status, filter=due & limited)
    if columns.not_before is None:
        return counts
    later = is_open(columns) & waits(target.model)
    return counts | {
        "waiting": Count(status, filter=later),
        "next_due": Min(
            columns.not_before.name, filter=later & ~Q(**{columns.not_before.name: OPEN_ENDED})
        ),
    }
