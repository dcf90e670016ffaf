"""Add a row to a companion for each row of its source that has none yet.

Goes through the source in the order of its key and commits chunk by chunk, so it may be stopped (Ctrl-C) at any
time: what has been added stays, and the same command goes on from there. Safe to run again, and by several at once.

Examples:
  manage.py claimpopulate photos.PhotoTask
  manage.py claimpopulate photos.PhotoTask --filter country=NZ

"""

from typing import Any

from django_taskclaim.columns import is_companion, source_link
from django_taskclaim.companions import CompanionQuerySet
from django_taskclaim.conditions import condition_of
from django_taskclaim.formatting import counted
from django_taskclaim.management.base import ONE, ClaimCommand, UsageError

#: Sources in one transaction.
CHUNK = 10_000


class Command(ClaimCommand):
    takes = ONE
    filters = "only sources"

    def handle(self, *, filters: list[str], **options: Any) -> None:
        ((model, alias),) = self.where
        label = model._meta.label
        if not is_companion(model):
            raise UsageError(f"{label} has no source; add SourceMixin to it.")
        try:
            link = source_link(model)
            sources = link.source._default_manager.using(link.alias_beside(alias))
            sources = sources.filter(*(condition_of(text, link.source) for text in filters))
            companions = CompanionQuerySet[Any](model, using=alias)
            added = companions.populate(sources, chunk_size=CHUNK)
        except TypeError as error:
            raise UsageError(str(error)) from error
        self.stdout.write(f"Added {counted(added, 'row')} to {label}.")
