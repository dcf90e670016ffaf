"""Cut the keys of a model's source into ranges, behind the last one that is planned.

Walks the primary key and reads nothing else. May be broken off and run again, also while workers run.

Examples:
  manage.py claimplan photos.PhotoRange
  manage.py claimplan photos.PhotoRange --chunk-size 1000000

"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_taskclaim.columns import has_ranges
from django_taskclaim.formatting import counted, first_line
from django_taskclaim.management.base import ONE, ClaimCommand, UsageError, whole_number
from django_taskclaim.ranges import CHUNK_SIZE, RangeQuerySet


class Command(ClaimCommand):
    takes = ONE

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        text = f"rows of the source in each range (default: plan_ahead, or {CHUNK_SIZE:,})"
        parser.add_argument("--chunk-size", type=whole_number, metavar="ROWS", help=text)

    def handle(self, *, chunk_size: int | None, **options: Any) -> None:
        ((model, alias),) = self.where
        label = model._meta.label
        if not has_ranges(model):
            raise UsageError(f"{label} has no ranges; add RangeMixin to it.")
        try:
            planned = RangeQuerySet[Any](model, using=alias).plan(chunk_size=chunk_size)
        except (TypeError, ValueError) as error:
            raise CommandError(f"{label}: {first_line(error)}") from error
        self.stdout.write(f"Planned {counted(planned, 'range')} of {label}.")
