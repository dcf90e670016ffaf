"""``manage.py claimreset``: make failed rows as good as new, and others where they are named."""

from argparse import ArgumentParser
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from django_taskclaim.control.actions import LOSE, NAMED, RESET, RESUME_ROWS
from django_taskclaim.management.base import USAGE, Model
from django_taskclaim.management.rows import RowsCommand
from django_taskclaim.states import Status


class Command(RowsCommand):
    """Reset rows."""

    help = """Open rows again that ended, with all their tries and without their errors.

Failed ones, or with --complete or --running (or both) those. With --paused it opens rows that are set aside, such as
the old ones of a table just adopted; nothing else of them changes. First the rows are counted and, on a
terminal, you are asked. They are then reset chunk by chunk, each committed, so it may be stopped (Ctrl-C) at any time.
Rows that are locked at the moment are left alone. What was done is recorded."""
    epilog = """examples:
  manage.py claimreset photos.Photo --dry-run                        how many rows failed
  manage.py claimreset photos.Photo --filter error_class=ConnectionError --limit 10
  manage.py claimreset photos.Photo --filter country=NZ --reason "the image server is back"
  manage.py claimreset photos.Photo --complete --filter width__isnull=true
  manage.py claimreset photos.Photo --paused --limit 1000"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--complete", action="store_true", help="complete rows")
        parser.add_argument(
            "--running", action="store_true", help="running rows; their holders lose them"
        )
        parser.add_argument("--paused", action="store_true", help="paused rows")
        super().add_arguments(parser)

    def handle(self, *, model: Model, paused: bool, **options: Any) -> None:
        named = [name for name in NAMED.values() if options[name]]
        if paused and named:
            raise CommandError("--paused opens paused rows only; run it apart.", returncode=USAGE)
        if paused:
            self.act(RESUME_ROWS, model, states=[Status.PAUSED], **options)
            return
        self.act(
            RESET,
            model,
            states=[state for state, name in NAMED.items() if name in named] or [Status.FAILED],
            # Of rows chosen through a join the verb alone looks at the state again, once it has them locked.
            do=partial(RESET.run, named=named),
            warnings=[str(LOSE)] if "running" in named else [],
            **options,
        )
