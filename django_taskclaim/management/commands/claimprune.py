"""Delete rows that were completed longer ago than --older-than, by the database's clock.

First they are counted and, on a terminal, you are asked. They are then deleted chunk by chunk, each committed, so it
may be stopped (Ctrl-C) at any time. A row that was opened again meanwhile stays, and so does one that is locked. What
refers to a row follows Django's on_delete: it is deleted with it, or keeps it. What was done is recorded.

Rows in any other state are never deleted, nor are complete ones without a completed_at, nor the last of the ranges.

Examples:
  manage.py claimprune photos.Photo --older-than 30d --dry-run
  manage.py claimprune photos.Photo --older-than 30d
  manage.py claimprune photos.Photo --older-than 12h --filter country=NZ --noinput

"""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.db.models import CASCADE

from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import PRUNE
from django_taskclaim.formatting import format_duration, listed
from django_taskclaim.management.base import Model, RowsCommand, UsageError, duration
from django_taskclaim.querysets.operating import Delete
from django_taskclaim.querysets.scope import ClaimTarget


class Command(RowsCommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        text = "rows that were completed so long ago: seconds, or 30m, 12h, 30d"
        parser.add_argument("--older-than", type=duration, required=True, metavar="AGE", help=text)
        super().add_arguments(parser)

    def handle(self, *, older_than: timedelta, **options: Any) -> None:
        ((model, alias),) = self.where
        try:
            old = Delete(older_than).condition(ClaimTarget.of(model, alias))
        except TypeError as error:
            raise UsageError(str(error)) from error
        which = f"complete, for more than {format_duration(older_than)}"
        self.perform(PRUNE, which, old, _warnings(model), how={"older_than": older_than}, **options)


def _warnings(model: Model) -> list[str]:
    relations = claim_columns(model).owner._meta.related_objects
    cascading = {one.related_model._meta.label for one in relations if one.on_delete is CASCADE}
    others = sorted(cascading - {model._meta.label})
    return [f"What refers to them goes with them: {listed(others, most=20)}."] if others else []
