"""Migration operations: claim columns and their index for a table in use, and a guard before what cannot be undone.

Users' migrations name these classes, so this import path and the stored form never change. One file runs on every
database; ``tables`` has the way of each.
"""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections, migrations, models, router
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.state import ProjectState
from django.db.models import Q

from django_taskclaim.adoption.tables import LiveTable, live_table
from django_taskclaim.db.sql import real_name
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import AnyField, StatusField
from django_taskclaim.formatting import listed
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


class NotComplete(TaskClaimError, CommandError):
    """A migration was stopped before it could drop anything; ``migrate`` prints the sentence and exits with 1."""


class RequireComplete(Operation):
    """Stop the migration, with one sentence, while rows of a claimable model are unfinished.

    *model* is a label, ``"photos.Photo"``: a model with claim columns, a companion, or ranges. Every row that matches
    *filter* must be complete; ``~Q(status="failed")`` lets failed rows pass.

    A table that is empty, or missing, is complete: so is a fresh database. Nothing is changed; reversing does nothing.
    Raises NotComplete.
    """

    category = OperationCategory.PYTHON
    reduces_to_sql = False

    def __init__(self, model: str, filter: Q | None = None) -> None:
        self.model = model
        self.filter = filter

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        alias, model = schema_editor.connection.alias, from_state.apps.get_model(self.model)
        fields = model._meta.concrete_fields
        status = next((field for field in fields if isinstance(field, StatusField)), None)
        if status is None:
            raise NotComplete(
                f"RequireComplete: {self.model} has no claim columns at this point of the migrations; place it behind"
                " the migration that adds them and before the one that removes them."
            )
        # Also a table with ``managed = False``, so this is not `allow_migrate_model` of our base.
        if not router.allow_migrate_model(alias, model) or not _is_there(model, alias):
            return
        # Every row, also those that a manager hides.
        rows: models.QuerySet[Any] = models.QuerySet(model, using=alias)
        rows = rows.order_by().filter(self.filter or Q())
        unfinished = [state.value for state in Status if state != Status.COMPLETE]
        if found := [one for one in unfinished if rows.filter(**{status.name: one}).exists()]:
            raise NotComplete(
                f"{self.model} is not complete on {alias!r}, so nothing was dropped: it has rows that are"
                f" {listed(found)} (manage.py claimstatus {self.model} shows more)."
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


def _is_there(model: type[models.Model], alias: str) -> bool:
    """Say whether the table exists; one whose name carries a schema is taken to, for no list of tables shows it."""
    name = real_name(model._meta.db_table)
    if '"."' in name or "`.`" in name:
        return True
    connection = connections[alias]
    with connection.cursor() as cursor:
        return name in connection.introspection.table_names(cursor, include_views=True)
