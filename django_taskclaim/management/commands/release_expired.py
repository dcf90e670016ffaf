"""Put back rows whose lease has ended by the database's clock, so that others can claim them.

Workers do this by themselves; the command is for projects where people or cron jobs claim rows. A row that a
worker lost is charged a try and fails once its tries are used up; a row that a person let lapse is never charged.
Rows that are locked at the moment are left for the next time. With --loop a row comes back a quarter of its lease
after it was found, so that living workers renew first where the database was away. What is written down and too old
(silent workers, acts, histories) is forgotten, and old throughput is added up. Safe to run anywhere, any number of
times at once.

Examples:
  manage.py release_expired                         every claimable model, once (from cron)
  manage.py release_expired photos.Photo --loop     look again and again until SIGTERM or Ctrl-C

Exit codes:
  0    done, or stopped while looping
  1    the database refused (a loop asks it again instead, also for a table that is not there yet)
  2    wrong usage, or tables are not there yet
  130  stopped by Ctrl-C without --loop; what was put back stays

"""

import signal
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, connections

from django_taskclaim.claim import clock
from django_taskclaim.control import poller
from django_taskclaim.control.models import is_on
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import counted, first_line
from django_taskclaim.management.base import ClaimCommand, lacking, refuse, whole_number
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.querysets.reaper import Reaper
from django_taskclaim.worker import service

#: Chunks that one round deletes of each kind; what is left then is left for the next round.
CHUNKS = 100


class Command(ClaimCommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        text = "put back at most N rows of each model; --loop goes on at once while there are more"
        parser.add_argument("--limit", type=whole_number, metavar="N", help=text)
        text = 'look every TASKCLAIM["REAPER_INTERVAL"] until SIGTERM or Ctrl-C'
        parser.add_argument("--loop", action="store_true", help=text)

    def handle(self, *, limit: int | None, loop: bool, **options: Any) -> None:
        if not loop:
            rows = [ClaimQuerySet[Any](model, using=alias) for model, alias in self.where]
            if refused := list(self._round([one.release_expired for one in rows], limit)):
                refuse(lacking(self.where))
                raise CommandError("\n".join(refused))
            return
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        reapers = [Reaper(model, alias) for model, alias in self.where]
        with suppress(KeyboardInterrupt):
            while True:
                for sentence in self._round([one.turn for one in reapers], limit):
                    self.stderr.write(f"{sentence}; trying again.")
                for reaper in reapers:
                    connections[reaper.using].close_if_unusable_or_obsolete()
                time.sleep(min(reaper.due_in() for reaper in reapers))

    def _round(
        self, verbs: Sequence[Callable[[int | None], int | None]], limit: int | None
    ) -> Iterator[str]:
        """Put back what has expired by calling the verb of each model, at most *limit* rows of each, and forget.

        Yields what was said of models and databases that could not be reached: one stops no other.
        """
        for (model, alias), release in zip(self.where, verbs, strict=True):
            began = clock()
            try:
                if count := release(limit):
                    text = f"{model._meta.label}: put back {counted(count, 'expired row')}."
                    self.stdout.write(text)
                    self.stdout.flush()
            except (Error, TaskClaimError) as error:
                yield f"{model._meta.label} on {alias!r}: {first_line(error)}"
            yield from map(str, refusals(model, alias, since=began))
        yield from self._forget()

    def _forget(self) -> Iterator[str]:
        """Delete what is too old on each database, as workers do, and yield what was said where that failed."""
        for alias in {alias for _, alias in self.where}:
            try:
                for prune in [service.prune, *([poller.prune] if is_on(alias) else [])]:
                    # True once that was all.
                    any(prune(alias) for _ in range(CHUNKS))
            except (Error, TaskClaimError) as error:
                yield f"What is old on {alias!r} could not be forgotten: {first_line(error)}"
