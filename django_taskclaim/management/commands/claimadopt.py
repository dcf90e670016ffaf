"""``manage.py claimadopt``: write the migrations that give claim columns to a table in use."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.core.management.utils import run_formatters
from django.db import DEFAULT_DB_ALIAS, Error, connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration

from django_taskclaim.adoption.operations import EXISTING
from django_taskclaim.adoption.tables import WouldRewrite, live_table, new_columns
from django_taskclaim.adoption.writing import (
    CannotAdopt,
    Lack,
    lack_of,
    migrations_for,
    path_of,
    text_of,
)
from django_taskclaim.formatting import first_line
from django_taskclaim.management.arguments import add_database, claimable_model
from django_taskclaim.management.base import USAGE, ClaimCommand


class Command(ClaimCommand):
    """Write the migrations, and say what they lock."""

    writes = False
    help = """Write the migrations for a model whose class has just got a mixin of ours and whose table is in use.

They do what makemigrations would have done, without an outage: the columns in one step that takes milliseconds, the
index beside readers and writers. Rows that are there become paused, so that no worker does the past again; rows that
come later are open. The same files run on PostgreSQL, MySQL, MariaDB and SQLite, forwards and backwards."""
    epilog = """examples:
  manage.py claimadopt photos.Photo --dry-run
  manage.py claimadopt photos.Photo
  manage.py claimadopt photos.Photo --existing open       all that is there is work to do
then:
  manage.py migrate
  manage.py claimresume photos.Photo --rows --limit 1000  let workers begin with some of the past
  manage.py claimworker photos.Photo

exit codes:
  0  written
  2  nothing to adopt, or the table would be rewritten; the message says what to do"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "model", metavar="app.Model", type=claimable_model, help="the model to adopt"
        )
        parser.add_argument(
            "--existing",
            choices=EXISTING,
            default=EXISTING[0],
            help="what rows become that are there already (default: paused)",
        )
        parser.add_argument(
            "--name", default="", metavar="NAME", help="of the migrations (default: adopt_<model>)"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="show the files instead of writing them"
        )
        add_database(parser, "where the router writes the model")

    def handle(
        self,
        *,
        model: Any,
        existing: str,
        name: str,
        dry_run: bool,
        database: str | None,
        **options: Any,
    ) -> None:
        if name and not name.isidentifier():
            raise CommandError(f"--name {name!r} is no name of a migration.", returncode=USAGE)
        loader = MigrationLoader(None)
        try:
            lack = lack_of(model, loader)
            written = migrations_for(lack, loader, existing, name=name)
            alias = database or router.db_for_write(lack.model)
            locks = self._locks(lack, written, existing, alias)
        except (CannotAdopt, WouldRewrite) as error:
            raise CommandError(str(error), returncode=USAGE) from error
        for line in locks:
            self.stdout.write(line)
        paths = [path_of(migration) for migration in written]
        for migration, path in zip(written, paths, strict=True):
            if dry_run:
                self.stdout.write(f"\n# {_shown(path)}\n{text_of(migration)}")
            else:
                path.write_text(text_of(migration), encoding="utf-8")
                self.stdout.write(self.style.SUCCESS(f"Wrote {_shown(path)}"))
        if not dry_run:
            run_formatters([str(path) for path in paths], stderr=self.stderr)
        self._write_next_steps(lack, existing, alias, dry_run=dry_run)

    def _locks(
        self, lack: Lack, written: Sequence[Migration], existing: str, alias: str
    ) -> list[str]:
        """Return what each step locks on the database *alias*; WouldRewrite where it would copy the table."""
        columns = new_columns(lack.columns, existing)
        try:
            with connections[alias].schema_editor(collect_sql=True, atomic=False) as editor:
                table = live_table(editor, lack.model)
                table.refuse_rewrite(columns)
        except Error as error:
            return [f"The database {alias!r} does not answer: {first_line(error)}"]
        locks = [table.columns_lock] if columns else []
        locks += [table.index_lock] if lack.index is not None else []
        lines = [f"{lack.model._meta.label}, table {table.plain_name} on {alias!r}:"]
        for migration, lock in zip(written, locks, strict=True):
            what = "; ".join(operation.describe() for operation in migration.operations)
            lines += [f"  {migration.name}: {what}", f"    {lock}"]
        return lines

    def _write_next_steps(self, lack: Lack, existing: str, alias: str, *, dry_run: bool) -> None:
        label = lack.model._meta.label
        where = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
        self.stdout.write(
            "Nothing was written. Without --dry-run these steps come next:"
            if dry_run
            else "Next, in this order:"
        )
        # All apps: claims read the switch in a table of our own.
        self.stdout.write(f"  manage.py migrate{where}    before any code runs that has the mixin")
        if lack.columns and existing == EXISTING[0]:
            self.stdout.write(
                f"  manage.py claimresume {label} --rows    opens the rows that are there"
            )
        self.stdout.write(f"  manage.py claimworker {label}")


def _shown(path: Path) -> str:
    """Return the path as people write it, from where they are."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
