"""What the commands share: what they read from their command line, progress, and one sentence for what is wrong."""

import argparse
import contextlib
import getpass
import math
import re
import socket
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn, TypeVar

from django.apps import apps
from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
)
from django.db import Error, connections, models, router
from django.db.models.deletion import ProtectedError, RestrictedError
from django.utils import translation

from django_taskclaim import conf
from django_taskclaim.checks import autocommit_faults
from django_taskclaim.columns import claim_columns, is_claimable
from django_taskclaim.doctor.setup import missing_tables
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line, format_duration
from django_taskclaim.switch import SwitchError, claimable_models, places_of

V = TypeVar("V")
Model = type[models.Model]

#: Exit code of a command line that makes no sense.
USAGE = 2
#: Exit code after Ctrl-C, as shells have it.
STOPPED = 130

EXIT_CODES = """  0    done, or there was nothing to do
  1    a database refused, or the answer was no; the message says what was done
  2    wrong usage, or a table that is not there
  130  stopped by Ctrl-C; what was done stays"""


def lacking_of(where: Sequence[tuple[Model, str]]) -> list[str]:
    """Return what tables and columns the databases lack for these models, in sentences that name the command to run.

    Nothing where a database does not answer.
    """
    found: list[str] = []
    with contextlib.suppress(Error):
        for model, alias in where:
            found += [f"{lack.msg} {lack.hint}" for lack in missing_tables(model, alias)]
    return list(dict.fromkeys(found))


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


def _refuse_without_autocommit(aliases: set[str]) -> None:
    """Raise CommandError where what is written to one of the databases would never be committed."""
    for alias in aliases:
        for fault in autocommit_faults(alias):
            raise CommandError(f"{fault.msg} {fault.hint}", returncode=USAGE)


def _failure(error: Exception, where: Sequence[tuple[Model, str]]) -> CommandError:
    """Return what to say of an error of the database: the tables that are not there, or what the database said."""
    lacking = lacking_of(where)
    if lacking:
        done = [str(error)] if isinstance(error, SwitchError) and error.done else []
        return CommandError("\n".join([*done, *lacking]), returncode=USAGE)
    if isinstance(error, SwitchError):
        return CommandError(str(error))
    # The second argument of these is every object there is.
    is_protected = isinstance(error, (ProtectedError, RestrictedError))
    text = str(error.args[0]) if is_protected else first_line(error)
    named = [f"{model._meta.label} on {alias!r}: " for model, alias in where]
    return CommandError(f"{named[0] if len(named) == 1 else ''}{text}")


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
    #: Whether it works on every database that holds a model, not only where the router writes it.
    everywhere: ClassVar[bool] = False

    def execute(self, *args: object, **options: Any) -> str | None:
        where = self._where(options)
        if self.writes:
            _refuse_without_autocommit({alias for _, alias in where})
        with translation.override("en") if self.in_english else contextlib.nullcontext():
            try:
                return super().execute(*args, **options)
            except (Error, TaskClaimError) as error:
                raise _failure(error, where) from error
            except KeyboardInterrupt:
                raise CommandError("Stopped.", returncode=STOPPED) from None

    def _where(self, options: dict[str, Any]) -> list[tuple[Model, str]]:
        """Return the models that were named, or all, each with its databases."""
        named = [options["model"]] if "model" in options else options.get("models", ())
        if not self.everywhere:
            return places(named, options.get("database"))
        models = named or models_to_claim()
        return [
            (one, alias) for one in models for alias in places_of(options.get("database"), [one])
        ]

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
    """How far a command has got, said every ten seconds."""

    EVERY = 10.0

    def __init__(self, out: Any, total: int) -> None:
        self.out, self.total, self.seen = out, total, 0
        self.began = self.said = time.monotonic()

    def advance(self, seen: int) -> None:
        """Note how many rows have been seen."""
        self.seen, now = seen, time.monotonic()
        if not seen or now - self.said < self.EVERY:
            return
        self.said = now
        left = timedelta(seconds=(now - self.began) * max(0, self.total - seen) / seen)
        self.out.write(f"{seen:,} of {self.total:,}, {format_duration(left)} left")
        self.out.flush()


