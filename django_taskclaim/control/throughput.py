"""The roll-up that each worker process writes of what it gets done: a row a minute and model, however many rows."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django_taskclaim.control.audit import storable
from django_taskclaim.control.models import ThroughputMinute
from django_taskclaim.control.reading import MINUTE, slot_start
from django_taskclaim.tables import scope_of
from django_taskclaim.worker.counters import Counts, packed


@dataclass(slots=True)
class _Slot:
    """One minute of one model; what is stored of it is older while it is *unwritten*."""

    counts: Counts = field(default_factory=Counts)
    stopped: str = ""
    unwritten: bool = True


class Roll:
    """What one process writes, for one thread. Totals are written, so a statement that was sent twice does no harm."""

    def __init__(self, process: str, using: str) -> None:
        self.process = process
        self.using = using
        #: A process may have the name of one that is no more, and must not write over its rows.
        self.run = secrets.token_hex(8)
        self._slots: dict[tuple[str, datetime], _Slot] = {}

    def add(self, counts: Mapping[Any, Counts], now: datetime) -> None:
        """Count what came to its end since the last time, by model, for the minute of *now*."""
        for model, one in counts.items():
            self._slot(model, now).counts.add(one)

    def note_stop(self, model: object, reason: str, now: datetime) -> None:
        """Remember that a throttle began to stop claims."""
        self._slot(model, now).stopped = reason

    def _slot(self, model: Any, now: datetime) -> _Slot:
        slot = self._slots.setdefault((scope_of(model), slot_start(now, MINUTE)), _Slot())
        slot.unwritten = True
        return slot

    def write(self, now: datetime) -> int:
        """Store what has changed, and return how many statements that took; 0 where nothing was done."""
        sent = 0
        for place, slot in list(self._slots.items()):
            if slot.unwritten:
                sent += self._write(place, slot)
                slot.unwritten = False
            if place[1] < slot_start(now, MINUTE):
                # What is counted from now on belongs to another minute.
                del self._slots[place]
        return sent

    def _write(self, place: tuple[str, datetime], slot: _Slot) -> int:
        counts = slot.counts
        facts: dict[str, Any] = {
            "done": counts.done,
            "failed": counts.failed,
            "errors": counts.errors,
            "batches": counts.batches,
            "seconds": counts.seconds,
            "durations": packed(counts.durations),
            "stopped": storable(slot.stopped, 500),
        }
        rows = ThroughputMinute.objects.using(self.using)
        which: dict[str, Any] = {
            "model": place[0],
            "at": place[1],
            "process": self.process,
            "run": self.run,
        }
        if rows.filter(**which).update(**facts):
            return 1
        rows.create(**which, **facts)
        return 2
