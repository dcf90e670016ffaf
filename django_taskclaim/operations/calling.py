"""``CallOnInsert``: a step of a migration that has the database call workers for rows that come in by raw SQL."""

from typing import Any

from django.db.migrations.operations.base import Operation

from django_taskclaim.dialects.waking import can_call, trigger_removal, trigger_statements


class CallOnInsert(Operation):
    """Have the database itself call workers (``@handler(wake_up=True)``) for every INSERT into a model's table.

    Only needed for rows that come in past Django: raw SQL, COPY, other programs. *model_name* is the model whose table
    holds the status. On databases that know no such calls, all but PostgreSQL, it does nothing.
    """

    # Where migrations find it, whatever file it stands in.
    __module__ = "django_taskclaim.operations"

    reduces_to_sql = True
    reversible = True

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing: models do not show it."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if self._concerns(schema_editor, model):
            for statement in trigger_statements(schema_editor.connection, model._meta.db_table):
                schema_editor.execute(statement, params=None)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if self._concerns(schema_editor, model):
            schema_editor.execute(trigger_removal(schema_editor.connection, model._meta.db_table))

    def _concerns(self, schema_editor: Any, model: Any) -> bool:
        alias = schema_editor.connection.alias
        return can_call(schema_editor.connection) and self.allow_migrate_model(alias, model)

    def describe(self) -> str:
        return f"Call workers when rows are inserted into {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"call_on_insert_{self.model_name.lower()}"
