"""Migration operations that add claim columns and their index to a table in use.

Users' migrations name these classes, so this import path and the stored form never change. One file runs on every
database; ``tables`` has the way of each.
"""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from django_taskclaim.adoption.tables import LiveTable, NewColumn, live_table, new_columns
from django_taskclaim.fields import AnyField
from django_taskclaim.states import Status

#: What existing rows may become: never running, and not failed without an error.
EXISTING = (Status.PAUSED.value, Status.OPEN.value, Status.COMPLETE.value)


def _table(
    operation: Operation, editor: Any, model: type[models.Model], *, allow_rewrite: bool = False
) -> LiveTable | None:
    """Return the table of *model*; None where the router keeps it away from this database."""
    if not operation.allow_migrate_model(editor.connection.alias, model):
        return None
    table = live_table(editor, model, allow_rewrite=allow_rewrite)
    if table.needs_own_transactions and editor.connection.in_atomic_block:
        raise ImproperlyConfigured(
            f"{type(operation).__name__} takes its locks for moments, so it cannot run inside a transaction; set"
            " atomic = False on its migration."
        )
    return table


class AddClaimColumns(Operation):
    """Add the columns *fields*, in one step; existing rows become *existing*, new ones are as declared.

    Reversed, it drops the columns.
    """

    serialization_expand_args = ["fields"]

    def __init__(
        self,
        model_name: str,
        fields: Sequence[tuple[str, AnyField]],
        existing: str = Status.PAUSED.value,
        allow_rewrite: bool = False,
    ) -> None:
        if existing not in EXISTING:
            raise ValueError(f"existing must be one of {', '.join(EXISTING)}, not {existing!r}.")
        self.model_name = model_name
        self.fields = list(fields)
        self.existing = existing
        self.allow_rewrite = allow_rewrite

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        names = ("model_name", "fields", "existing", "allow_rewrite")
        kwargs = {name: getattr(self, name) for name in names}
        if not self.allow_rewrite:
            del kwargs["allow_rewrite"]
        return type(self).__name__, [], kwargs

    def references_model(self, name: str, app_label: str) -> bool:
        return name.lower() == self.model_name.lower()

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        for name, field in self.fields:
            state.add_field(app_label, self.model_name.lower(), name, field, True)

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if table := _table(self, schema_editor, model, allow_rewrite=self.allow_rewrite):
            table.add_columns(self._columns(app_label, to_state))

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if table := _table(self, schema_editor, model):
            table.drop_columns([one.field for one in self._columns(app_label, from_state)])

    def describe(self) -> str:
        return f"Add {len(self.fields)} claim columns to {self.model_name}; existing rows are {self.existing}"

    @property
    def migration_name_fragment(self) -> str:
        return f"adopt_{self.model_name.lower()}"

    def _columns(self, app_label: str, state: ProjectState) -> list[NewColumn]:
        model = state.apps.get_model(app_label, self.model_name)
        return new_columns([model._meta.get_field(name) for name, _ in self.fields], self.existing)


class AddClaimIndex(migrations.AddIndex):
    """Build the claim index while readers and writers go on. Reversed, it drops the index."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if table := _table(self, schema_editor, model):
            table.add_index(self.index)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if table := _table(self, schema_editor, model):
            table.drop_index(self.index)


class RemoveClaimIndex(migrations.RemoveIndex):
    """Drop the claim index *name*, which another has replaced. Reversed, it is built again."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if table := _table(self, schema_editor, model):
            table.drop_index(self._index(app_label, from_state))

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if table := _table(self, schema_editor, model):
            table.add_index(self._index(app_label, to_state))

    def _index(self, app_label: str, state: ProjectState) -> models.Index:
        of_model = state.models[app_label, self.model_name.lower()]
        index: models.Index = of_model.get_index_by_name(self.name)
        return index
