"""What every worker process does for the control page: obeys commands, and writes what it gets done."""

import random
from datetime import datetime, timedelta
from typing import Any

from django.db import connections

from django_taskclaim.claim import clock
from django_taskclaim.control import keeping
from django_taskclaim.control.installed import is_on
from django_taskclaim.control.models import WorkerCommand
from django_taskclaim.control.throughput import Roll
from django_taskclaim.db import DatabaseNow, dialect_for
from django_taskclaim.worker import heartbeat
from django_taskclaim.worker.records import logger
from django_taskclaim.worker.service import Service

#: Seconds between two looks for commands, while rows are held and while none are; five are promised.
LOOK_BUSY, LOOK_IDLE = 2.5, 4.7
#: Seconds between two rounds of writing what was done, if anything was.
WRITE_EVERY = 5.0


def follower(service: Service) -> "Follower | None":
    """Return what follows the control page in one worker process; None where its tables are not."""
    return Follower(service) if is_on(service.options.using) else None


class Follower:
    """One for each process, called by its service thread on that thread's connection."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.using = service.options.using
        self.process = heartbeat.process_name(service.options)
        self.models = [handler.model for handler in service.handlers]
        self.roll = Roll(self.process, self.using)
        self._began = clock()
        self._looked = self._write_at = float("-inf")
        self._pause = random.uniform(0.95, 1.0)
        #: The database's time when ``clock()`` was at ``_began``; known from the first look on.
        self._began_at: datetime | None = None
        self._throttled: set[Any] = set()

    def turn(self, *, busy: bool) -> bool:
        """Look, and write, each when it is due."""
        asked = False
        if self._is_time_to_look(busy=busy):
            self._look()
            asked = True
        if clock() >= self._write_at:
            self._write_at = clock() + random.uniform(0.8, 1.0) * WRITE_EVERY
            asked |= self._write()
        return asked

    def leave(self) -> bool:
        """Write what is left."""
        return self._write()

    def prune(self) -> bool:
        """Delete a piece of what is too old, see ``keeping``."""
        return keeping.prune(self.using)

    # Commands

    def _is_time_to_look(self, *, busy: bool) -> bool:
        """Say so soon after work has begun, too, and not only when an idle process would have looked again."""
        if clock() < self._looked + self._pause * (LOOK_BUSY if busy else LOOK_IDLE):
            return False
        self._looked, self._pause = clock(), random.uniform(0.95, 1.0)
        return True

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
        if self._began_at is None:
            return False
        now = self._began_at + timedelta(seconds=clock() - self._began)
        self.roll.add(self.service.counters.take(), now)
        self._note_stops(now)
        sent = self.roll.write(now)
        return bool(sent)

    def _note_stops(self, now: datetime) -> None:
        for model in self.models:
            reason = self.service.throttles.reason_for(model)
            if reason and model not in self._throttled:
                self.roll.note_stop(model, reason, now)
            (self._throttled.add if reason else self._throttled.discard)(model)


def _drain(service: Service) -> None:
    service.drain_asked.set()
    service.inflight.wake()


def _stop(service: Service) -> None:
    service.stop_asked.set()


def _release(service: Service) -> None:
    service.inflight.put_back()


_DOING = {"drain": _drain, "stop": _stop, "release": _release}
