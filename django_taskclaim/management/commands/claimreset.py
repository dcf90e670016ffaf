"""Reset failed rows; with --complete or --running only those.

A row that is reset is open, with all its tries and without its error. With --paused, rows that are set aside are
opened, such as the old ones of a table just adopted; nothing else of them changes. First the rows are counted and, on a
terminal, you are asked. They are then reset chunk by chunk, each committed, so it may be stopped (Ctrl-C) at any time.
Rows that are locked at the moment are left alone. What was done is recorded.

Examples:
  manage.py claimreset photos.Photo --dry-run                        how many rows failed
  manage.py claimreset photos.Photo --filter error_class=ConnectionError --limit 10
  manage.py claimreset photos.Photo --filter country=NZ --reason "the image server is back"
  manage.py claimreset photos.Photo --complete --filter width__isnull=true
  manage.py claimreset photos.Photo --paused --limit 1000

"""

from argparse import ArgumentParser
from typing import Any

from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import LOSE, NAMED, RESET, RESUME_ROWS
from django_taskclaim.management.base import RowsCommand, UsageError
from django_taskclaim.querysets.scope import in_state
from django_taskclaim.states import Status


class Command(RowsCommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("--complete", action="store_true", help="complete rows")
        add("--running", action="store_true", help="running rows; their holders lose them")
        add("--paused", action="store_true", help="paused rows")

    def handle(self, *, paused: bool, **options: Any) -> None:
        named = {Status(state): name for state, name in NAMED.items() if options[name]}
        if paused and named:
            raise UsageError("--paused opens paused rows only; run it apart.")
        action = RESUME_ROWS if paused else RESET
        states = [*named] or [Status.PAUSED if paused else Status.FAILED]
        which = " or ".join(named.get(state, state.value) for state in states)
        condition = in_state(claim_columns(self.where[0][0]), *states)
        warnings = [str(LOSE)] if options["running"] else []
        # Of rows chosen through a join the verb alone looks at the state again, once it has them locked.
        how = dict.fromkeys(named.values(), True)
        self.perform(action, which, condition, warnings, how, **options)
