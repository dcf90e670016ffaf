"""Migration operations: claim columns and their index for a table in use, and a guard before what cannot be undone.

Users' migrations name these classes, so this import path and the stored form never change. One file runs on every
database; ``tables`` has the way of each.
"""

from collections.abc import Sequence
from typing import Any

from django.apps import apps as installed
from django.core.exceptions import ImproperlyConfigured
from django.db import migrations, models, router
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.state import ProjectState

from django_taskclaim.adoption.tables import LiveTable, NewColumn, live_table, new_columns
from django_taskclaim.adoption.unfinished import (
    Filter,
    NotComplete,
    is_range,
    is_there,
    sources_without_companion,
    unfinished_rows,
    unplanned_keys,
)
from django_taskclaim.fields import AnyField
from django_taskclaim.formatting import listed
from django_taskclaim.ranges.keys import source_of
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

    def references_model(self, name: str, app_label: str) -> bool:
        return name.lower() == self.model_name.lower()

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        for name, field in self.fields:
            state.add_field(app_label, self.model_name.lower(), name, field, True)

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := _table(self, app_label, schema_editor, from_state):
            table.add_columns(self._columns(app_label, to_state))

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := _table(self, app_label, schema_editor, from_state):
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
        if table := _table(self, app_label, schema_editor, to_state):
            table.add_index(self.index)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := _table(self, app_label, schema_editor, from_state):
            table.drop_index(self.index)


class RemoveClaimIndex(migrations.RemoveIndex):
    """Drop the claim index *name*, which another has replaced. Reversed, it is built again."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := _table(self, app_label, schema_editor, from_state):
            table.drop_index(self._index(app_label, from_state))

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if table := _table(self, app_label, schema_editor, to_state):
            table.add_index(self._index(app_label, to_state))

    def _index(self, app_label: str, state: ProjectState) -> models.Index:
        of_model = state.models[app_label, self.model_name.lower()]
        index: models.Index = of_model.get_index_by_name(self.name)
        return index


class RequireComplete(Operation):
    """Stop the migration, with one sentence, while rows of a claimable model are unfinished.

    *model* is a label, ``"photos.Photo"``: a model with claim columns, a companion, or ranges. Every row that matches
    *filter* (``{"country": "NZ"}``, or a ``Q``) must be complete, and with *allow_failed* complete or failed.

    With *every_source* each row of a companion's source, or each that matches the filter given there, must also have a
    companion. Ranges must reach to the last key of the source, which is read off the model; once that has gone from
    the code, *source* names it, ``"photos.Photo"``.

    A table that is empty, or missing, is complete: so is a fresh database. Nothing is changed; reversing does nothing.
    Raises NotComplete.
    """

    category = OperationCategory.PYTHON
    reduces_to_sql = False
    reversible = True

    def __init__(
        self,
        model: str,
        filter: Filter | None = None,
        allow_failed: bool = False,
        every_source: Filter | bool = False,
        source: str | None = None,
        elidable: bool = False,
    ) -> None:
        self.model = model
        self.filter = filter
        self.allow_failed = allow_failed
        self.every_source = every_source
        self.source = source
        self.elidable = elidable  # type: ignore[misc]  # as Django's RunPython does

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        alias = schema_editor.connection.alias
        model = self._model(from_state, self.model)
        # Tables that others look after are looked at, too, so this is not `allow_migrate_model` of our base.
        if not router.allow_migrate_model(alias, model) or not is_there(model, alias):
            return
        states = {*Status} - {Status.COMPLETE} - ({Status.FAILED} if self.allow_failed else set())
        found = [*unfinished_rows(model, alias, self.filter, states)]
        if self.every_source is not False:
            only = None if self.every_source is True else self.every_source
            found += sources_without_companion(model, alias, only)
        if is_range(model):
            found += unplanned_keys(model, alias, self._source_of_ranges(from_state))
        if found:
            raise NotComplete(
                f"{self.model} is not complete on {alias!r}, so nothing was dropped: {listed(found)}"
                f" (manage.py claimstatus {self.model} tells more)."
            )

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Nothing was done, so nothing is undone."""

    def describe(self) -> str:
        return f"Require that {self.model} is complete"

    @property
    def migration_name_fragment(self) -> str:
        return f"require_complete_{self.model.rpartition('.')[2].lower()}"

    def _model(self, state: ProjectState, label: str) -> Any:
        try:
            return state.apps.get_model(label)
        except (LookupError, ValueError) as error:
            raise NotComplete(
                f"RequireComplete({self.model!r}): this migration knows no model {label!r}; write it app.Model, and"
                " add the newest migration of its app to the dependencies."
            ) from error

    def _source_of_ranges(self, state: ProjectState) -> Any:
        """Return the source as this migration knows it; None where nothing names it."""
        label = self.source
        if label is None:
            try:
                label = source_of(installed.get_model(self.model))._meta.label
            except (LookupError, TypeError):
                return None
        return self._model(state, label)
