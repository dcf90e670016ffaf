"""How long this app keeps what it writes: old minutes are taken together, and what is too old is deleted, in pieces."""

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import connections

from django_taskclaim import conf
from django_taskclaim.control.models import ClaimEvent, OperatorAct, ThroughputMinute, WorkerCommand
from django_taskclaim.control.reading import AGE_OF_MINUTES, TEN_MINUTES, slot_start
from django_taskclaim.db import DatabaseLater, dialect_for
from django_taskclaim.fields import as_utc
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.tables import SILENCE_KEPT
from django_taskclaim.worker.counters import packed, unpacked

#: The tables whose rows are kept as long as the setting RETENTION says.
KEPT = (OperatorAct, ClaimEvent, ThroughputMinute)

#: The columns of a minute that add up.
COUNTS = ("done", "failed", "errors")


def prune(using: str) -> bool:
    """Delete a piece of what is too old and take a piece of old minutes together; True if that was all there was."""
    chunk = int(conf.setting("CHUNK_SIZE"))
    left = [forget(table, conf.duration("RETENTION"), using, chunk) for table in KEPT]
    left.append(forget(WorkerCommand, SILENCE_KEPT, using, chunk))
    return compact(using, chunk) and all(left)


def forget(table: Any, age: timedelta, using: str, chunk: int) -> bool:
    """Delete up to *chunk* rows older than *age*, and say whether that was all of them."""
    rows = table.objects.using(using)
    # By key, which grows with time, so that no index is needed for it.
    oldest = list(rows.order_by("pk").values_list("pk", flat=True)[:chunk])
    if not oldest:
        return True
    past = rows.filter(pk__lte=oldest[-1], at__lt=DatabaseLater(-age))
    return int(past._raw_delete(using)) < chunk


def compact(using: str, chunk: int) -> bool:
    """Take up to *chunk* old minutes of single processes together in ten minutes of all; True if that was all."""
    dialect = dialect_for(connections[using])
    before = slot_start(database_time(using) - AGE_OF_MINUTES, TEN_MINUTES)
    rows = ThroughputMinute.objects.using(using)
    # Another process may be at it; the leases of this one do not wait for that.
    with dialect.own_transaction(), dialect.limit_lock_wait(1):
        old = rows.filter(at__lt=before).exclude(process="")
        minutes = list(old.select_for_update().order_by("at", "id")[:chunk])
        together: dict[Any, list[ThroughputMinute]] = {}
        for minute in minutes:
            place = minute.model, slot_start(as_utc(minute.at), TEN_MINUTES)
            together.setdefault(place, []).append(minute)
        for (model, at), same in together.items():
            kept = rows.select_for_update().filter(model=model, at=at, process="").first()
            slot = kept or ThroughputMinute(model=model, at=at)
            _take_in(slot, same)
            slot.save(using=using)
        rows.filter(pk__in=[minute.pk for minute in minutes])._raw_delete(using)
    return len(minutes) < chunk


def _take_in(slot: ThroughputMinute, minutes: Iterable[ThroughputMinute]) -> None:
    durations: Counter[int] = unpacked(slot.durations)
    for minute in minutes:
        durations.update(unpacked(minute.durations))
        for name in COUNTS:
            setattr(slot, name, getattr(slot, name) + getattr(minute, name))
        slot.stopped = slot.stopped or minute.stopped
    slot.durations = packed(durations)
