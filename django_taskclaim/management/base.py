"""What the commands share: what they read from their command line, and one sentence for what is wrong."""

import argparse
import getpass
import io
import socket
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from itertools import chain
from typing import Any, ClassVar, TypeVar

from django.apps import apps
from django.core.checks import WARNING, CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, DjangoHelpFormatter
from django.db import Error, connections, models, router
from django.db.models import Q

from django_taskclaim import conf
from django_taskclaim.checks import autocommit_faults
from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.conditions import condition_of
from django_taskclaim.control.actions import Action
from django_taskclaim.control.audit import record_action
from django_taskclaim.doctor import missing_table
from django_taskclaim.error_text import clean
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import counted, first_line, listed, plain
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.signals import acted_by
from django_taskclaim.switch import claimable_models, holds, places_of

V = TypeVar("V")
Model = type[models.Model]

#: What a command takes that is for one model.
ONE = (1, "the model")

#: What is wrong where nothing can be claimed.
NO_MODEL = "No installed app has a model that can be claimed; add TaskMixin to one."

#: Exit code after Ctrl-C, as shells have it.
STOPPED = 130

#: Of a command line that makes no sense, or a project in which the command cannot work.
UsageError = partial(CommandError, returncode=2)


class HelpFormatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Django's order of options, and the help text as it was written."""


class ClaimCommand(BaseCommand):
    """A command that parses, calls and reports. Its help is the docstring of its module."""

    # An operator must be able to look, pause and put back also while something else of the project is wrong.
    requires_system_checks = []
    #: How many models it takes, as argparse writes it, and their help text. Where none is named, all are meant.
    takes: ClassVar[tuple[str | int, str]] = ("*", "the models (default: every claimable model)")
    #: What ``--filter`` chooses among. Where this is empty, the command has no such option.
    filters: ClassVar[str] = ""
    #: Whether it takes ``--reason`` and ``--by``, for the record of acts.
    is_recorded: ClassVar[bool] = False
    #: Whether it works on every database that holds a model, or only where the router writes it; None is on none.
    everywhere: ClassVar[bool | None] = False
    #: What is wrong where no model is named, and none of those that can be claimed is meant.
    nothing: ClassVar[str] = ""
    #: Each of the models with its databases.
    where: list[tuple[Model, str]]

    def __init_subclass__(cls) -> None:
        cls.help = sys.modules[cls.__module__].__doc__ or ""

    def run_from_argv(self, argv: list[str]) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A reason may have letters that the terminal, or the encoding of a pipe, has not.
            sys.stdout.reconfigure(errors="backslashreplace")
        super().run_from_argv(argv)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.formatter_class, add = HelpFormatter, parser.add_argument
        number, text = self.takes
        add("models", nargs=number, metavar="app.Model", type=claimable_model, help=text)
        if self.everywhere is not None:
            default = "every one that holds" if self.everywhere else "where the router writes"
            text = f"the database to work on (default: {default} the model)"
            add("--database", choices=tuple(connections), metavar="ALIAS", help=text)
        if self.filters:
            text = f"{self.filters} that match, country=NZ for example; several must all match"
            many: dict[str, Any] = {"dest": "filters", "action": "append", "default": []}
            add("--filter", type=utf8, **many, metavar="LOOKUP=VALUE", help=text)
        if self.is_recorded:
            add("--reason", type=utf8, default="", metavar="TEXT", help="why, for the record")
            text = "who does it, for the record beside user@host"
            add("--by", type=acting, default="", metavar="NAME", help=text)

    def execute(self, *args: object, **options: Any) -> str | None:
        named = options.get("database")
        meant = options["models"] or self.every_model(named)
        self.where = []
        for model in meant:
            every = places_of(named, [model]) if self.everywhere else []
            aliases = every or [named or router.db_for_write(model)]
            self.where += [(model, alias) for alias in aliases]
        if not self.where:
            raise UsageError(self.nothing if claimable_models() else NO_MODEL)
        refuse(chain.from_iterable(autocommit_faults(alias) for _, alias in self.where))
        try:
            return super().execute(*args, **options)
        except ImproperlyConfigured as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise CommandError(str(error)) from error
        except (Error, TaskClaimError) as error:
            refuse(lacking(self.where))
            raise CommandError(first_line(error)) from error
        except KeyboardInterrupt:
            raise CommandError("Stopped.", returncode=STOPPED) from None

    def every_model(self, database: str | None) -> list[Model]:
        """Return the models that are meant where none is named, here all of *database*: children before their parents.

        A child's rows follow the child's own policy, and the parent's reaper would judge them by the parent's.
        """
        found = sorted(claimable_models(), key=lambda model: -len(model._meta.get_parent_list()))
        # A replica that mirrors another database in tests holds no model, and may be looked at.
        return [one for one in found if database is None or holds(database, one)] or found

    def finding_lines(self, finding: CheckMessage) -> Iterator[str]:
        """Yield a finding with its sign, and its hint below."""
        sign = self.style.SUCCESS("ok")
        if finding.level >= WARNING:
            sign = self.style.ERROR("!!") if finding.is_serious() else self.style.WARNING("..")
        yield f"{sign}  {plain(finding.msg)}" + (f" ({finding.id})" if finding.id else "")
        yield from (f"    {plain(line)}" for line in (finding.hint or "").splitlines())


