"""``manage.py claimprune``: delete rows that have been complete for long."""

from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError
from django.db.models import CASCADE

from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import PRUNE
from django_taskclaim.formatting import format_duration, listed
from django_taskclaim.links import is_companion
from django_taskclaim.management.arguments import duration
from django_taskclaim.management.base import USAGE, ClaimCommand
from django_taskclaim.management.rows import (
    Rows,
    add_rows_of_one_model,
    rows_of,
    run_action,
)
from django_taskclaim.querysets.removing import prunable
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.states import Status


class Command(ClaimCommand):
    """Delete old rows."""

    help = """Delete rows that were completed longer ago than --older-than, by the database's clock.

First they are counted and, on a terminal, you are asked. They are then deleted chunk by chunk, each committed, so it
may be stopped (Ctrl-C) at any time. A row that was opened again meanwhile stays, and so does one that is locked. What
refers to a row follows Django's on_delete: it is deleted with it, or keeps it. What was done is recorded.

Rows in any other state are never deleted, nor are complete ones without a completed_at, nor the last of the ranges."""
    epilog = """examples:
  manage.py claimprune photos.Photo --complete --older-than 30d --dry-run
  manage.py claimprune photos.Photo --complete --older-than 30d
  manage.py claimprune photos.Photo --complete --older-than 12h --filter country=NZ --noinput

exit codes:
  0    done, or nothing matched
  1    a database refused, a protected row refers to one of these, or the answer was no; the message says which
  2    wrong usage, or a table that is not there
  130  stopped by Ctrl-C; what was deleted is gone"""
    in_english = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--complete", action="store_true", required=True, help="complete rows; no others can be"
        )
        parser.add_argument(
            "--older-than",
            metavar="SECONDS",
            type=duration,
            required=True,
            help="of those, the ones completed so long ago: seconds, or 30m, 12h, 30d",
        )
        add_rows_of_one_model(parser)

    def handle(
        self,
        *,
        model: Any,
        database: str | None,
        filters: list[str],
        older_than: timedelta,
        **options: Any,
    ) -> None:
        def prune(rows: Rows, **limits: Any) -> int:
            return int(rows.prune(older_than=older_than, **limits))

        with rows_of(model, database) as choice:
            if claim_columns(model).completed_at is None:
                raise CommandError(
                    f"{choice.label} has no completed_at, so nobody knows how long its rows have been complete.",
                    returncode=USAGE,
                )
            choice.by_state(Status.COMPLETE)
            old = prunable(ClaimTarget.of(model, choice.rows.db), older_than)
            choice.narrow(choice.rows.filter(old), f"for more than {format_duration(older_than)}")
            choice.by_filters(filters)
            run_action(self, PRUNE, choice, do=prune, warnings=list(_warnings(model)), **options)


def _warnings(model: object) -> Iterator[str]:
    cascading = _deleted_with(model)
    if cascading:
        yield f"What refers to them goes with them: {listed(cascading, most=20)}."
    if is_companion(model):
        yield "Their sources have no row then: populate() adds one for each again, as for new ones."


def _deleted_with(model: Any) -> list[str]:
    """Return the labels of what refers to rows of *model* and is deleted with them."""
    relations = claim_columns(model).owner._meta.related_objects
    going = {str(one.related_model._meta.label) for one in relations if one.on_delete is CASCADE}
    return sorted(going - _family(model))


def _family(model: Any) -> set[str]:
    """Return the labels of the models on whose tables a row of *model* lies, or may lie."""
    owner = claim_columns(model).owner
    family = [owner, *owner._meta.all_parents]
    children = [one for one in apps.get_models() if issubclass(one, owner)]
    return {str(one._meta.label) for one in [*family, *children]}
