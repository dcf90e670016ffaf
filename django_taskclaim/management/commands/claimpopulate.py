"""``manage.py claimpopulate``: make the rows of a companion, in chunks that stay when it is stopped."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import router

from django_taskclaim.columns import is_companion, source_link
from django_taskclaim.companions import CompanionQuerySet
from django_taskclaim.formatting import counted
from django_taskclaim.management.base import (
    USAGE,
    ClaimCommand,
    Model,
    Report,
    add_database,
    add_filters,
    add_model,
)
from django_taskclaim.management.rows import conditions_of

#: Sources in one transaction.
CHUNK = 10_000


class Command(ClaimCommand):
    """Populate, and say how far it has got."""

    help = """Add a row to a companion for each row of its source that has none yet.

Goes through the source in the order of its key and commits chunk by chunk, so it may be stopped (Ctrl-C) at any
time: what has been added stays, and the same command goes on from there. Safe to run again, and by several at once."""
    epilog = """examples:
  manage.py claimpopulate photos.PhotoTask
  manage.py claimpopulate photos.PhotoTask --filter country=NZ --paused"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_model(parser, "the companion to populate")
        add_filters(parser, "only sources")
        add_database(parser, "where the router writes the companion")
        parser.add_argument("--paused", action="store_true", help="add the rows paused, not open")

    def handle(
        self,
        *,
        model: Model,
        filters: list[str],
        database: str | None,
        paused: bool,
        **options: Any,
    ) -> None:
        alias = database or router.db_for_write(model)
        if not is_companion(model):
            text = (
                f"{model._meta.label} has no source; add django_taskclaim.models.SourceMixin to it."
            )
            raise CommandError(text, returncode=USAGE)
        rows: CompanionQuerySet[Any] = CompanionQuerySet(model, using=alias)
        try:
            link = source_link(model)
            sources = link.source._default_manager.using(link.alias_beside(alias))
            sources = sources.filter(*conditions_of(filters, link.source))
            self._populate(rows, sources, paused)
        except TypeError as error:
            raise CommandError(str(error), returncode=USAGE) from error

    def _populate(self, rows: CompanionQuerySet[Any], sources: Any, paused: bool) -> None:
        report, added = Report(self.stdout, sources.count()), 0

        def progress(seen: int, added_so_far: int) -> None:
            nonlocal added
            added = added_so_far
            report.advance(seen)

        try:
            rows.populate(sources, paused=paused, chunk_size=CHUNK, progress=progress)
        finally:
            # Also where it was stopped: that much is committed.
            self.stdout.write(f"Added {counted(added, 'row')} to {rows.model._meta.label}.")
