"""Migration operations: claim columns and their index for a table in use.

Users' migrations name these classes, so this import path and the stored form never change.

A statement that waits for the lock of a table makes all later statements queue behind it. So each step waits only a
moment, lets the others go first, and tries again. Each database has its own way.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor as Editor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState as State
from django.db.models import NOT_PROVIDED

from django_taskclaim.contention import retry_on_contention
from django_taskclaim.db import dialect_for
from django_taskclaim.fields import AnyField, StatusField
from django_taskclaim.states import Status

#: Tries for the lock after the first: ten minutes, with half a second between two tries on average.
RETRIES = 1200

#: A clause of ALTER TABLE, and its parameters.
Clause = tuple[str, Sequence[Any]]

#: Fields of a model with their names, as operations of Django take them.
Named = Sequence[tuple[str, AnyField]]


class LiveTable:
    """A table in use on PostgreSQL or MySQL, which keep a constant default beside the table.

    So adding a column, or changing its default, writes no row.
    """

    #: Settings of the session under which a step waits for a lock for a moment only.
    short_wait: ClassVar[Mapping[str, str]] = {}
    #: What each statement for new columns ends with.
    how: ClassVar[Sequence[Clause]] = ()

    def __init__(self, schema_editor: Any, model: type[models.Model]) -> None:
        self.editor = schema_editor
        self.connection = schema_editor.connection
        self.model = model
        self.name = self.editor.quote_name(model._meta.db_table)

    def add_columns(self, fields: Sequence[AnyField], existing: str) -> None:
        """Add the columns: rows that are there get the state *existing*, new rows the defaults of the fields."""
        self._change(self._add, fields, existing)

    def _add(self, fields: Sequence[AnyField], existing: str) -> None:
        added = {field: self._as_added(field, existing) for field in fields}
        new = [self._add_clause(one) for one in self._missing([*added.values()])]
        changed = [self._default_clause(field) for field, one in added.items() if one is not field]
        for clauses in filter(None, [new, changed]):
            self._alter([*clauses, *self.how])

    def _as_added(self, field: AnyField, existing: str) -> AnyField:
        """Return the field with the default that gives rows that are there their value."""
        return _with_default(field, existing) if isinstance(field, StatusField) else field

    def _missing(self, fields: Sequence[AnyField]) -> Sequence[AnyField]:
        """Return those of the fields that the table lacks: all, where an interrupted step leaves none behind."""
        return fields

    def drop_columns(self, fields: Sequence[AnyField]) -> None:
        self._change(self._alter, [(f"DROP COLUMN {self._quoted(one)}", ()) for one in fields])

    def add_index(self, index: models.Index) -> None:
        self._change(self.editor.add_index, self.model, index)

    def drop_index(self, index: models.Index) -> None:
        self._change(self.editor.remove_index, self.model, index)

    def _alter(self, clauses: Sequence[Clause]) -> None:
        for text, params in clauses:
            self.editor.execute(f"ALTER TABLE {self.name} {text}", params or None)

    def _add_clause(self, field: AnyField) -> Clause:
        definition, params = self.editor.column_sql(self.model, field)
        return f"ADD COLUMN {self._quoted(field)} {definition}", params

    def _default_clause(self, field: AnyField) -> Clause:
        default, params = self.editor.db_default_sql(field)
        return f"ALTER COLUMN {self._quoted(field)} SET DEFAULT {default}", params

    def _quoted(self, field: AnyField) -> str:
        return str(self.editor.quote_name(field.column))

    def _change(self, step: Callable[..., object], *args: object) -> None:
        """Run the step, in one transaction where the database has one, once its lock can be had.

        Raises RetriesExhausted where it cannot; then nothing was changed.
        """
        connection = self.connection
        rolls_back = connection.features.can_rollback_ddl
        retry = retry_on_contention(retries=RETRIES, using=connection.alias, atomic=rolls_back)
        with self._session(self.short_wait):
            retry.call(step, *args)

    @contextmanager
    def _session(self, settings: Mapping[str, str]) -> Iterator[None]:
        for name, value in settings.items():
            self.editor.execute(f"SET SESSION {name} = {value}", None)
        try:
            yield
        finally:
            # On a lost connection this would fail as well, and hide the error.
            if self.connection.connection is not None and self.connection.is_usable():
                for name in settings:
                    self.editor.execute(f"SET SESSION {name} = DEFAULT", None)


class SQLiteTable(LiveTable):
    """SQLite has one writer, so other writers wait until a step has ended."""

    def _add(self, fields: Sequence[AnyField], existing: str) -> None:
        # A default cannot be changed later here, so each column is added as it stays.
        self._alter([self._add_clause(field) for field in fields])
        for status in (self._quoted(one) for one in fields if isinstance(one, StatusField)):
            self.editor.execute(f"UPDATE {self.name} SET {status} = %s", [existing])


class PostgreSQLTable(LiveTable):
    """PostgreSQL makes a step in one transaction, and an index beside readers and writers."""

    short_wait: ClassVar = {"lock_timeout": "'50ms'"}

    def add_index(self, index: models.Index) -> None:
        """Build the index, after what an interrupted build has left behind is dropped."""
        self.drop_index(index)
        with self._without_time_limits():
            self.editor.add_index(self.model, index, concurrently=True)

    def drop_index(self, index: models.Index) -> None:
        with self._without_time_limits():
            self.editor.remove_index(self.model, index, concurrently=True)

    def _without_time_limits(self) -> Any:
        # Time limits are meant for queries, and nobody waits behind this build.
        return self._session({"lock_timeout": "0", "statement_timeout": "0"})


class MySQLTable(LiveTable):
    """MySQL and MariaDB have no transaction around such statements, so columns and an index that exist are skipped."""

    #: The shortest that these servers know.
    short_wait: ClassVar = {"lock_wait_timeout": "1"}

    #: The server refuses a step for which it would have to copy the table.
    how: ClassVar = [("ALGORITHM=INSTANT", ())]

    def _add(self, fields: Sequence[AnyField], existing: str) -> None:
        # Between the two statements others would add rows with the state of old ones, or could add none.
        self.editor.execute(f"LOCK TABLES {self.name} WRITE", None)
        try:
            super()._add(fields, existing)
        finally:
            # A lost connection has lost the lock, and an error of this would hide the first one.
            with suppress(Error):
                self.editor.execute("UNLOCK TABLES", None)

    def _missing(self, fields: Sequence[AnyField]) -> Sequence[AnyField]:
        look, table = self.connection.introspection, self.model._meta.db_table
        with self.connection.cursor() as cursor:
            there = {one.name for one in look.get_table_description(cursor, table)}
        return [one for one in fields if one.column not in there]

    def _default_clause(self, field: AnyField) -> Clause:
        # MySQL refuses SET DEFAULT ('') for a text.
        definition, params = self._add_clause(field)
        return definition.replace("ADD", "MODIFY", 1), params

    def add_index(self, index: models.Index) -> None:
        look, table = self.connection.introspection, self.model._meta.db_table
        with self.connection.cursor() as cursor:
            if not self.editor.collect_sql and index.name in look.get_constraints(cursor, table):
                return
        create = index.create_sql(self.model, self.editor)
        self._change(self.editor.execute, f"{create} ALGORITHM=INPLACE LOCK=NONE", None)

    def _alter(self, clauses: Sequence[Clause]) -> None:
        """Send one statement, because MySQL allows 64 such changes of a table."""
        params = [value for _, values in clauses for value in values]
        super()._alter([(", ".join(text for text, _ in clauses), params)])

    def _as_added(self, field: AnyField, existing: str) -> AnyField:
        is_text = (field.db_type(self.connection) or "").endswith("text")
        if is_text and not self.connection.mysql_is_mariadb:
            # MySQL calls the default of a text an expression, and copies the table for it.
            return _with_default(field, NOT_PROVIDED)
        return super()._as_added(field, existing)


def _with_default(field: AnyField, value: Any) -> AnyField:
    """Return the field with another default in the database, with none for NOT_PROVIDED."""
    other = copy.copy(field)
    other.__dict__.pop("_db_default_expression", None)
    other.default = other.db_default = value
    return other


#: The way of each database.
_KINDS = {"postgresql": PostgreSQLTable, "mysql": MySQLTable, "sqlite": SQLiteTable}

#: What existing rows may become: never running, and not failed without an error.
EXISTING = (Status.PAUSED.value, Status.OPEN.value, Status.COMPLETE.value)


class LiveOperation(Operation):
    """An operation on a table in use, forwards and backwards."""

    model_name: str

    def change(self, table: LiveTable, *, back: bool) -> None:
        """Change the table of the model, or with *back* take the change back."""
        raise NotImplementedError

    def database_forwards(
        self, app_label: str, schema_editor: Editor, from_state: State, to_state: State
    ) -> None:
        self._run(app_label, schema_editor, to_state, back=False)

    def database_backwards(
        self, app_label: str, schema_editor: Editor, from_state: State, to_state: State
    ) -> None:
        self._run(app_label, schema_editor, from_state, back=True)

    def _run(self, app_label: str, editor: Editor, state: State, *, back: bool) -> None:
        model = state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(editor.connection.alias, model):
            return
        connection = dialect_for(editor.connection).connection
        if connection.in_atomic_block:
            raise ImproperlyConfigured(
                f"{type(self).__name__} takes its locks for moments, so it cannot run inside a transaction; set"
                " atomic = False on its migration."
            )
        self.change(_KINDS[connection.vendor](editor, model), back=back)


class AddClaimColumns(LiveOperation):
    """Add the columns *fields*, in one step; existing rows become *existing*, new ones are as declared.

    Reversed, it drops the columns.
    """

    serialization_expand_args = ["fields"]

    def __init__(self, model_name: str, fields: Named, existing: str = EXISTING[0]) -> None:
        if existing not in EXISTING:
            raise ValueError(f"existing must be one of {', '.join(EXISTING)}, not {existing!r}.")
        self.model_name = model_name
        self.fields = list(fields)
        self.existing = existing

    def state_forwards(self, app_label: str, state: State) -> None:
        for name, field in self.fields:
            state.add_field(app_label, self.model_name.lower(), name, field, True)

    def change(self, table: LiveTable, *, back: bool) -> None:
        bound = {field.name: field for field in table.model._meta.local_fields}
        fields = [bound[name] for name, _ in self.fields]
        if back:
            table.drop_columns(fields)
        else:
            table.add_columns(fields, self.existing)

    def describe(self) -> str:
        return f"Add {len(self.fields)} claim columns to {self.model_name}; existing rows are {self.existing}"

    @property
    def migration_name_fragment(self) -> str:
        return f"adopt_{self.model_name.lower()}"


class AddClaimIndex(LiveOperation, migrations.AddIndex):
    """Build the claim index while readers and writers go on. Reversed, it drops the index."""

    def change(self, table: LiveTable, *, back: bool) -> None:
        (table.drop_index if back else table.add_index)(self.index)

    @property
    def migration_name_fragment(self) -> str:
        return f"adopt_{self.model_name_lower}_index"
