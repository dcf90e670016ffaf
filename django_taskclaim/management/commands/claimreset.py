"""``manage.py claimreset``: make failed rows as good as new, and others where they are named."""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import Any

from django_taskclaim.formatting import listed
from django_taskclaim.management.acting import (
    ERRORS_NAMED,
    Choice,
    RowsCommand,
    choose_by_error,
    choose_by_state,
    errors_of,
)
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.states import Status


class Command(RowsCommand):
    """Reset rows."""

    help = """Open rows again that ended, with all their tries and without their errors.

Failed ones unless --complete or --running is said; several of the three may be. First the rows are counted and, on a
terminal, you are asked. They are then reset chunk by chunk, each committed, so it may be stopped (Ctrl-C) at any time.
Rows that are locked at the moment are left alone. What was done is recorded."""
    epilog = """examples:
  manage.py claimreset photos.Photo --dry-run                        how many rows failed
  manage.py claimreset photos.Photo --error ConnectionError --limit 10
  manage.py claimreset photos.Photo --filter country=NZ --reason "the image server is back"
  manage.py claimreset photos.Photo --complete --filter width__isnull=true

exit codes:
  0    done, or nothing matched
  1    a database refused, or the answer was no; the message says what was done
  2    wrong usage, or a table that is not there
  130  stopped by Ctrl-C; what was reset stays so"""
    act, verb, done = "reset", "Reset", "Reset"

    def add_choices(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--failed", action="store_true", help="failed rows (as if neither of the next is said)"
        )
        parser.add_argument("--complete", action="store_true", help="complete rows")
        parser.add_argument(
            "--running", action="store_true", help="running rows; their holders lose them"
        )
        parser.add_argument(
            "--error",
            metavar="CLASS",
            help="only rows whose last try ended with this error, as error_class has it",
        )

    def choose(self, choice: Choice, options: dict[str, Any]) -> None:
        named = {
            Status.FAILED: options["failed"],
            Status.COMPLETE: options["complete"],
            Status.PROCESSING: options["running"],
        }
        states = [state for state, is_named in named.items() if is_named]
        self._states = states or [Status.FAILED]
        choose_by_state(choice, *self._states)
        if options["error"] is not None:
            choose_by_error(choice, options["error"])

    def warnings(self, choice: Choice, found: dict[str, int]) -> Iterator[str]:
        if found.get(Status.PROCESSING):
            yield "Running rows are taken from their holders: what those write afterwards is refused."

    def change(self, choice: Choice, limit: int | None, progress: Callable[[int], None]) -> int:
        # Of rows chosen through a join the verb alone looks at the state again, once it has them locked.
        return choice.rows.reset(
            complete=Status.COMPLETE in self._states,
            running=Status.PROCESSING in self._states,
            limit=limit,
            progress=progress,
        )

    def nothing(self, choice: Choice) -> str:
        every: ClaimQuerySet[Any] = ClaimQuerySet(choice.rows.model, using=choice.rows.db)
        there = errors_of(every)
        known = f" Failed rows ended with {listed(there, most=ERRORS_NAMED)}." if there else ""
        return super().nothing(choice) + known
