"""``manage.py claimadopt``: write the migrations that give claim columns to a table in use."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.core.management.utils import run_formatters
from django.db.migrations.loader import MigrationLoader

from django_taskclaim.adoption.operations import EXISTING
from django_taskclaim.adoption.writing import (
    CannotAdopt,
    adopting_operations,
    migrations_for,
    text_of,
)
from django_taskclaim.columns import claim_columns
from django_taskclaim.management.base import USAGE, ClaimCommand, Model, add_model


class Command(ClaimCommand):
    """Write the migrations, and say what comes next."""

    writes = False
    help = """Write the migrations for a model whose class has just got one of our mixins and whose table is in use.

They do what makemigrations would have done, without an outage: the columns in one step that takes milliseconds, the
index beside readers and writers. Rows that are there become paused, so that no worker does the past again; rows that
come later are open. The same files run on PostgreSQL, MySQL, MariaDB and SQLite, forwards and backwards."""
    epilog = """examples:
  manage.py claimadopt photos.Photo --dry-run
  manage.py claimadopt photos.Photo
  manage.py claimadopt photos.Photo --existing open       all that is there is work to do"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_model(parser, "the model to adopt")
        parser.add_argument(
            "--existing",
            choices=EXISTING,
            default=EXISTING[0],
            help="what rows become that are there already (default: paused)",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="show the files instead of writing them"
        )

    def handle(self, *, model: Model, existing: str, dry_run: bool, **options: Any) -> None:
        loader, meta = MigrationLoader(None), claim_columns(model).owner._meta
        try:
            steps = adopting_operations(model, loader, existing)
        except CannotAdopt as error:
            raise CommandError(str(error), returncode=USAGE) from error
        files = migrations_for(meta.app_label, loader, steps)
        for step, file in zip(steps, files, strict=True):
            self.stdout.write(f"{file.filename}: {step.describe()}")
            if dry_run:
                self.stdout.write(text_of(file))
            else:
                Path(file.path).write_text(text_of(file), encoding="utf-8")
        if not dry_run:
            run_formatters([file.path for file in files], stderr=self.stderr)
        # All apps are migrated: claims read the switch in a table of our own.
        self.stdout.write("Nothing was written." if dry_run else "Next, in this order:")
        self.stdout.write("  manage.py migrate    before any code runs that has the mixin")
        if existing == EXISTING[0]:
            self.stdout.write(
                f"  manage.py claimreset {meta.label} --paused    opens the rows that are there"
            )
        self.stdout.write(f"  manage.py claimworker {meta.label}")
