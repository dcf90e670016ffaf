"""``manage.py claimplan``: cut the keys of a source into ranges."""

from argparse import ArgumentParser
from functools import partial
from typing import Any

from django.core.management.base import CommandError
from django.db import router

from django_taskclaim.columns import has_ranges
from django_taskclaim.formatting import counted, first_line
from django_taskclaim.management.base import (
    USAGE,
    ClaimCommand,
    Model,
    add_database,
    add_model,
    whole_number,
)
from django_taskclaim.ranges import CHUNK_SIZE, RangeQuerySet, size_of_ranges


class Command(ClaimCommand):
    """Plan ranges, and say how many."""

    help = """Cut the keys of a model's source into ranges, behind the last one that is planned.

Walks the primary key and reads nothing else. May be broken off and run again, also while workers run."""
    epilog = """examples:
  manage.py claimplan photos.PhotoRange
  manage.py claimplan photos.PhotoRange --chunk-size 1000000"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_model(parser, "the model that has RangeMixin")
        add_database(parser, "where the router writes the model")
        parser.add_argument(
            "--chunk-size",
            metavar="ROWS",
            type=whole_number,
            help=f"rows of the source in each range (default: the model's plan_ahead, or {CHUNK_SIZE:,})",
        )
        parser.add_argument(
            "--limit", metavar="N", type=whole_number, help="plan N ranges at most (default: all)"
        )

    def handle(
        self,
        *,
        model: Model,
        database: str | None,
        chunk_size: int | None,
        limit: int | None,
        **options: Any,
    ) -> None:
        if not has_ranges(model):
            text = f"The rows of {model._meta.label} are no ranges; it needs django_taskclaim.models.RangeMixin."
            raise CommandError(text, returncode=USAGE)
        using = database or router.db_for_write(model)
        ranges: RangeQuerySet[Any] = RangeQuerySet(model, using=using)
        progress = partial(self._report, chunk_size or size_of_ranges(model))
        try:
            planned = ranges.plan(chunk_size=chunk_size, limit=limit, progress=progress)
        except (TypeError, ValueError) as error:
            raise CommandError(f"{model._meta.label}: {first_line(error)}") from error
        self.stdout.write(f"Planned {counted(planned, 'range')} of {model._meta.label}.")

    def _report(self, chunk_size: int, planned: int) -> None:
        self.stderr.write(
            f"{counted(planned, 'range')} so far, at most {counted(planned * chunk_size, 'row')}"
        )
