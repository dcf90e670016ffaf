"""What the commands share: help that reads well, progress, and one sentence for what is wrong."""

import argparse
import contextlib
import getpass
import re
import socket
import sys
import time
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
)
from django.db import models
from django.utils import translation

from django_taskclaim.checks.databases import autocommit_faults
from django_taskclaim.doctor import Finding
from django_taskclaim.doctor.setup import missing_source, missing_tables
from django_taskclaim.formatting import format_duration
from django_taskclaim.management.arguments import places

#: Exit code of a command line that makes no sense.
USAGE = 2
#: Exit code after Ctrl-C, as shells have it.
STOPPED = 130

EXIT_CODES = """  0    done, or there was nothing to do
  1    a database refused, or the answer was no; the message says what was done
  2    wrong usage, or a table that is not there
  130  stopped by Ctrl-C; what was done stays"""


def lacking_tables(model: type[models.Model], alias: str, *, whole: bool = False) -> list[str]:
    """Return what tables and columns the database lacks for *model*, in sentences that name the command to run."""
    return [_sentence(found) for found in missing_tables(model, alias, whole=whole)]


def lacking_source(model: type[models.Model], alias: str) -> list[str]:
    """Return, in a sentence, that what a companion or ranges are of is not there."""
    return [_sentence(found) for found in missing_source(model, alias)]


def _sentence(found: Finding) -> str:
    command = found.advice.startswith("manage.py")
    return f"{found.message} {'Run: ' if command else ''}{found.advice}"


def whoami() -> str:
    """Return who runs this command, as ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user often has no name.
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def acting(by: str | None) -> str:
    """Return who acts, for the record: ``user@host``, behind the name that ``--by`` gives and nobody has checked."""
    return f"{by} ({whoami()})" if by else whoami()


def _refuse_without_autocommit(options: dict[str, Any]) -> None:
    """Raise CommandError where what is written to the database of one of the models would never be committed."""
    models = [options["model"]] if "model" in options else options.get("models", ())
    for alias in {alias for _, alias in places(models, options.get("database"))}:
        for fault in autocommit_faults(alias):
            raise CommandError(f"{fault.message} {fault.hint}", returncode=USAGE)


class HelpFormatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Django's order of options, and the examples as they were written."""


class ClaimCommand(BaseCommand):
    """A command that parses, calls and reports."""

    #: Shown under the options.
    epilog: ClassVar[str] = ""
    exit_codes: ClassVar[str] = EXIT_CODES
    # An operator must be able to look, pause and put back also while something else of the project is wrong.
    requires_system_checks = []
    #: What commands print is English; handlers run in the language of the project.
    in_english: ClassVar[bool] = True
    #: Whether it writes to the databases of its models.
    writes: ClassVar[bool] = True

    def execute(self, *args: object, **options: object) -> str | None:
        if self.writes:
            _refuse_without_autocommit(options)
        with translation.override("en") if self.in_english else contextlib.nullcontext():
            return super().execute(*args, **options)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: object) -> CommandParser:
        kwargs.setdefault("formatter_class", HelpFormatter)
        kwargs.setdefault("epilog", f"{self.epilog}\n\nexit codes:\n{self.exit_codes}")
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.error = self._refuse  # type: ignore[method-assign]  # argparse has no hook for it
        return parser

    def _refuse(self, message: str) -> NoReturn:
        """Say what is wrong in one sentence, without the whole usage before it."""
        sentence = re.sub(r"^argument (app\.\w+: )?", "", message)
        sentence = f"{sentence[:1].upper()}{sentence[1:]}".rstrip(".")
        sentence += "" if sentence.endswith("?") else "."
        if not getattr(self, "_called_from_command_line", False):
            raise CommandError(sentence, returncode=USAGE)
        self.stderr.write(sentence)
        sys.exit(USAGE)


class Report:
    """How far a command has got: on a terminal one line that is written again and again, else a line now and then."""

    def __init__(self, out: Any, total: int) -> None:
        self.out, self.total, self.seen = out, total, 0
        self.is_terminal = out.isatty()
        self.every = 0.1 if self.is_terminal else 10.0
        self.began = self.shown = time.monotonic()

    def advance(self, seen: int) -> None:
        """Note how many rows have been seen."""
        self.seen, now = seen, time.monotonic()
        if not seen or now - self.shown < self.every:
            return
        self.shown = now
        left = timedelta(seconds=(now - self.began) * max(0, self.total - seen) / seen)
        text = f"{seen:,} of {self.total:,}, {format_duration(left)} left"
        self.out.write(
            f"\r{text:<60}" if self.is_terminal else text, ending="" if self.is_terminal else None
        )
        self.out.flush()

    def end(self) -> None:
        """Leave the line as it is."""
        if self.is_terminal and self.shown != self.began:
            self.out.write("")
