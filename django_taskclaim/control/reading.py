"""What the control page and the admin read of the control app's tables."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import models

from django_taskclaim import conf
from django_taskclaim.control.models import ClaimEvent, OperatorAct, ThroughputMinute, is_on
from django_taskclaim.fields import as_utc
from django_taskclaim.tables import EVERY_MODEL, WorkerProcess, scope_of
from django_taskclaim.worker.counters import quantile, unpacked

MINUTE = timedelta(minutes=1)
#: What is older than AGE_OF_MINUTES is kept, and shown, in slots as long as this.
TEN_MINUTES = timedelta(minutes=10)
AGE_OF_MINUTES = timedelta(hours=1)

#: The rate of a process is averaged over so long, and up to a minute more.
LATELY = timedelta(minutes=4)
#: … and over so long at least: a process writes about as often.
LEAST = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Slot:
    """What all workers got done of one model in one minute, or ten."""

    at: datetime
    #: Rows completed, and rows that ended in ``failed``.
    done: int
    failed: int
    #: Rows completed a second.
    rate: float
    #: How long half of all batches, and 95 of 100, took at most, in seconds; None where no batch ended.
    p50: float | None
    p95: float | None
    #: Tries that failed, put back or not.
    errors: int = 0

    @property
    def tries(self) -> int:
        """How many tries of rows ended."""
        return self.done + self.errors

    @property
    def failing(self) -> float:
        """The share of ``failed`` among the rows that came to their end."""
        return self.failed / (self.done + self.failed) if self.failed else 0.0


def minutes(model: type[models.Model], *, using: str, since: datetime) -> list[ThroughputMinute]:
    """Return the minutes that worker processes have written since then, oldest first."""
    rows = ThroughputMinute.objects.using(using).filter(
        model=scope_of(model), at__gte=slot_start(since, TEN_MINUTES)
    )
    return list(rows.order_by("at", "id"))


def slots(written: Sequence[ThroughputMinute], now: datetime, span: timedelta) -> list[Slot]:
    """Return the throughput of the last *span* without gaps, oldest first: by minutes up to an hour, else by ten."""
    width = MINUTE if span <= AGE_OF_MINUTES else TEN_MINUTES
    rows: dict[datetime, list[ThroughputMinute]] = {}
    for row in written:
        rows.setdefault(slot_start(as_utc(row.at), width), []).append(row)
    return [_slot(at, rows.get(at, []), width, now) for at in _starts(now, span, width)]


def rates(
    written: Sequence[ThroughputMinute], living: Iterable[WorkerProcess], now: datetime
) -> dict[str, float]:
    """Return rows a second of each living process over the last minutes, or since it began."""
    since = slot_start(now - LATELY, MINUTE)
    done: Counter[str] = Counter()
    for row in written:
        if as_utc(row.at) >= since:
            done[row.process] += row.done
    return {
        worker.name: done[worker.name]
        / max(LEAST, now - max(since, as_utc(worker.started_at))).total_seconds()
        for worker in living
    }


def slot_start(moment: datetime, width: timedelta) -> datetime:
    """Return the beginning of the slot that contains a moment."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return moment - (moment - epoch) % width


def _starts(now: datetime, span: timedelta, width: timedelta) -> Iterator[datetime]:
    """Yield the beginnings of the slots of a span; the last one is the current slot."""
    at = slot_start(now, width) - (span // width - 1) * width
    while at <= now:
        yield at
        at += width


def _slot(at: datetime, rows: list[ThroughputMinute], width: timedelta, now: datetime) -> Slot:
    durations: Counter[int] = Counter()
    for row in rows:
        durations.update(unpacked(row.durations))
    done = sum(row.done for row in rows)
    # The current slot is not over.
    seconds = min(width, max(now - at, timedelta(seconds=1))).total_seconds()
    return Slot(
        at=at,
        done=done,
        failed=sum(row.failed for row in rows),
        rate=done / seconds,
        p50=quantile(durations, 0.5),
        p95=quantile(durations, 0.95),
        errors=sum(row.errors for row in rows),
    )


def acts(model: type[models.Model], *, using: str, limit: int = 20) -> list[OperatorAct]:
    """Return the latest acts on *model*, and on all models, newest first."""
    if not is_on(using):
        return []
    found = OperatorAct.objects.using(using).filter(model__in=[scope_of(model), EVERY_MODEL])
    return list(found.order_by("-id")[:limit])


def is_kept(model: Any, using: str) -> bool:
    """Say whether the history of rows of *model* is switched on, and can be written on that database."""
    named = {str(label).lower() for label in conf.setting("HISTORY")}
    return scope_of(model) in named and is_on(using)


def history(
    row_model: type[models.Model], pk: object, *, using: str, limit: int = 100
) -> list[ClaimEvent]:
    """Return the latest events of one row, oldest first; empty where the model's history is not switched on."""
    if not is_on(using):
        return []
    events = ClaimEvent.objects.using(using).filter(model=scope_of(row_model), key=str(pk)[:255])
    return list(reversed(events.order_by("-id")[:limit]))
