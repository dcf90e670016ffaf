"""``manage.py claimpopulate``: make the rows of a companion, in chunks that stay when it is stopped."""

import time
from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, models, router

from django_taskclaim.companions import CompanionQuerySet
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import counted, first_line, format_duration
from django_taskclaim.links import is_companion, source_link
from django_taskclaim.management.arguments import (
    add_database,
    add_filters,
    claimable_model,
    whole_number,
)
from django_taskclaim.management.base import USAGE, ClaimCommand, lacking_source, lacking_tables
from django_taskclaim.worker.selection import SelectionError, condition_of

#: Sources in one transaction, unless --chunk says otherwise.
CHUNK = 10_000
#: Exit code after Ctrl-C, as shells have it.
STOPPED = 130


def companion_model(text: str) -> Any:
    """Return the companion that ``app.Model`` names."""
    model = claimable_model(text)
    if not is_companion(model):
        raise ArgumentTypeError(
            f"the model {model._meta.label} has no source; add django_taskclaim.models.SourceMixin to it"
        )
    return model


class Command(ClaimCommand):
    """Populate, and say how far it has got."""

    help = """Add a row to a companion for each row of its source that has none yet.

Goes through the source in the order of its key and commits chunk by chunk, so it may be stopped (Ctrl-C) at any
time: what has been added stays, and the same command goes on from there. Safe to run again, and by several at once."""
    epilog = """examples:
  manage.py claimpopulate photos.PhotoTask
  manage.py claimpopulate photos.PhotoTask --filter country=NZ --paused
  manage.py claimpopulate photos.PhotoTask --remove-orphans     then remove rows whose source is gone

exit codes:
  0    done
  1    a database refused; the message says why
  2    wrong usage, or a table that is not there
  130  stopped by Ctrl-C"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "model", metavar="app.Model", type=companion_model, help="the companion to populate"
        )
        add_filters(parser, "only sources")
        add_database(parser, "where the router writes the companion")
        parser.add_argument(
            "--chunk",
            metavar="N",
            type=partial(whole_number, most=1_000_000),
            default=CHUNK,
            help=f"commit after so many sources (default: {CHUNK:,})",
        )
        parser.add_argument("--paused", action="store_true", help="add the rows paused, not open")
        parser.add_argument(
            "--remove-orphans",
            action="store_true",
            help="then remove rows whose source is gone, but none that is running",
        )

    def handle(
        self,
        *,
        model: type[models.Model],
        filters: list[str],
        database: str | None,
        chunk: int,
        paused: bool,
        remove_orphans: bool,
        **options: Any,
    ) -> None:
        alias = database or router.db_for_write(model)
        rows: CompanionQuerySet[Any] = CompanionQuerySet(model, using=alias)
        try:
            if lacking := [*lacking_tables(model, alias), *lacking_source(model, alias)]:
                raise CommandError("\n".join(lacking), returncode=USAGE)
            self._populate(rows, _sources(model, alias, filters), chunk, paused)
            if remove_orphans:
                removed = rows.remove_orphans()
                self.stdout.write(f"Removed {counted(removed, 'row')} without a source.")
            self._report_orphans(rows, remove_orphans)
        except (Error, TaskClaimError) as error:
            raise CommandError(f"{model._meta.label}: {first_line(error)}") from error
        except TypeError as error:
            raise CommandError(str(error), returncode=USAGE) from error

    def _populate(
        self, rows: CompanionQuerySet[Any], sources: Any, chunk: int, paused: bool
    ) -> None:
        report = Report(self.stdout, sources.count())
        try:
            added = rows.populate(sources, paused=paused, chunk_size=chunk, progress=report.advance)
        except KeyboardInterrupt:
            report.end()
            raise CommandError(
                f"Stopped. {counted(report.added, 'row')} added and committed; the same command goes on from there.",
                returncode=STOPPED,
            ) from None
        report.end()
        self.stdout.write(f"Added {counted(added, 'row')} to {rows.model._meta.label}.")

    def _report_orphans(self, rows: CompanionQuerySet[Any], removed: bool) -> None:
        left = rows.orphans().count()
        if left:
            why = "running or locked" if removed else "remove them with --remove-orphans"
            self.stdout.write(
                self.style.WARNING(f"{counted(left, 'row')} without a source: {why}.")
            )


def _sources(model: type[models.Model], alias: str, filters: list[str]) -> object:
    """Return the sources that all *filters* select."""
    link = source_link(model)
    try:
        conditions = [condition_of(one, link.source, of_claims=False) for one in filters]
    except SelectionError as error:
        raise CommandError(f"--filter {error}.", returncode=USAGE) from error
    return link.source._default_manager.using(link.alias_beside(alias)).filter(*conditions)


class Report:
    """How far it has got: a bar on a terminal, else a line now and then."""

    WIDTH = 30
    #: Seconds between two lines, or two looks of the bar.
    EVERY, EVERY_BAR = 10.0, 0.1

    def __init__(self, out: Any, total: int) -> None:
        self.out, self.total = out, total
        self.bar = out.isatty()
        self.seen = self.added = 0
        self.began = self.shown = time.monotonic()

    def advance(self, seen: int, added: int) -> None:
        """Note how far it has got."""
        self.seen, self.added = seen, added
        now = time.monotonic()
        if now - self.shown >= (self.EVERY_BAR if self.bar else self.EVERY):
            self.shown = now
            self._show()

    def end(self) -> None:
        """Leave the bar as it is."""
        if self.bar:
            self._show()
            self.out.write("\n", ending="")

    def _show(self) -> None:
        # Sources may have come while it ran.
        share = min(1.0, self.seen / self.total) if self.total else 1.0
        figures = f"{share:6.1%}  {self._figures()}{self._left()}"
        if self.bar:
            drawn = "#" * int(share * self.WIDTH)
            self.out.write(f"\r[{drawn:<{self.WIDTH}}] {figures:<70}", ending="")
        else:
            self.out.write(figures.strip())
        self.out.flush()

    def _figures(self) -> str:
        return f"{self.seen:,} of {self.total:,} seen, {self.added:,} added"

    def _left(self) -> str:
        took = time.monotonic() - self.began
        left = self.total - self.seen
        if left <= 0 or not self.seen:
            return ""
        return f", {format_duration(timedelta(seconds=took * left / self.seen))} left"
