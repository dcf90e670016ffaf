"""An app whose models have just got a mixin, and a folder of migrations of its own for each test."""

import importlib
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from tests.commands import run
from tests.querysets.support import execute

MIGRATIONS = Path(__file__).parent / "app" / "migrations"


class Project:
    """What a developer and a deployment do, in words."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def adopt(self, *words: str) -> str:
        """Write the migrations and return what was said."""
        said = self.run("claimadopt", *words)
        self.refresh()
        return said

    @staticmethod
    def refresh() -> None:
        """Have the new files be found, however fast they came."""
        importlib.invalidate_caches()

    def migrate(self, target: str = "") -> None:
        """Do what ``migrate`` does, but for the signals."""
        executor = MigrationExecutor(connection)
        leaf = executor.loader.graph.leaf_nodes("adoption")[0][1]
        names = {name for app, name in executor.loader.graph.nodes if app == "adoption"}
        named = next((name for name in names if target and name.startswith(target)), leaf)
        executor.migrate([("adoption", None if target == "zero" else named)])

    def unmade(self, model: str) -> list[str]:
        """Return what ``makemigrations`` would still do for the model."""
        said = self.run("makemigrations", "adoption", "--dry-run", verbosity=1).splitlines()
        return [line.strip() for line in said if line.rstrip().endswith(f" {model}")]

    @property
    def files(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("0*.py"))

    def write(self, name: str, source: str) -> None:
        """Have a developer write a migration, or edit one."""
        (self.folder / f"{name}.py").write_text(source, encoding="utf-8")
        sys.modules.pop(f"{self.folder.name}.{name}", None)
        self.refresh()

    run = staticmethod(run)


@pytest.fixture
def project(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> Iterator[Project]:
    package = f"migrations_{uuid.uuid4().hex}"
    folder = tmp_path / package
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(tmp_path)
    # Few apps, for each migration makes the models of all.
    settings.INSTALLED_APPS = ["django_taskclaim", "tests.adoption.app"]
    settings.MIGRATION_MODULES = {"adoption": package}
    made = Project(folder)
    made.migrate("0001")
    yield made
    made.migrate("zero")


@pytest.fixture
def parcel(project: Project) -> Any:
    """The model of a table with five rows that know nothing of the mixin."""
    from tests.adoption.app.models import Parcel

    for number in range(5):
        execute("INSERT INTO adoption_parcel (address) VALUES (%s)", [f"old {number}"])
    return Parcel


def shape(table: str) -> tuple[Any, Any]:
    """Return the columns and the indexes of a table, in no order."""
    look = connection.introspection
    with connection.cursor() as cursor:
        described = look.get_table_description(cursor, table)
        found = look.get_constraints(cursor, table).items()
    # By all but what a column's statistics, or its place, may change.
    columns = {
        one.name: (one.type_code, one.null_ok, one.default, one.collation) for one in described
    }
    indexes = {
        name: (one["columns"], one.get("orders"), one["unique"])
        for name, one in found
        if one["index"]
    }
    return columns, indexes
