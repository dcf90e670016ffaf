"""What every worker process does for the control page: it obeys commands, and writes what it gets done.

What it has done is a row for each minute and model, however many rows of the model there were.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
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
from django_taskclaim.worker.service import Duty, Service, pruning

#: Seconds between two looks for commands; five are promised.
LOOK_EVERY = 3.5
#: Seconds between two rounds of writing what was done, if anything was.
WRITE_EVERY = 5.0


@dataclass(slots=True)
class _Minute:
    """What was done of one model in one minute; what is stored of it is older while it is *unwritten*."""

    counts: Counts = field(default_factory=Counts)
    stopped: str = ""
    unwritten: bool = True


def duties(service: Service) -> list[Duty]:
    """Return what one worker process does for the control page; nothing where the tables are not."""
    if not is_on(service.options.using):
        return []
    poller = Poller(service)
    return [
        Duty("looking for commands", poller.look, LOOK_EVERY),
        Duty("writing what was done", poller.write, WRITE_EVERY, at_end=True),
        pruning("deleting what is old on the control page", partial(keeping.prune, poller.using)),
    ]


class Poller:
    """One for each process."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.using = service.options.using
        self.process = service.process
        #: A process may have the name of one that is no more, and must not write over its rows.
        self.run = secrets.token_hex(8)
        self._began = clock()
        #: The database's time when ``clock()`` was at ``_began``; known from the first look on.
        self._began_at: datetime | None = None
        self._throttled: set[Any] = set()
        self._minutes: dict[tuple[str, datetime], _Minute] = {}

    # Commands

    def look(self) -> bool:
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
        return True

    # Throughput

    def write(self) -> bool:
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
