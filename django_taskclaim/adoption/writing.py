"""The migrations that adopt a model: what its table lacks by the project's migrations, and the files that add it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState
from django.db.migrations.writer import MigrationWriter

from django_taskclaim.adoption.operations import AddClaimColumns, AddClaimIndex, RemoveClaimIndex
from django_taskclaim.columns import claim_columns
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import AnyField
from django_taskclaim.formatting import listed
from django_taskclaim.indexes import ClaimIndex


class CannotAdopt(TaskClaimError):
    """The model has no table to adopt, or nothing that it lacks; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Lack:
    """What the table of ``model`` lacks, by the migrations."""

    model: type[models.Model]
    columns: Sequence[AnyField]
    #: The index to build; None where it is there.
    index: ClaimIndex | None
    #: Names of claim indexes that it replaces.
    replaced: Sequence[str]

    @property
    def app(self) -> str:
        return self.model._meta.app_label


def lack_of(model: type[models.Model], loader: MigrationLoader) -> Lack:
    """Return what the table with *model*'s claim columns lacks; CannotAdopt in a sentence where that is no question."""
    owner = claim_columns(model).owner
    before = _state_before(owner, loader)
    _refuse_taken(owner, before)
    columns = [field for field in _ours(owner) if field.name not in before.fields]
    wanted = next(index for index in owner._meta.indexes if isinstance(index, ClaimIndex))
    known = {one.name: one for one in before.options.get("indexes", ())}
    index = None if wanted.name in known else wanted
    stale = [
        name for name, one in known.items() if isinstance(one, ClaimIndex) and name != wanted.name
    ]
    if not columns and index is None:
        label = owner._meta.label
        raise CannotAdopt(
            f"The migrations of {owner._meta.app_label} give {label} all its claim columns and the index already; if"
            " its table lacks them, run manage.py migrate."
        )
    return Lack(owner, columns, index, stale)


def migrations_for(
    lack: Lack, loader: MigrationLoader, existing: str, *, name: str = ""
) -> list[migrations.Migration]:
    """Return the migrations, numbered behind those that are there: one for the columns, one for the index."""
    model_name = lack.model._meta.model_name or ""
    title = name or f"adopt_{model_name}"
    written: list[migrations.Migration] = []
    if lack.columns:
        fields = [(field.name, field.clone()) for field in lack.columns]
        # By name, as the file is to have it.
        step = AddClaimColumns(model_name=model_name, fields=fields, existing=existing)
        written.append(_behind(loader, lack.app, written, title, [step]))
    if lack.index is not None:
        steps: list[Operation] = [AddClaimIndex(model_name, lack.index)]
        steps += [RemoveClaimIndex(model_name, stale) for stale in lack.replaced]
        written.append(_behind(loader, lack.app, written, f"{title}_index", steps))
    return written


def text_of(migration: migrations.Migration) -> str:
    """Return the source of a migration's file."""
    text = MigrationWriter(migration).as_string()
    if "atomic = False" not in text:
        # Django writes it by itself since 6.0.
        head = "class Migration(migrations.Migration):\n"
        text = text.replace(head, f"{head}\n    atomic = False\n", 1)
    return text


def path_of(migration: migrations.Migration) -> Path:
    """Return where the file of a migration belongs."""
    return Path(MigrationWriter(migration).path)


def _state_before(owner: type[models.Model], loader: MigrationLoader) -> ModelState:
    """Return what the migrations make of the model; CannotAdopt where they make nothing of it."""
    meta = owner._meta
    app = meta.app_label
    if not meta.managed:
        raise CannotAdopt(
            f"{meta.label} is managed = False, so no migration alters its table; make a companion of it."
        )
    if app not in loader.migrated_apps:
        raise CannotAdopt(f"The app {app} has no migrations; run manage.py makemigrations {app}.")
    if app in loader.detect_conflicts():
        raise CannotAdopt(
            f"The migrations of {app} end in several leaves; run manage.py makemigrations --merge."
        )
    found: ModelState | None = loader.project_state().models.get((app, meta.model_name or ""))
    if found is None:
        raise CannotAdopt(
            f"No migration makes the table of {meta.label}, so there is none to adopt; run manage.py makemigrations"
            f" {app}."
        )
    return found


def _refuse_taken(owner: type[models.Model], before: ModelState) -> None:
    """Refuse columns of the user's under the names of ours: what is in them is no state of ours."""
    taken = [
        field.name
        for field in _ours(owner)
        if (old := before.fields.get(field.name)) is not None and type(old) is not type(field)
    ]
    if taken:
        raise CannotAdopt(
            f"{owner._meta.label} has had {listed(taken)} before, with values of its own; take PrefixedTaskMixin, or"
            " claim_fields of your own, whose names leave them alone."
        )


def _ours(owner: type[models.Model]) -> list[AnyField]:
    columns = claim_columns(owner)
    return [*columns.guarded, *([columns.priority] if columns.priority is not None else [])]


def _behind(
    loader: MigrationLoader,
    app: str,
    written: Sequence[migrations.Migration],
    title: str,
    operations: Sequence[Operation],
) -> migrations.Migration:
    """Return a migration that follows the ones *written*, or else the last one that is there."""
    leaf = (app, written[-1].name) if written else loader.graph.leaf_nodes(app)[0]
    number = int(found[0]) + 1 if (found := re.match(r"\d+", leaf[1])) else 1
    body = {"dependencies": [leaf], "operations": list(operations), "atomic": False}
    kind: type[migrations.Migration] = type("Migration", (migrations.Migration,), body)
    return kind(f"{number:04d}_{title}", app)
