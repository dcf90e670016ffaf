"""Commands over many rows of a model: they choose, count, ask, go chunk by chunk, and record."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, router
from django.db.models import Q
from django.utils.text import capfirst

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import NAMED, Action
from django_taskclaim.control.audit import record_action
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import counted
from django_taskclaim.management.base import (
    USAGE,
    ClaimCommand,
    Model,
    Report,
    acting,
    add_choice_of_rows,
    add_database,
    add_model,
    add_record,
)
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.worker.options import SelectionError, condition_of

Rows = ClaimQuerySet[Any]


def conditions_of(filters: Sequence[str], model: Model) -> list[Q]:
    """Return the conditions of ``--filter``; CommandError for one that makes no sense."""
    try:
        return [condition_of(text, model) for text in filters]
    except SelectionError as error:
        raise CommandError(f"--filter {error}.", returncode=USAGE) from error


class RowsCommand(ClaimCommand):
    """Does an action of the registry to the rows of one model that were chosen."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_model(parser, "the model of the rows")
        add_choice_of_rows(parser)
        add_record(parser)
        add_database(parser, "where the router writes the model")

    def act(
        self,
        action: Action,
        model: Model,
        *,
        states: Sequence[str],
        narrowed: tuple[Q, str] | None = None,
        warnings: Sequence[str] = (),
        do: Callable[..., int] | None = None,
        **options: Any,
    ) -> int:
        """Count the rows in *states*, ask, act on them, and return how many were changed.

        *narrowed* is one more condition, with its words. *do* is called instead of the verb of *action*, with the
        rows, ``limit`` and ``progress``.
        """
        filters, limit = options["filters"], options["limit"]
        rows: Rows = ClaimQuerySet(model, using=options["database"] or router.db_for_write(model))
        rows = rows.filter(*conditions_of(filters, model))
        rows = rows.filter(**{f"{claim_columns(model).status.name}__in": states})
        words = [" or ".join(NAMED.get(state, str(state)) for state in states), *filters]
        if narrowed is not None:
            rows, words = rows.filter(narrowed[0]), [*words, narrowed[1]]
        which, matching = ", ".join(words), rows.progress().total
        if not matching:
            self.stdout.write(f"{model._meta.label}: no row matches ({which}).")
            return 0
        self.stdout.write(f"{model._meta.label}: {counted(matching, 'row')} ({which}).")
        for sentence in warnings:
            self.stdout.write(self.style.WARNING(sentence))
        wanted = min(matching, limit or matching)
        question = f"{action.name.partition(' ')[0].capitalize()} {counted(wanted, 'row')}"
        if options["dry_run"]:
            self.stdout.write(f"{question}: not done, --dry-run.")
            return 0
        if options["interactive"] and not _is_agreed(question):
            raise CommandError("Nothing was done.")
        reason = f"{which}, {limit:,} at most" if limit else which
        reason += f": {options['reason']}" if options["reason"] else ""
        facts: dict[str, Any] = {"by": acting(options["by"]), "reason": reason, "using": rows.db}
        record = partial(record_action, model, action.name, **facts)
        return self._run(action, rows, wanted, partial(do or action.run, rows, limit=limit), record)

    def _run(
        self,
        action: Action,
        rows: Rows,
        wanted: int,
        work: Callable[..., int],
        record: Callable[..., None],
    ) -> int:
        """Do the *work*, record what was done even if it ended half-way, and report it."""
        report, began, done = Report(self.stdout, wanted), clock(), str(capfirst(str(action.done)))
        try:
            report.seen = work(progress=report.advance)
        except (Error, TaskClaimError, KeyboardInterrupt):
            self.stdout.write(f"{done} {counted(report.seen, 'row')}, and that stays.")
            raise
        finally:
            # Also where a hook of the user's ended it.
            if report.seen:
                record(rows=report.seen)
        text = f"{done} {counted(report.seen, 'row')} of {rows.model._meta.label}."
        self.stdout.write(self.style.SUCCESS(text))
        refused = refusals(rows.model, rows.db, since=began)
        if (left := wanted - report.seen - len(refused)) > 0:
            text = (
                f"Left alone: {counted(left, 'row')} that others have locked or changed meanwhile."
            )
            self.stdout.write(self.style.WARNING(text))
        if refused:
            raise CommandError("\n".join(map(str, refused)))
        return report.seen


def _is_agreed(question: str) -> bool:
    """Ask the person at the terminal; without a terminal nobody is asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    try:
        answer = input(f"{question}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
