"""What every worker process does for the control page: it obeys commands, and writes what it gets done.

What it has done is a row for each minute and model, however many rows of the model there were.
"""

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connections

from django_taskclaim.claim import clock
from django_taskclaim.control import keeping
from django_taskclaim.control.audit import storable
from django_taskclaim.control.models import ThroughputMinute, WorkerCommand, is_on
from django_taskclaim.control.reading import MINUTE, slot_start
from django_taskclaim.db import DatabaseNow, dialect_for
from django_taskclaim.tables import scope_of
from django_taskclaim.worker.counters import Counts, packed
from django_taskclaim.worker.records import logger
from django_taskclaim.worker.service import Service

#: Seconds between two looks for commands, while rows are held and while none are; five are promised.
LOOK_BUSY, LOOK_IDLE = 2.5, 4.7
#: Seconds between two rounds of writing what was done, if anything was.
WRITE_EVERY = 5.0


@dataclass(slots=True)
class _Minute:
    """What was done of one model in one minute; what is stored of it is older while it is *unwritten*."""

    counts: Counts = field(default_factory=Counts)
    stopped: str = ""
    unwritten: bool = True


def poller(service: Service) -> "Poller | None":
    """Return what polls in one worker process; None where the tables are not."""
    return Poller(service) if is_on(service.options.using) else None


class Poller:
    """One for each process, called by its service thread on that thread's connection."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.using = service.options.using
        self.process = service.process
        #: A process may have the name of one that is no more, and must not write over its rows.
        self.run = secrets.token_hex(8)
        self._began = clock()
        self._looked = self._wrote = float("-inf")
        #: So that processes which began together do not ask together.
        self._pace = random.uniform(0.9, 1.0)
        #: The database's time when ``clock()`` was at ``_began``; known from the first look on.
        self._began_at: datetime | None = None
        self._throttled: set[Any] = set()
        self._minutes: dict[tuple[str, datetime], _Minute] = {}

    def turn(self, *, busy: bool) -> bool:
        """Look, and write, each when it is due."""
        asked = False
        # Soon after work has begun, too, and not only when an idle process would have looked again.
        if clock() >= self._looked + self._pace * (LOOK_BUSY if busy else LOOK_IDLE):
            self._looked = clock()
            self._look()
            asked = True
        if clock() >= self._wrote + self._pace * WRITE_EVERY:
            self._wrote = clock()
            asked |= self._write()
        return asked

    def leave(self) -> bool:
        """Write what is left."""
        return self._write()

    def prune(self) -> bool:
        """Delete a piece of what is too old, see ``keeping``."""
        return keeping.prune(self.using)

    # Commands

    def _look(self) -> None:
        """Do what a person has told this process since it began, by the database's clock."""
        if self._began_at is None:
            lived = timedelta(seconds=clock() - self._began)
            self._began_at = dialect_for(connections[self.using]).current_time() - lived
        # Those of before were given to a process of the same name that is no more.
        commands = WorkerCommand.objects.using(self.using).filter(
            worker=self.process, done_at=None, at__gte=self._began_at
        )
        for command in commands.order_by("id"):
            _DOING[command.command](self.service)
            logger.info(
                "%s: %s sent the command to %s",
                *(self.service.options.name, command.by, command.command),
                extra={"event": "command", "command": command.command, "by": command.by},
            )
            commands.filter(pk=command.pk).update(done_at=DatabaseNow())

    # Throughput

    def _write(self) -> bool:
        """Store what has changed, and say whether anything has."""
        if self._began_at is None:
            return False
        minute = slot_start(self._began_at + timedelta(seconds=clock() - self._began), MINUTE)
        for model, counts in self.service.counters.take().items():
            self._of(model, minute).counts.add(counts)
        self._note_stops(minute)
        written = False
        for place, one in list(self._minutes.items()):
            if one.unwritten:
                self._store(*place, one)
                one.unwritten, written = False, True
            if place[1] < minute:
                # What is counted from now on belongs to another minute.
                del self._minutes[place]
        return written

    def _of(self, model: Any, minute: datetime) -> _Minute:
        one = self._minutes.setdefault((scope_of(model), minute), _Minute())
        one.unwritten = True
        return one

    def _note_stops(self, minute: datetime) -> None:
        for model in {handler.model for handler in self.service.handlers}:
            reason = self.service.throttles.reason_for(model)
            if reason and model not in self._throttled:
                self._of(model, minute).stopped = reason
            (self._throttled.add if reason else self._throttled.discard)(model)

    def _store(self, model: str, at: datetime, one: _Minute) -> None:
        """Write totals, so that a statement that was sent twice does no harm."""
        counts = one.counts
        facts: dict[str, Any] = {
            **{name: getattr(counts, name) for name in keeping.COUNTS},
            "durations": packed(counts.durations),
            "stopped": storable(one.stopped, 500),
        }
        which: dict[str, Any] = {"model": model, "at": at, "process": self.process, "run": self.run}
        rows = ThroughputMinute.objects.using(self.using)
        if not rows.filter(**which).update(**facts):
            rows.create(**which, **facts)


def _drain(service: Service) -> None:
    service.drain_asked.set()
    service.inflight.wake()


#: What each of the commands does in the process that it was given to.
_DOING: dict[str, Callable[[Service], object]] = {
    "drain": _drain,
    "stop": lambda service: service.stop_asked.set(),
    "release": lambda service: service.inflight.put_back(),
}
