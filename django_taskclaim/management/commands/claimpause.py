"""``manage.py claimpause``: stop every claim of a model, on every host, until somebody resumes."""

from argparse import ArgumentParser

from django_taskclaim.control.actions import PAUSE_ROWS
from django_taskclaim.management.base import duration
from django_taskclaim.management.turning import SwitchCommand


class Command(SwitchCommand):
    """Turn the switch off, or pause rows."""

    help = """Turn the switch of models off: once this returns, no claim that starts takes a row of theirs, on any host.

Rows that run finish. A pause outlives every restart and stands until manage.py claimresume, or until --until.

With --rows, take open rows of one model out of the queue, chunk by chunk, each committed; it may be stopped (Ctrl-C) at
any time. They stay out until manage.py claimresume --rows."""
    epilog = """examples:
  manage.py claimpause photos.Photo --reason "the image server is down"
  manage.py claimpause --all --until 30m --reason deployment
  manage.py claimpause photos.Photo --rows --filter country=NZ"""

    off, on_rows = True, PAUSE_ROWS

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--until",
            metavar="SECONDS",
            type=duration,
            help="end by itself after this long: seconds, or 30m, 2h, 1d (default: never)",
        )
