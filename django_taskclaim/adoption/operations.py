"""Migration operations that add claim columns and their index to a table in use.

Users' migrations name these classes, so this import path and the stored form never change. One file runs on every
database: how each of them does it is in ``live`` and the modules beside it.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from django_taskclaim.adoption.columns import NewColumn, new_columns
from django_taskclaim.adoption.live import LiveTable
from django_taskclaim.adoption.tables import live_table
from django_taskclaim.fields import AnyField
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.states import Status

#: What rows may be that were there before the columns were: never running, and not failed without an error.
EXISTING = (Status.PAUSED.value, Status.OPEN.value, Status.COMPLETE.value)


class AdoptionOperation(Operation):
    """What the operations share: a model, and a table that is in use while it changes."""

    # Locks are taken for moments, in transactions of their own; some statements can run in none.
    atomic = False

    model_name: str
    allow_rewrite: bool

    @cached_property
    def model_name_lower(self) -> str:
        return self.model_name.lower()

    def references_model(self, name: str, app_label: str) -> bool:
        return name.lower() == self.model_name_lower

    def _table(self, app_label: str, schema_editor: Any, state: ProjectState) -> LiveTable | None:
        """Return the table, None where the router keeps the model away from this database."""
        model = state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return None
        table = live_table(schema_editor, model, allow_rewrite=self.allow_rewrite)
        if table.needs_own_transactions and schema_editor.connection.in_atomic_block:
            raise ImproperlyConfigured(
                f"{type(self).__name__} takes its locks for moments, so it cannot run inside a transaction; set"
                " atomic = False on its migration."
            )
        return table


class AddClaimColumns(AdoptionOperation):
    """Add the columns *fields*, in one step; rows that are there become *existing*, and new ones are as declared.

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
        self.fields = [(name, field) for name, field in fields]
        self.existing = existing
        self.allow_rewrite = allow_rewrite

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        kwargs = {
            "model_name": self.model_name,
            "fields": self.fields,
            "existing": self.existing,
            **({"allow_rewrite": True} if self.allow_rewrite else {}),
        }
        return type(self).__name__, [], kwargs

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        for name, field in self.fields:
            state.add_field(app_label, self.model_name_lower, name, field, True)

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := self._table(app_label, schema_editor, from_state):
            table.add_columns(self._new_columns(app_label, to_state))

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := self._table(app_label, schema_editor, from_state):
            table.drop_columns([one.field for one in self._new_columns(app_label, from_state)])

    def describe(self) -> str:
        return f"Add {len(self.fields)} claim columns to {self.model_name}; existing rows are {self.existing}"

    @property
    def migration_name_fragment(self) -> str:
        return f"adopt_{self.model_name_lower}"

    def _new_columns(self, app_label: str, state: ProjectState) -> list[NewColumn]:
        model = state.apps.get_model(app_label, self.model_name)
        fields = [model._meta.get_field(name) for name, _field in self.fields]
        return new_columns(fields, self.existing)


class AddClaimIndex(AdoptionOperation):
    """Build the claim index while readers and writers go on. Reversed, it drops the index."""

    def __init__(self, model_name: str, index: ClaimIndex, allow_rewrite: bool = False) -> None:
        if not index.name:
            raise ValueError(f"The index of {type(self).__name__} needs a name.")
        self.model_name = model_name
        self.index = index
        self.allow_rewrite = allow_rewrite

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        kwargs = {
            "model_name": self.model_name,
            "index": self.index,
            **({"allow_rewrite": True} if self.allow_rewrite else {}),
        }
        return type(self).__name__, [], kwargs

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        state.add_index(app_label, self.model_name_lower, self.index)

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := self._table(app_label, schema_editor, to_state):
            table.add_index(self.index)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := self._table(app_label, schema_editor, from_state):
            table.drop_index(self.index)

    def describe(self) -> str:
        return f"Build the claim index {self.index.name} of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"{self.model_name_lower}_{self.index.name.lower()}"


class RemoveClaimIndex(AdoptionOperation):
    """Drop the claim index *name*, which another has replaced. Reversed, it is built again."""

    def __init__(self, model_name: str, name: str, allow_rewrite: bool = False) -> None:
        self.model_name = model_name
        self.name = name
        self.allow_rewrite = allow_rewrite

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        kwargs = {
            "model_name": self.model_name,
            "name": self.name,
            **({"allow_rewrite": True} if self.allow_rewrite else {}),
        }
        return type(self).__name__, [], kwargs

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        state.remove_index(app_label, self.model_name_lower, self.name)

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := self._table(app_label, schema_editor, from_state):
            table.drop_index(self._index(app_label, from_state))

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := self._table(app_label, schema_editor, to_state):
            table.add_index(self._index(app_label, to_state))

    def describe(self) -> str:
        return f"Drop the claim index {self.name} of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"{self.model_name_lower}_without_{self.name.lower()}"

    def _index(self, app_label: str, state: ProjectState) -> models.Index:
        known: models.Index = state.models[app_label, self.model_name_lower].get_index_by_name(
            self.name
        )
        return known