class RowsCommand(ClaimCommand):
    """Does an action of the registry to the rows of one model that were chosen."""

    takes = ONE
    filters = "only rows"
    is_recorded = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("--limit", type=whole_number, metavar="N", help="at most N rows (default: all)")
        add("--dry-run", action="store_true", help="count, say what would be done, do nothing")
        text = "do not ask; off a terminal nobody is asked anyway"
        add("--noinput", "--no-input", dest="interactive", action="store_false", help=text)

    def perform(
        self,
        action: Action,
        which: str,
        condition: Q,
        warnings: Sequence[str],
        how: dict[str, Any],
        **options: Any,
    ) -> None:
        """Count the rows that match *condition*, in words *which*; ask, and do *action* to them.

        *how* has the arguments of its verb.
        """
        ((model, alias),) = self.where
        label, filters, limit = model._meta.label, options["filters"], options["limit"]
        rows = ClaimQuerySet[Any](model, using=alias)
        rows = rows.filter(condition, *(condition_of(text, model) for text in filters))
        which, matching = ", ".join([which, *filters]), rows.progress().total
        if not matching:
            self.stdout.write(f"{label}: no row matches ({which}).")
            return
        self.stdout.write(f"{label}: {counted(matching, 'row')} ({which}).")
        for sentence in warnings:
            self.stdout.write(self.style.WARNING(sentence))
        wanted = min(matching, limit or matching)
        question = f"{action.label} {counted(wanted, 'row')}"
        if options["dry_run"]:
            self.stdout.write(f"{question}: not done, --dry-run.")
            return
        if options["interactive"] and not _is_agreed(question):
            self.stdout.write("Nothing was done.")
            return
        began, totals, by = clock(), [0], options["by"]
        reason = f"{which}, {limit:,} at most" if limit else which
        reason += f": {options['reason']}" if options["reason"] else ""
        try:
            with acted_by(by, reason):
                action.verb(rows, limit=limit, progress=totals.append, **how)
        finally:
            # Also where it was stopped: that much is committed.
            number = totals[-1]
            done = f"{str(action.done).capitalize()} {counted(number, 'row')} of {label}"
            left = f"; {counted(wanted - number, 'row')} left as found" if wanted > number else ""
            self.stdout.write(self.style.SUCCESS(f"{done}{left}."))
            if number:
                record_action(model, action.name, rows=number, by=by, reason=reason, using=alias)
        if refused := refusals(model, alias, since=began):
            raise CommandError("\n".join(map(str, refused)))


def lacking(where: Iterable[tuple[Model, str]]) -> Iterator[CheckMessage]:
    """Yield which tables and columns the databases lack for these models, which explains any error of theirs.

    Nothing where a database does not answer.
    """
    with suppress(Error):
        for model, alias in where:
            yield from missing_table(model, alias)


def refuse(findings: Iterable[CheckMessage], returncode: int = 2) -> None:
    """Raise CommandError with each of the findings once, and with what to do, if there are any."""
    if found := dict.fromkeys(f"{one.msg} {one.hint}" for one in findings):
        raise CommandError("\n".join(found), returncode=returncode)


def acting(by: str) -> str:
    """Return who acts, for the record: ``user@host``, behind the name that ``--by`` gives and nobody has checked."""
    user = "somebody"
    # A container's user often has no name.
    with suppress(KeyError, OSError):
        user = getpass.getuser()
    account = f"{user}@{socket.gethostname()}"
    return f"{utf8(by)} ({account})" if by else account


def _is_agreed(question: str) -> bool:
    """Ask the person at the terminal; without a terminal nobody is asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    with suppress(EOFError):
        return input(f"{question}? [y/N] ").strip().lower() in ("y", "yes")
    return False


# What is read from the command line


def claimable_model(text: str) -> Model:
    """Return the model that ``app.Model`` names."""
    try:
        model = apps.get_model(text)
        claim_columns(model)
    except (LookupError, ValueError) as error:
        labels = [model._meta.label for model in claimable_models()]
        nearest = listed(get_close_matches(text, labels, cutoff=0)) or "none"
        app, dot, _ = text.partition(".")
        asked = f" (is {app!r} in INSTALLED_APPS?)" if dot and app not in apps.app_configs else ""
        known = f"{asked}; the installed models most like it are {nearest}"
        raise ArgumentTypeError(f"there is no model {text!r}{known}") from error
    except TypeError as error:
        raise ArgumentTypeError(f"the model {text} cannot be claimed: {error}") from error
    return model


def utf8(text: str) -> str:
    """Return *text* as it is; ArgumentTypeError if it came as bytes that no database takes as text."""
    if text != clean(text):
        raise ArgumentTypeError(f"{text!r} is not UTF-8")
    return text


def reader(kind: "conf.Kind[V]") -> Callable[[str], V]:
    """Return what reads a value of this kind; ArgumentTypeError in one sentence for what is none."""

    def read(text: str) -> V:
        try:
            return kind.read(int(text) if text.isdecimal() else text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {kind.expected}") from None

    return read


#: A time longer than zero: seconds, or a number with ms, s, m, h or d.
duration = reader(conf.DURATION)
whole_number = reader(conf.whole_number())