# What is read from the command line


def claimable_model(text: str) -> Model:
    """Return the model that ``app.Model`` names."""
    try:
        model = apps.get_model(text)
    except (LookupError, ValueError) as error:
        raise ArgumentTypeError(f"there is no model {text!r}; {_meant(text)}") from error
    try:
        claim_columns(model)
    except TypeError as error:
        raise ArgumentTypeError(
            f"the model {model._meta.label} cannot be claimed: {error}".rstrip(".")
        ) from error
    return model


def _meant(text: str) -> str:
    """Return the label that was probably meant, in any app and any case."""
    labels = {model._meta.label.lower(): model._meta.label for model in models_to_claim()}
    names = {label.partition(".")[2]: full for label, full in labels.items()}
    known = labels | names
    close = get_close_matches(text.lower(), known, n=1, cutoff=0.7)
    return f"did you mean {known[close[0]]}?" if close else "write app_label.Model"


def database_alias(text: str) -> str:
    """Return the alias of a database that is configured."""
    if text not in connections:
        raise ArgumentTypeError(
            f"there is no database {text!r}; DATABASES has {', '.join(connections)}"
        )
    return text


def whole_number(text: str, *, most: int | None = None) -> int:
    """Return a number from 1 to *most*."""
    kind = conf.whole_number(most=most or math.inf)
    return _checked(kind, text, int(text) if text.isdecimal() else text)


def duration(text: str) -> timedelta:
    """Return a time longer than zero: seconds, or a number with ms, s, m, h or d."""
    return _checked(conf.DURATION, text, text)


def _checked(kind: "conf.Kind[V]", text: str, value: object) -> V:
    try:
        return kind.read(value)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {kind.expected}") from None


def add_models(parser: ArgumentParser, what: str, number: str = "*") -> None:
    """Let the command take any *number* of models, as argparse writes it; none means every claimable one."""
    parser.add_argument(
        "models", nargs=number, metavar="app.Model", type=claimable_model, help=what
    )


def add_model(parser: ArgumentParser, what: str) -> None:
    """Let the command take one model."""
    parser.add_argument("model", metavar="app.Model", type=claimable_model, help=what)


def add_record(parser: ArgumentParser) -> None:
    """Let the command take what goes into the record of acts: ``--reason`` and ``--by``."""
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the record")
    parser.add_argument("--by", metavar="NAME", help="who does it, for the record beside user@host")


def add_database(parser: ArgumentParser, default: str) -> None:
    """Let the command take ``--database``."""
    parser.add_argument(
        "--database",
        metavar="ALIAS",
        type=database_alias,
        help=f"the database to work on (default: {default})",
    )


def add_filters(parser: ArgumentParser, which: str) -> None:
    """Let the command take ``--filter``, any number of times; *which* says what it chooses among."""
    parser.add_argument(
        "--filter",
        dest="filters",
        metavar="LOOKUP=VALUE",
        action="append",
        default=[],
        help=f"{which} that match, country=NZ for example; several must all match",
    )


def add_choice_of_rows(parser: ArgumentParser) -> None:
    """Let the command choose rows and ask before it acts: ``--filter``, ``--limit``, ``--dry-run``, ``--noinput``."""
    add_filters(parser, "only rows")
    parser.add_argument(
        "--limit", metavar="N", type=whole_number, help="at most N rows (default: all)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="count, say what would be done, and do nothing"
    )
    parser.add_argument(
        "--noinput",
        "--no-input",
        dest="interactive",
        action="store_false",
        help="do not ask; off a terminal nobody is asked anyway",
    )


def models_to_claim() -> list[Model]:
    """Return every installed model whose rows can be claimed, children before their parents.

    A child's rows follow the child's own policy, and the parent's reaper would judge them by the parent's.
    """
    found = [model for model in claimable_models() if is_claimable(model)]
    return sorted(found, key=lambda model: (-len(model._meta.get_parent_list()), model._meta.label))


def places(models: Sequence[Model], database: str | None) -> list[tuple[Model, str]]:
    """Return each model with the database to look at: the one named, or the one that the router writes to."""
    return [
        (model, database or router.db_for_write(model)) for model in models or models_to_claim()
    ]
