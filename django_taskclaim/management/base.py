"""What the commands share: help that reads well, and one sentence for what is wrong."""

import argparse
import contextlib
import sys
from typing import Any, ClassVar, NoReturn

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
)
from django.db import models
from django.utils import translation

from django_taskclaim.doctor.surroundings import missing_tables

#: Exit code of a command line that makes no sense.
USAGE = 2


def lacking_tables(model: type[models.Model], alias: str) -> list[str]:
    """Return what tables and columns the database lacks for *model*, in sentences that name the command to run."""
    return [f"{found.message} Run: {found.advice}" for found in missing_tables(model, alias)]


class HelpFormatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Django's order of options, and the examples as they were written."""


class ClaimCommand(BaseCommand):
    """A command that parses, calls and reports."""

    #: Shown under the options: examples, exit codes.
    epilog: ClassVar[str] = ""
    # An operator must be able to look, pause and put back also while something else of the project is wrong.
    requires_system_checks = []
    #: Whether it prints sentences that pages show in their readers' languages; what commands print is English.
    in_english: ClassVar[bool] = False

    def execute(self, *args: Any, **options: Any) -> str | None:
        with translation.override("en") if self.in_english else contextlib.nullcontext():
            return super().execute(*args, **options)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault("formatter_class", HelpFormatter)
        kwargs.setdefault("epilog", self.epilog)
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.error = self._refuse  # type: ignore[method-assign]
        return parser

    def _refuse(self, message: str) -> NoReturn:
        """Say what is wrong in one sentence, without the whole usage before it."""
        sentence = message.removeprefix("argument app.Model: ").removeprefix("argument ")
        sentence = f"{sentence[:1].upper()}{sentence[1:]}".rstrip(".")
        sentence += "" if sentence.endswith("?") else "."
        if not getattr(self, "_called_from_command_line", False):
            raise CommandError(sentence, returncode=USAGE)
        self.stderr.write(sentence)
        sys.exit(USAGE)
