"""Write the migrations for a model whose class has just got one of our mixins and whose table is in use.

They do what makemigrations would have done, without an outage: the columns in one step that takes milliseconds, the
index beside readers and writers. Rows that are there become paused, so that no worker does the past again; rows that
come later are open. The same files run on PostgreSQL, MySQL, MariaDB and SQLite, forwards and backwards.

Examples:
  manage.py claimadopt photos.Photo
  manage.py claimadopt photos.Photo --existing open       all that is there is work to do

"""

from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.db import migrations
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.writer import MigrationWriter

from django_taskclaim.adoption.operations import EXISTING, AddClaimColumns, AddClaimIndex
from django_taskclaim.columns import claim_columns
from django_taskclaim.formatting import listed
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.management.base import ONE, ClaimCommand, Model, UsageError


class Command(ClaimCommand):
    takes = ONE
    everywhere = None

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        text = "what rows become that are there already (default: paused)"
        parser.add_argument("--existing", choices=EXISTING, default=EXISTING[0], help=text)

    def handle(self, *, existing: str, **options: Any) -> None:
        ((model, _alias),) = self.where
        meta, loader = claim_columns(model).owner._meta, MigrationLoader(None)
        for file in _files(meta.app_label, loader, _steps(model, loader, existing)):
            (step,) = file.migration.operations
            try:
                Path(file.path).write_text(_source(file), encoding="utf-8")
            except OSError:
                # Half a migration would stop every command of the project.
                Path(file.path).unlink(missing_ok=True)
                raise
            self.stdout.write(f"{file.filename}: {step.describe()}")
        # All apps are migrated: claims read the switch in a table of our own.
        self.stdout.write("Next, in this order:")
        self.stdout.write("  manage.py migrate    before any code runs that has the mixin")
        if existing == EXISTING[0]:
            self.stdout.write(f"  manage.py claimreset {meta.label} --paused    opens the old rows")
        self.stdout.write(f"  manage.py claimworker {meta.label}")


def _steps(model: Model, loader: MigrationLoader, existing: str) -> list[Operation]:
    """Return what adds to the table of *model* what it lacks by the migrations: the columns, then the index."""
    columns = claim_columns(model)
    meta = columns.owner._meta
    app, name = meta.app_label, meta.model_name or ""
    before = loader.project_state().models.get((app, name))
    if before is None or not meta.managed:
        raise UsageError(
            f"No migration makes the table of {meta.label}, so none can alter it: run manage.py makemigrations {app},"
            " or make a companion of a model with managed = False."
        )
    ours = [*columns.guarded, *([columns.priority] if columns.priority is not None else [])]
    known = before.fields
    taken = [one.name for one in ours if type(known.get(one.name, one)) is not type(one)]
    if taken:
        raise UsageError(
            f"{meta.label} has had {listed(taken)} before, with values of its own; take PrefixedTaskMixin, or"
            " claim_fields of your own, whose names differ."
        )
    steps: list[Operation] = []
    if fields := [(field.name, field.clone()) for field in ours if field.name not in known]:
        # By name, as the file is to have it.
        steps.append(AddClaimColumns(model_name=name, fields=fields, existing=existing))
    index = next(index for index in meta.indexes if isinstance(index, ClaimIndex))
    if index.name not in {one.name for one in before.options.get("indexes", ())}:
        steps.append(AddClaimIndex(name, index))
    if not steps:
        raise UsageError(
            f"The migrations of {app} give {meta.label} all its claim columns and the index already; if its table lacks"
            " them, run manage.py migrate."
        )
    return steps


def _files(app: str, loader: MigrationLoader, steps: list[Operation]) -> Iterator[MigrationWriter]:
    """Yield a file for each step, numbered behind the migrations that are there."""
    leaf = loader.graph.leaf_nodes(app)[0]
    for step in steps:
        number = (MigrationAutodetector.parse_number(leaf[1]) or 0) + 1
        body = {"dependencies": [leaf], "operations": [step], "atomic": False}
        kind: type[migrations.Migration] = type("Migration", (migrations.Migration,), body)
        leaf = (app, f"{number:04d}_{step.migration_name_fragment}")
        yield MigrationWriter(kind(leaf[1], app))


def _source(file: MigrationWriter) -> str:
    """Return the source of a migration's file."""
    text = file.as_string()
    if "atomic = False" not in text:
        # Django writes it by itself since 6.0.
        head = "class Migration(migrations.Migration):\n"
        text = text.replace(head, f"{head}\n    atomic = False\n", 1)
    return text
