"""Commands over many rows of a model: they choose, count, ask, go chunk by chunk, and record."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, models, router
from django.db.models import Q
from django.db.models.deletion import ProtectedError, RestrictedError
from django.utils.text import capfirst

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import NAMED, Action
from django_taskclaim.control.audit import record_action
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import counted, first_line
from django_taskclaim.management.arguments import (
    add_choice_of_rows,
    add_database,
    add_model,
    add_record,
)
from django_taskclaim.management.base import (
    STOPPED,
    USAGE,
    ClaimCommand,
    Report,
    acting,
    lacking_tables,
)
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.states import Status
from django_taskclaim.worker.options import SelectionError, condition_of

Rows = ClaimQuerySet[Any]


def add_rows_of_one_model(parser: ArgumentParser) -> None:
    """Let a command take one model, a choice among its rows, and what goes into the record."""
    add_model(parser, "the model of the rows")
    add_choice_of_rows(parser)
    add_record(parser)
    add_database(parser, "where the router writes the model")


class Choice:
    """The rows to act on, and how an operator would say which they are: their states, then what else narrows them."""

    def __init__(self, rows: Rows, states: Sequence[str], filters: Sequence[str]) -> None:
        self.label = str(rows.model._meta.label)
        name = claim_columns(rows.model).status.name
        self.rows = rows.filter(**{f"{name}__in": states})
        self.words = [" or ".join(NAMED.get(state, str(state)) for state in states)]
        for text, condition in zip(filters, conditions_of(filters, rows.model), strict=True):
            self.narrow(condition, text)

    def __str__(self) -> str:
        """Return the model, and what narrows the choice but for the states."""
        more = ", ".join(self.words[1:])
        return f"{self.label} ({more})" if more else self.label

    def narrow(self, condition: Q, words: str) -> None:
        """Choose among the rows."""
        self.rows = self.rows.filter(condition)
        self.words.append(words)


def conditions_of(filters: Sequence[str], model: type[models.Model]) -> list[Q]:
    """Return the conditions of ``--filter``; CommandError for one that makes no sense."""
    try:
        return [condition_of(text, model) for text in filters]
    except SelectionError as error:
        raise CommandError(f"--filter {error}.", returncode=USAGE) from error


@contextmanager
def rows_of(
    model: Any, database: str | None, states: Sequence[str], filters: Sequence[str]
) -> Iterator[Choice]:
    """Choose rows of *model* in these states; what a database refuses is one sentence and exit code 1."""
    rows: Rows = ClaimQuerySet(model, using=database or router.db_for_write(model))
    try:
        if lacking := lacking_tables(model, rows.db):
            raise CommandError("\n".join(lacking), returncode=USAGE)
        yield Choice(rows, states, filters)
    except (Error, TaskClaimError) as error:
        # The second argument of these is every object there is.
        protected = isinstance(error, (ProtectedError, RestrictedError))
        text = str(error.args[0]) if protected else first_line(error)
        raise CommandError(f"{model._meta.label} on {rows.db!r}: {text}") from error


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
    progress = choice.rows.progress()
    matching = progress.total
    if not matching:
        command.stdout.write(f"{choice.label}: no row matches ({', '.join(choice.words)}).")
        return 0
    counts = [(getattr(progress, state.value), NAMED.get(state, state.value)) for state in Status]
    found = ", ".join(f"{count:,} {state}" for count, state in counts if count)
    command.stdout.write(f"{choice}: {found}.")
    wanted = min(matching, limit or matching)
    for sentence in warnings:
        command.stdout.write(command.style.WARNING(sentence))
    question = f"{action.name.partition(' ')[0].capitalize()} {counted(wanted, 'row')}"
    if dry_run:
        command.stdout.write(f"{question}: not done, --dry-run.")
        return 0
    if interactive and not _is_agreed(question):
        raise CommandError("Nothing was done.")

    report, began, done = Report(command.stdout, wanted), clock(), str(capfirst(str(action.done)))
    try:
        report.seen = (do or action.run)(choice.rows, limit=limit, progress=report.advance)
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


def _is_agreed(question: str) -> bool:
    """Ask the person at the terminal; without a terminal nobody is asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    try:
        answer = input(f"{question}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
