"""What commands share that act on many rows of a model: they choose, count, ask, go chunk by chunk, and record."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from django.core.management.base import CommandError
from django.db import Error, router
from django.db.models import Count
from django.db.models.deletion import ProtectedError, RestrictedError

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.acts import account_of, record_act
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import counted, first_line
from django_taskclaim.management.arguments import add_choice_of_rows, add_database, claimable_model
from django_taskclaim.management.base import USAGE, ClaimCommand, lacking_tables, whoami
from django_taskclaim.management.commands.claimpopulate import STOPPED, Report
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.operating import written_before
from django_taskclaim.querysets.refusals import refusals
from django_taskclaim.states import Status
from django_taskclaim.worker.selection import Selection, SelectionError

Rows = ClaimQuerySet[Any]

#: So many of the errors that failed rows ended with are named.
ERRORS_NAMED = 10


@dataclass(slots=True)
class Choice:
    """The rows to act on, and how an operator would say which they are: their states, then what else narrows them."""

    rows: Rows
    told: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return str(self.rows.model._meta.label)

    def __str__(self) -> str:
        """Return the model, and what narrows the choice but for the states."""
        more = ", ".join(self.told[1:])
        return f"{self.label} ({more})" if more else self.label

    def narrow(self, rows: Rows, told: str) -> None:
        """Choose among the rows."""
        self.rows = rows
        self.told.append(told)


class RowsCommand(ClaimCommand):
    """A command that does one act to the rows of one model that its options choose."""

    in_english = True
    #: The act in the records, as it is offered, and once it is done: ``prune``, ``Delete``, ``Deleted``.
    act: ClassVar[str]
    verb: ClassVar[str]
    done: ClassVar[str]

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "model", metavar="app.Model", type=claimable_model, help="the model of the rows"
        )
        self.add_choices(parser)
        add_choice_of_rows(parser)
        parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the record")
        parser.add_argument(
            "--by", metavar="NAME", help="who does it, for the record (default: user@host)"
        )
        add_database(parser, "where the router writes the model")

    def add_choices(self, parser: ArgumentParser) -> None:
        """Add the options that say which rows."""

    def handle(self, *, model: Any, database: str | None, **options: Any) -> None:
        alias = database or router.db_for_write(model)
        choice = Choice(ClaimQuerySet(model, using=alias))
        try:
            if lacking := lacking_tables(model, alias):
                raise CommandError("\n".join(lacking), returncode=USAGE)
            self.choose(choice, options)
            choose_by_filters(choice, options["filters"])
            self._act(choice, **options)
        except (Error, TaskClaimError) as error:
            raise CommandError(f"{choice.label} on {alias!r}: {said(error)}") from error

    def choose(self, choice: Choice, options: dict[str, Any]) -> None:
        """Narrow the choice as the command's own options say."""
        raise NotImplementedError

    def matching(self, choice: Choice) -> dict[str, int]:
        """Return how many rows are in each state that would be acted on."""
        return states_of(choice.rows)

    def warnings(self, choice: Choice, found: dict[str, int]) -> Iterable[str]:
        """Return what somebody who is asked must know."""
        return ()

    def change(self, choice: Choice, limit: int | None, progress: Callable[[int], None]) -> int:
        """Do it, and return how many rows were changed."""
        raise NotImplementedError

    def nothing(self, choice: Choice) -> str:
        """Say that no row matches."""
        return f"{choice.label}: no row matches ({', '.join(choice.told)})."

    def also(self) -> str:
        """Return what else there is to say of what was done."""
        return ""

    # The way that all of them go

    def _act(self, choice: Choice, *, limit: int | None, dry_run: bool, **options: Any) -> None:
        found = self.matching(choice)
        matching = sum(found.values())
        if not matching:
            self.stdout.write(self.nothing(choice))
            return
        states = ", ".join(f"{count:,} {state}" for state, count in found.items() if count)
        self.stdout.write(f"{choice}: {states}.")
        wanted = min(matching, limit or matching)
        for sentence in self.warnings(choice, found):
            self.stdout.write(self.style.WARNING(sentence))
        if dry_run:
            self.stdout.write(f"{self.verb} {counted(wanted, 'row')}: not done, --dry-run.")
            return
        if options["interactive"] and at_a_terminal() and not _agreed(self.verb, wanted):
            raise CommandError("Nothing was done.")
        self._go(choice, wanted, limit, options)

    def _go(self, choice: Choice, wanted: int, limit: int | None, options: dict[str, Any]) -> None:
        report = _Report(self.stdout, wanted)
        changed, began = 0, clock()
        try:
            changed = self.change(choice, limit, report.so_far)
        except BaseException as error:
            # Whatever it is, a hook of the user's included: what is done already is recorded.
            changed = written_before(error)
            report.end()
            if isinstance(error, (Error, TaskClaimError, KeyboardInterrupt)):
                self._stopped(changed, error)
            raise
        finally:
            if changed:
                self._record(choice, changed, limit, options)
        report.end()
        self.stdout.write(
            self.style.SUCCESS(
                f"{self.done} {counted(changed, 'row')} of {choice.label}{self.also()}."
            )
        )
        refused = refusals(choice.rows.model, choice.rows.db, since=began)
        if changed + len(refused) < wanted:
            left = counted(wanted - changed - len(refused), "row")
            self.stdout.write(
                self.style.WARNING(
                    f"Left alone: {left} that others have locked or changed meanwhile."
                )
            )

        if refused:
            raise CommandError("\n".join(map(str, refused)))

    def _stopped(self, changed: int, error: BaseException) -> NoReturn:
        kept = f"{self.done} {counted(changed, 'row')}, and that stays."
        if isinstance(error, KeyboardInterrupt):
            raise CommandError(f"Stopped. {kept}", returncode=STOPPED) from None
        self.stdout.write(kept)
        raise error

    def _record(
        self, choice: Choice, changed: int, limit: int | None, options: dict[str, Any]
    ) -> None:
        who, reason = options["by"] or whoami(), options["reason"]
        chosen = [*choice.told, *([f"{limit:,} at most"] if limit else [])]
        told = ", ".join(chosen) + (f": {reason}" if reason else "")
        record_act(
            choice.rows.model,
            self.act,
            rows=changed,
            by=who,
            reason=told,
            user=account_of(who),
            using=choice.rows.db,
        )


