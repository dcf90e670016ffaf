"""Commands over many rows of a model: they choose, count, ask, go chunk by chunk, and record."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, router
from django.db.models.deletion import ProtectedError, RestrictedError
from django.utils.text import capfirst

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import NAMED, Action
from django_taskclaim.control.audit import record_action
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import counted, first_line
from django_taskclaim.management.arguments import add_choice_of_rows, add_database, claimable_model
from django_taskclaim.management.base import USAGE, ClaimCommand, acting, lacking_tables
from django_taskclaim.management.commands.claimpopulate import STOPPED, Report
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.states import Status
from django_taskclaim.worker.selection import SelectionError, condition_of

Rows = ClaimQuerySet[Any]


def add_rows_of_one_model(parser: ArgumentParser) -> None:
    """Let a command take one model, a choice among its rows, and what goes into the record."""
    parser.add_argument(
        "model", metavar="app.Model", type=claimable_model, help="the model of the rows"
    )
    add_choice_of_rows(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the record")
    parser.add_argument("--by", metavar="NAME", help="who does it, for the record beside user@host")
    add_database(parser, "where the router writes the model")


class Choice:
    """The rows to act on, and how an operator would say which they are: their states, then what else narrows them."""

    def __init__(self, model: Any, alias: str) -> None:
        self.rows: Rows = ClaimQuerySet(model, using=alias)
        self.label = str(model._meta.label)
        self.words: list[str] = []

    def __str__(self) -> str:
        """Return the model, and what narrows the choice but for the states."""
        more = ", ".join(self.words[1:])
        return f"{self.label} ({more})" if more else self.label

    def narrow(self, rows: Rows, words: str) -> None:
        """Choose among the rows."""
        self.rows = rows
        self.words.append(words)

    def by_state(self, *states: str) -> None:
        name = claim_columns(self.rows.model).status.name
        words = " or ".join(NAMED.get(state, str(state)) for state in states)
        self.narrow(self.rows.filter(**{f"{name}__in": states}), words)

    def by_error(self, error: str) -> None:
        """Choose rows whose last try ended with the class *error*."""
        column = claim_columns(self.rows.model).error_class
        if column is None:
            raise CommandError(
                f"{self.label} keeps no error_class, so nobody knows which error its rows ended with.",
                returncode=USAGE,
            )
        self.narrow(self.rows.filter(**{column.name: error}), error)

    def by_filters(self, filters: Sequence[str]) -> None:
        """Choose rows that all of *filters* match; CommandError for one that makes no sense."""
        for text in filters:
            try:
                condition = condition_of(text, self.rows.model, of_claims=False)
            except SelectionError as error:
                raise CommandError(f"--filter {error}.", returncode=USAGE) from error
            self.narrow(self.rows.filter(condition), text)


@contextmanager
def rows_of(model: Any, database: str | None) -> Iterator[Choice]:
    """Let a command choose among the rows of *model*; what a database refuses is one sentence and exit code 1."""
    choice = Choice(model, database or router.db_for_write(model))
    try:
        if lacking := lacking_tables(model, choice.rows.db):
            raise CommandError("\n".join(lacking), returncode=USAGE)
        yield choice
    except (Error, TaskClaimError) as error:
        # The second argument of these is every object there is.
        protected = isinstance(error, (ProtectedError, RestrictedError))
        text = str(error.args[0]) if protected else first_line(error)
        raise CommandError(f"{choice.label} on {choice.rows.db!r}: {text}") from error


def run_action(
    command: ClaimCommand,
    action: Action,
    choice: Choice,
    *,
    limit: int | None,
    dry_run: bool,
    interactive: bool,
    by: str | None,
    reason: str,
    warnings: Sequence[str] = (),
    do: Callable[..., int] | None = None,
    **options: object,
) -> int:
    """Count the rows, ask, act on them chunk by chunk, record it, and return how many were changed.

    *do* is what is called instead of the verb of *action*, with the rows, ``limit`` and ``progress``.
    """
    states = _states_of(choice.rows)
    matching = sum(states.values())
    if not matching:
        command.stdout.write(f"{choice.label}: no row matches ({', '.join(choice.words)}).")
        return 0
    found = ", ".join(f"{count:,} {state}" for state, count in states.items())
    command.stdout.write(f"{choice}: {found}.")
    wanted = min(matching, limit or matching)
    for sentence in warnings:
        command.stdout.write(command.style.WARNING(sentence))
    question = f"{action.name.partition(' ')[0].capitalize()} {counted(wanted, 'row')}"
    if dry_run:
        command.stdout.write(f"{question}: not done, --dry-run.")
        return 0
    if interactive and at_a_terminal() and not _is_agreed(question):
        raise CommandError("Nothing was done.")

    report, began, done = _Report(command.stdout, wanted), clock(), str(capfirst(str(action.done)))
    try:
        report.seen = (do or action.run)(choice.rows, limit=limit, progress=report.so_far)
    except KeyboardInterrupt:
        kept = f"Stopped. {done} {counted(report.seen, 'row')}, and that stays."
        raise CommandError(kept, returncode=STOPPED) from None
    except (Error, TaskClaimError):
        command.stdout.write(f"{done} {counted(report.seen, 'row')}, and that stays.")
        raise
    finally:
        # Also where a hook of the user's ended it, what is done already is recorded.
        report.end()
        if report.seen:
            which = ", ".join([*choice.words, *([f"{limit:,} at most"] if limit else [])])
            record_action(
                choice.rows.model,
                action.name,
                rows=report.seen,
                by=acting(by),
                reason=which + (f": {reason}" if reason else ""),
                using=choice.rows.db,
            )
    changed = report.seen
    text = f"{done} {counted(changed, 'row')} of {choice.label}."
    command.stdout.write(command.style.SUCCESS(text))
    refused = refusals(choice.rows.model, choice.rows.db, since=began)
    left = wanted - changed - len(refused)
    if left > 0:
        text = f"Left alone: {counted(left, 'row')} that others have locked or changed meanwhile."
        command.stdout.write(command.style.WARNING(text))
    if refused:
        raise CommandError("\n".join(map(str, refused)))
    return changed


class _Report(Report):
    """How far it has got; nothing where it is done before anybody could wonder."""

    def so_far(self, total: int) -> None:
        """Note how many rows are done."""
        self.advance(total, 0)

    def _figures(self) -> str:
        return f"{self.seen:,} of {self.total:,}"


def _states_of(rows: Rows) -> dict[str, int]:
    """Return how many of *rows* are in each state that there is."""
    progress = rows.progress()
    counts = {
        NAMED.get(state, state.value): int(getattr(progress, state.value)) for state in Status
    }
    return {state: count for state, count in counts.items() if count}


def at_a_terminal() -> bool:
    """Say whether somebody is there who could answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def _is_agreed(question: str) -> bool:
    try:
        answer = input(f"{question}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
