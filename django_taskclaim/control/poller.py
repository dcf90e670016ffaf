"""What every worker process does for the control page: it obeys commands, writes what it gets done, and prunes.

What it has done is a row for each minute and model, however many rows of the model there were.
"""

import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.db import connections, models

from django_taskclaim import conf
from django_taskclaim.control.models import ClaimEvent, OperatorAct, ThroughputMinute, is_on
from django_taskclaim.control.reading import AGE_OF_MINUTES, MINUTE, TEN_MINUTES, slot_start
from django_taskclaim.db import DatabaseLater, dialect_for
from django_taskclaim.fields import as_utc
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.tables import scope_of
from django_taskclaim.worker.records import logger
from django_taskclaim.worker.service import PRUNE_EVERY, Duty, Service, in_pieces

#: Seconds between two reads of the commands; five are promised.
READ_COMMANDS_EVERY = 3.5
#: Seconds between two rounds of writing what was done, in a minute in which anything was.
WRITE_EVERY = 5.0

#: The tables whose rows are kept as long as the setting RETENTION says.
KEPT = (OperatorAct, ClaimEvent)

#: Where a model's throughput is added up that is older than that.
EARLIER = datetime(1970, 1, 1, tzinfo=UTC)


def duties(service: Service) -> list[Duty]:
    """Return what one worker process does for the control page; nothing where the tables are not."""
    if not is_on(service.options.using):
        return []
    poller = Poller(service)
    return [
        Duty("looking for commands", poller.look, READ_COMMANDS_EVERY),
        Duty("writing what was done", poller.write, WRITE_EVERY, at_end=True),
        Duty("deleting old records", partial(in_pieces, prune, poller.using), PRUNE_EVERY),
    ]


class Poller:
    """One for each process."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.using = service.options.using
        self.process = service.process
        #: By model and minute, what is counted in the present minute, and what is still to be stored of earlier ones.
        self._minutes: dict[tuple[str, datetime], ThroughputMinute] = {}

    # Commands

    def look(self) -> None:
        """Obey the command that a person gave this process."""
        mine = self.service.own_row
        for command in mine.exclude(command="").values_list("command", flat=True):
            _DOING[command](self.service)
            facts = {"event": "command", "command": command}
            logger.info("%s was told to %s", self.service.options.name, command, extra=facts)
            mine.filter(command=command).update(command="")

    # Throughput

    def write(self) -> None:
        """Store what was counted in this minute, and what is left of earlier ones."""
        minute = slot_start(database_time(self.using), MINUTE)
        for model, counts in self.service.counters.take().items():
            fresh = ThroughputMinute(model=scope_of(model), at=minute, process=self.process)
            self._minutes.setdefault((fresh.model, minute), fresh).add(counts)
        for one in self._minutes.values():
            self._store(one)
        # What is counted from now on belongs to another minute.
        self._minutes = {place: one for place, one in self._minutes.items() if one.at >= minute}

    def _store(self, one: ThroughputMinute) -> None:
        """Write totals, so that a statement that was sent twice does no harm."""
        mine = ThroughputMinute.objects.using(self.using).filter(pk=one.pk)
        is_stored = mine.update(counts=one.counts)
        # One that has gone was added up by others, after a long outage; to store it again would count it twice.
        if one._state.adding and not is_stored:
            one.save(using=self.using, force_insert=True)
        one._state.adding = False


def _drain(service: Service) -> None:
    service.drain_asked.set()
    service.inflight.wake()


#: What each of the commands does in the process that it was given to.
_DOING: dict[str, Callable[[Service], object]] = {
    "drain": _drain,
    "stop": lambda service: signal.raise_signal(signal.SIGTERM),
}


# How long this app keeps what it writes


def prune(using: str) -> bool:
    """Delete a piece of what is too old and take a piece of old minutes together; True if that was all there was."""
    chunk = int(conf.setting("CHUNK_SIZE"))
    left = [forget(table, conf.duration("RETENTION"), using, chunk) for table in KEPT]
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
    """Add up to *chunk* old minutes up in ten minutes of all processes; True if that was all.

    Those older than RETENTION are added up in one row of their model, so that a sum of all never falls.
    """
    dialect, now = dialect_for(connections[using]), database_time(using)
    ended, hour_ago = now - conf.duration("RETENTION"), now - AGE_OF_MINUTES
    rows = ThroughputMinute.objects.using(using)
    is_kept = models.Q(process="", at__gte=ended)
    old = rows.filter(~is_kept, at__lt=slot_start(hour_ago, TEN_MINUTES), at__gt=EARLIER)
    # Another process may be at it; the leases of this one do not wait for that.
    with dialect.own_transaction(lock_wait=1):
        minutes = list(old.select_for_update().order_by("at", "id")[:chunk])
        together: dict[Any, list[ThroughputMinute]] = {}
        for minute in minutes:
            at = slot_start(as_utc(minute.at), TEN_MINUTES)
            # By slots: one that ends in this round must take nothing in, or that would be deleted with it.
            place = minute.model, EARLIER if at < ended else at
            together.setdefault(place, []).append(minute)
        for (model, at), same in together.items():
            known = rows.select_for_update().filter(model=model, at=at, process="").first()
            slot = known or ThroughputMinute(model=model, at=at)
            for minute in same:
                slot.add(minute.counts)
            slot.save(using=using)
        rows.filter(pk__in=[minute.pk for minute in minutes])._raw_delete(using)
    return len(minutes) < chunk
