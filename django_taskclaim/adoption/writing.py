"""The migrations that adopt a model: what its table lacks by the project's migrations, and the files that add it."""

import re
from collections.abc import Sequence

from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.writer import MigrationWriter

from django_taskclaim.adoption.operations import AddClaimColumns, AddClaimIndex
from django_taskclaim.columns import claim_columns
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import listed
from django_taskclaim.indexes import ClaimIndex


class CannotAdopt(TaskClaimError):
    """The model has no table to adopt, or nothing that it lacks; the message is one sentence with what to do."""


def adopting_operations(
    model: type[models.Model], loader: MigrationLoader, existing: str
) -> list[Operation]:
    """Return what adds to the table of *model* what it lacks by the migrations: the columns, then the index.

    Raises CannotAdopt.
    """
    columns = claim_columns(model)
    meta = columns.owner._meta
    app, name = meta.app_label, meta.model_name or ""
    before = loader.project_state().models.get((app, name))
    if before is None or not meta.managed:
        raise CannotAdopt(
            f"No migration makes the table of {meta.label}, so none can alter it: run manage.py makemigrations {app},"
            " or make a companion of a model with managed = False."
        )
    ours = [*columns.guarded, *([columns.priority] if columns.priority is not None else [])]
    known = before.fields
    taken = [
        one.name for one in ours if one.name in known and type(known[one.name]) is not type(one)
    ]
    if taken:
        raise CannotAdopt(
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
        raise CannotAdopt(
            f"The migrations of {app} give {meta.label} all its claim columns and the index already; if its table lacks"
            " them, run manage.py migrate."
        )
    return steps


def migrations_for(
    app: str, loader: MigrationLoader, operations: Sequence[Operation]
) -> list[MigrationWriter]:
    """Return a file for each operation, numbered behind the migrations that are there."""
    leaf = loader.graph.leaf_nodes(app)[0]
    written: list[MigrationWriter] = []
    for operation in operations:
        number = int(found[0]) + 1 if (found := re.match(r"\d+", leaf[1])) else 1
        body = {"dependencies": [leaf], "operations": [operation], "atomic": False}
        kind: type[migrations.Migration] = type("Migration", (migrations.Migration,), body)
        leaf = (app, f"{number:04d}_{operation.migration_name_fragment}")
        written.append(MigrationWriter(kind(leaf[1], app)))
    return written


def text_of(file: MigrationWriter) -> str:
    """Return the source of a migration's file."""
    text = file.as_string()
    if "atomic = False" not in text:
        # Django writes it by itself since 6.0.
        head = "class Migration(migrations.Migration):\n"
        text = text.replace(head, f"{head}\n    atomic = False\n", 1)
    return text
