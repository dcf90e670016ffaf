"""Migration operations: claim columns and their index for a table in use.

Users' migrations name these classes, so this import path and the stored form never change. One file runs on every
database; ``tables`` has the way of each.
"""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import migrations
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from django_taskclaim.adoption.tables import LiveTable, live_table
from django_taskclaim.fields import AnyField
from django_taskclaim.states import Status

#: What existing rows may become: never running, and not failed without an error.
EXISTING = (Status.PAUSED.value, Status.OPEN.value, Status.COMPLETE.value)


def _table(operation: Any, app_label: str, editor: Any, state: ProjectState) -> LiveTable | None:
    """Return the table of the operation's model; None where the router keeps it away from this database."""
    model = state.apps.get_model(app_label, operation.model_name)
    if not operation.allow_migrate_model(editor.connection.alias, model):
        return None
    table = live_table(editor, model)
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
    ) -> None:
        if existing not in EXISTING:
            raise ValueError(f"existing must be one of {', '.join(EXISTING)}, not {existing!r}.")
        self.model_name = model_name
        self.fields = list(fields)
        self.existing = existing

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        for name, field in self.fields:
            state.add_field(app_label, self.model_name.lower(), name, field, True)

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := _table(self, app_label, schema_editor, from_state):
            table.add_columns(self._bound_fields(app_label, to_state), self.existing)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := _table(self, app_label, schema_editor, from_state):
            table.drop_columns(self._bound_fields(app_label, from_state))

    def describe(self) -> str:
        return f"Add {len(self.fields)} claim columns to {self.model_name}; existing rows are {self.existing}"

    @property
    def migration_name_fragment(self) -> str:
        return f"adopt_{self.model_name.lower()}"

    def _bound_fields(self, app_label: str, state: ProjectState) -> list[AnyField]:
        model = state.apps.get_model(app_label, self.model_name)
        return [model._meta.get_field(name) for name, _ in self.fields]


class AddClaimIndex(migrations.AddIndex):
    """Build the claim index while readers and writers go on. Reversed, it drops the index."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := _table(self, app_label, schema_editor, to_state):
            table.add_index(self.index)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := _table(self, app_label, schema_editor, from_state):
            table.drop_index(self.index)

    @property
    def migration_name_fragment(self) -> str:
        return f"adopt_{self.model_name_lower}_index"
