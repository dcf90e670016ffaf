"""What the control page and the admin read of the control app's tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import models

from django_taskclaim import conf
from django_taskclaim.control.models import ClaimEvent, OperatorAct, ThroughputMinute, is_on
from django_taskclaim.fields import as_utc
from django_taskclaim.tables import EVERY_MODEL, scope_of
from django_taskclaim.worker.counters import Counts

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
#: What is older than AGE_OF_MINUTES is kept, and shown, in slots as long as this.
TEN_MINUTES = timedelta(minutes=10)
AGE_OF_MINUTES = timedelta(hours=1)


@dataclass(slots=True)
class Slot:
    """What all workers got done of one model in one minute, or in ten, or in an hour."""

    at: datetime
    #: How long it is, or has been so far.
    seconds: float
    #: As ``worker.counters`` names them.
    counts: Counts = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Rows completed a second."""
        return self.counts["done"] / self.seconds

    @property
    def tries(self) -> int:
        """How many tries of rows ended."""
        return self.counts["done"] + self.counts["errors"]

    @property
    def failing(self) -> float:
        """The share of ``failed`` among the rows that came to their end."""
        failed = self.counts["failed"]
        return failed / (self.counts["done"] + failed) if failed else 0.0


def minutes(*of: type[models.Model], using: str, since: datetime) -> list[ThroughputMinute]:
    """Return the minutes of these models that worker processes have written since then, oldest first."""
    rows = ThroughputMinute.objects.using(using).filter(model__in=map(scope_of, of))
    return list(rows.filter(at__gte=slot_start(since, HOUR)).order_by("at", "id"))


def slots(written: Sequence[ThroughputMinute], now: datetime, span: timedelta) -> list[Slot]:
    """Return the throughput of the last *span* without gaps, oldest first: by minutes, ten minutes or hours."""
    width = MINUTE if span <= AGE_OF_MINUTES else TEN_MINUTES if span <= DAY else HOUR
    last = slot_start(now, width)
    found: dict[datetime, Slot] = {}
    for ago in reversed(range(span // width)):
        at = last - ago * width
        # The last slot is not over.
        length = min(width, max(now - at, timedelta(seconds=1)))
        found[at] = Slot(at, length.total_seconds())
    for row in written:
        if slot := found.get(slot_start(as_utc(row.at), width)):
            slot.counts.update(row.counts)
    return list(found.values())


def slot_start(moment: datetime, width: timedelta) -> datetime:
    """Return the beginning of the slot that contains a moment."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return moment - (moment - epoch) % width


def acts(model: type[models.Model], *, using: str, limit: int = 20) -> list[OperatorAct]:
    """Return the latest acts on *model*, and on all models, newest first."""
    found = OperatorAct.objects.using(using).filter(model__in=[scope_of(model), EVERY_MODEL])
    return list(found.order_by("-id")[:limit])


def known_failures(model: type[models.Model], *, using: str) -> dict[str, OperatorAct]:
    """Return the notes of the groups of failures that are marked as known, by the ``Group.id`` of the group."""
    marks = OperatorAct.objects.using(using).filter(model=scope_of(model), act="mark as known")
    return {mark.key.partition(" ")[0]: mark for mark in marks.order_by("id")}


def is_named(model: Any) -> bool:
    """Say whether all that happens to rows of *model* is kept."""
    return scope_of(model) in {str(label).lower() for label in conf.setting("HISTORY")}


def history(
    row_model: type[models.Model], pk: object, *, using: str, limit: int = 100
) -> list[ClaimEvent]:
    """Return the latest events of one row, oldest first: all, or its failures alone."""
    if not is_on(using):
        return []
    events = ClaimEvent.objects.using(using).filter(model=scope_of(row_model), key=str(pk)[:255])
    return list(reversed(events.order_by("-id")[:limit]))
