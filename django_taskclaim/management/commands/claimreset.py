"""``manage.py claimreset``: make failed rows as good as new, and others where they are named."""

from argparse import ArgumentParser
from functools import partial
from typing import Any

from django_taskclaim.control.actions import LOSE, NAMED, RESET
from django_taskclaim.management.base import ClaimCommand
from django_taskclaim.management.rows import add_rows_of_one_model, rows_of, run_action
from django_taskclaim.states import Status


class Command(ClaimCommand):
    """Reset rows."""

    help = """Open rows again that ended, with all their tries and without their errors.

Failed ones, or with --complete or --running (or both) those. First the rows are counted and, on a
terminal, you are asked. They are then reset chunk by chunk, each committed, so it may be stopped (Ctrl-C) at any time.
Rows that are locked at the moment are left alone. What was done is recorded."""
    epilog = """examples:
  manage.py claimreset photos.Photo --dry-run                        how many rows failed
  manage.py claimreset photos.Photo --filter error_class=ConnectionError --limit 10
  manage.py claimreset photos.Photo --filter country=NZ --reason "the image server is back"
  manage.py claimreset photos.Photo --complete --filter width__isnull=true"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--complete", action="store_true", help="complete rows")
        parser.add_argument(
            "--running", action="store_true", help="running rows; their holders lose them"
        )
        add_rows_of_one_model(parser)

    def handle(
        self,
        *,
        model: Any,
        database: str | None,
        filters: list[str],
        **options: Any,
    ) -> None:
        named = [name for name in NAMED.values() if options[name]]
        states = [state for state, name in NAMED.items() if name in named] or [Status.FAILED]
        with rows_of(model, database, states, filters) as choice:
            run_action(
                self,
                RESET,
                choice,
                # Of rows chosen through a join the verb alone looks at the state again, once it has them locked.
                do=partial(RESET.run, named=named),
                warnings=[str(LOSE)] if "running" in named else [],
                **options,
            )
