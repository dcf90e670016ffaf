"""Migration operations: claim columns and their index for a table in use, and a guard before what cannot be undone.

Users' migrations name these classes, so this import path and the stored form never change. One file runs on every
database; ``tables`` has the way of each.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections, migrations, models, router
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.state import ProjectState
from django.db.models import Exists, OuterRef, Q

from django_taskclaim.adoption.tables import LiveTable, live_table
from django_taskclaim.db.sql import real_name
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import AnyField, RangePositionField, StatusField
from django_taskclaim.formatting import listed
from django_taskclaim.links import LINK
from django_taskclaim.ranges.keys import Keys
from django_taskclaim.states import Status

#: What existing rows may become: never running, and not failed without an error.
EXISTING = (Status.PAUSED.value, Status.OPEN.value, Status.COMPLETE.value)

#: Rows of one state that are counted; where there are more, nobody waits for the exact number.
MOST_COUNTED = 10_000

Filter = Q | Mapping[str, Any]


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
    *filter* (``{"country": "NZ"}``, or a ``Q``) must be complete, and with *allow_failed* complete or failed.

    With *every_source* each row of a companion's source, or each that matches the filter given there, must also have a
    companion. Ranges must reach to the last key of their *source*, ``"photos.Photo"``.

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
    ) -> None:
        self.model = model
        self.filter = filter
        self.allow_failed = allow_failed
        self.every_source = every_source
        self.source = source

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        alias = schema_editor.connection.alias
        model = self._model(from_state, self.model)
        # Also a table with ``managed = False``, so this is not `allow_migrate_model` of our base.
        if not router.allow_migrate_model(alias, model) or not _is_there(model, alias):
            return
        found = [*self._unfinished(model, alias)]
        if self.every_source is not False:
            found += self._without_companion(model, alias)
        if any(isinstance(one, RangePositionField) for one in model._meta.concrete_fields):
            found += self._unplanned(model, alias, from_state)
        if found:
            raise NotComplete(
                f"{self.model} is not complete on {alias!r}, so nothing was dropped: {listed(found)}"
                f" (manage.py claimstatus {self.model} shows more)."
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

    def _model(self, state: ProjectState, label: str) -> type[models.Model]:
        try:
            return state.apps.get_model(label)
        except (LookupError, ValueError) as error:
            raise NotComplete(
                f"RequireComplete({self.model!r}): this migration knows no model {label!r}; write it app.Model, and"
                " add the newest migration of its app to the dependencies."
            ) from error

    def _unfinished(self, model: type[models.Model], alias: str) -> Iterator[str]:
        """Yield how many rows are in each state that is not finished."""
        fields = model._meta.concrete_fields
        status = next((field for field in fields if isinstance(field, StatusField)), None)
        if status is None:
            raise NotComplete(
                f"RequireComplete: {self.model} has no claim columns at this point of the migrations; place it behind"
                " the migration that adds them and before the one that removes them."
            )
        rows = _all(model, alias).filter(_as_q(self.filter))
        for state in Status:
            if state == Status.COMPLETE or (self.allow_failed and state == Status.FAILED):
                continue
            if found := rows.filter(**{status.name: state.value})[: MOST_COUNTED + 1].count():
                yield f"{_number(found)} {'is' if found == 1 else 'are'} {state.value}"

    def _without_companion(self, model: type[models.Model], alias: str) -> Iterator[str]:
        """Yield how many rows of the source of the companion *model* have no companion."""
        link: Any = next((one for one in model._meta.get_fields() if one.name == LINK), None)
        is_companion = isinstance(link, models.ForeignObject)
        if not is_companion or not _is_there(link.related_model, alias):
            if is_companion and not _all(model, alias).exists():
                return
            raise NotComplete(
                f"RequireComplete: every_source is for companions beside their source, and {self.model} has none on"
                f" {alias!r}."
            )
        source: Any = link.related_model
        only = Q() if self.every_source is True else _as_q(self.every_source)
        same = {own.attname: OuterRef(theirs.attname) for own, theirs in link.related_fields}
        lacking = _all(source, alias).filter(only, ~Exists(_all(model, alias).filter(**same)))
        if found := lacking[: MOST_COUNTED + 1].count():
            rows, have = ("row", "has") if found == 1 else ("rows", "have")
            yield f"{_number(found)} {rows} of {source._meta.label} {have} no row there"

    def _unplanned(
        self, model: type[models.Model], alias: str, state: ProjectState
    ) -> Iterator[str]:
        """Yield that the source has rows which no range of *model* holds."""
        if self.source is None:
            raise NotComplete(
                f'RequireComplete: {self.model} has ranges; say of which model, source="app.Model".'
            )
        source = self._model(state, self.source)
        last = _all(model, alias).order_by("-position").values_list("upper", flat=True).first()
        keys = Keys(source, alias)
        if _is_there(source, alias) and keys.rows(keys.decode(last)).exists():
            behind = "behind the last range" if last is not None else "and no range is planned"
            yield f"{self.source} has rows {behind}"


def _is_there(model: type[models.Model], alias: str) -> bool:
    """Say whether the table exists; one whose name carries a schema is taken to, for no list of tables shows it."""
    name = real_name(model._meta.db_table)
    if '"."' in name or "`.`" in name:
        return True
    connection = connections[alias]
    with connection.cursor() as cursor:
        return name in connection.introspection.table_names(cursor, include_views=True)


def _all(model: type[models.Model], alias: str) -> "models.QuerySet[models.Model]":
    """Return every row, also those that a manager hides, in no order."""
    return models.QuerySet(model, using=alias).order_by()


def _as_q(given: Any) -> Q:
    return given if isinstance(given, Q) else Q(**(given or {}))


def _number(found: int) -> str:
    return f"more than {MOST_COUNTED:,}" if found > MOST_COUNTED else f"{found:,}"