class _Report(Report):
    """How far it has got; nothing where it is done before anybody could wonder."""

    def so_far(self, total: int) -> None:
        """Note how many rows are done."""
        self.advance(total - self.seen, 0)

    def _figures(self) -> str:
        return f"{self.seen:,} of {self.total:,}"


# Choosing


def choose_by_filters(choice: Choice, filters: Sequence[str]) -> None:
    """Narrow the choice to rows that all of *filters* match; CommandError for one that makes no sense."""
    for text in filters:
        try:
            selection = Selection.of(text)
            if not selection.concerns(choice.rows.model):
                raise SelectionError(f"{text}: the model is {choice.label}")
            condition = selection.condition(choice.rows.model, of_claims=False)
        except SelectionError as error:
            raise CommandError(f"--filter {error}.", returncode=USAGE) from error
        choice.narrow(choice.rows.filter(condition), text)


def choose_by_state(choice: Choice, *states: Status) -> None:
    """Narrow the choice to rows in one of *states*."""
    name = claim_columns(choice.rows.model).status.name
    told = " or ".join(state.value for state in states)
    choice.narrow(choice.rows.filter(**{f"{name}__in": states}), told)


def choose_by_error(choice: Choice, error: str) -> None:
    """Narrow the choice to rows whose last try ended with the class *error*."""
    column = claim_columns(choice.rows.model).error_class
    if column is None:
        raise CommandError(
            f"{choice.label} keeps no error_class, so nobody knows which error its rows ended with.",
            returncode=USAGE,
        )
    choice.narrow(choice.rows.filter(**{column.name: error}), error)


def states_of(rows: Rows) -> dict[str, int]:
    """Return how many of *rows* are in each state."""
    progress = rows.progress()
    counts = {state.value: int(getattr(progress, state.value)) for state in Status}
    return {state: count for state, count in counts.items() if count}


def errors_of(rows: Rows) -> list[str]:
    """Return the errors that failed rows ended with, each with how often, the most frequent first."""
    column = claim_columns(rows.model).error_class
    if column is None:
        return []
    found = rows.failed().order_by().values_list(column.name).annotate(rows=Count("*"))
    most = found.order_by("-rows", column.name)
    return [f"{name or 'none'} ({count:,})" for name, count in most]


# Asking and telling


def at_a_terminal() -> bool:
    """Say whether somebody is there who could answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def _agreed(verb: str, rows: int) -> bool:
    try:
        answer = input(f"{verb} {counted(rows, 'row')}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def said(error: BaseException) -> str:
    """Return what the database, or Django in its place, has to say, in one line."""
    if isinstance(error, (ProtectedError, RestrictedError)):
        # Its second argument is every object there is.
        return str(error.args[0])
    return first_line(error)
