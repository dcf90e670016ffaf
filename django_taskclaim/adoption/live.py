"""A table that others read and write while it changes."""

from collections.abc import Sequence
from typing import Any

from django.db import models

from django_taskclaim.adoption.columns import NewColumn, must_be_computed
from django_taskclaim.adoption.patience import GIVE_UP, PATIENCE
from django_taskclaim.dialects.inspection import real_name
from django_taskclaim.exceptions import WouldRewrite
from django_taskclaim.fields import AnyField
from django_taskclaim.wording import listed

#: What most steps say of the lock that they need for a moment.
GIVES_WAY = (
    f"If the table is in use it waits {PATIENCE * 1000:.0f} ms at most, during which others queue behind it, then lets"
    f" them go first and tries again, for {GIVE_UP / 60:.0f} min."
)


def measured(seconds: str) -> str:
    """Say how long what reads or writes each row has taken; ``benchmarks.adopting`` measures it."""
    return f"That took {seconds} s for each million rows where we measured, on two busy cores."


class LiveTable:
    """The plain way, by Django's own steps, for databases of which nothing better is known.

    What the steps lock, and for how long, is told by ``told_of_columns`` and ``told_of_index``.
    """

    #: Whether the steps need transactions of their own, or none.
    needs_own_transactions = False

    def __init__(
        self, schema_editor: Any, model: type[models.Model], *, allow_rewrite: bool = False
    ) -> None:
        self.editor = schema_editor
        self.connection = schema_editor.connection
        self.model = model
        self.allow_rewrite = allow_rewrite

    @property
    def name(self) -> str:
        """The table's name as it stands in statements."""
        return str(self.editor.quote_name(self.model._meta.db_table))

    @property
    def plain_name(self) -> str:
        """The table's name as people write it."""
        return real_name(self.model._meta.db_table)

    # The steps

    def add_columns(self, columns: Sequence[NewColumn]) -> None:
        """Add the columns: rows that are there as they are born, new ones as the fields say."""
        self.refuse_rewrite(columns)
        self._add(columns)

    def drop_columns(self, fields: Sequence[AnyField]) -> None:
        for field in fields:
            self.editor.remove_field(self.model, field)

    def add_index(self, index: models.Index) -> None:
        self.editor.add_index(self.model, index)

    def drop_index(self, index: models.Index) -> None:
        self.editor.remove_index(self.model, index)

    def _add(self, columns: Sequence[NewColumn]) -> None:
        for column in columns:
            self.editor.add_field(self.model, column.born)
            if column.changes:
                self.editor.alter_field(self.model, column.born, column.field)

    # What they would do

    def refuse_rewrite(self, columns: Sequence[NewColumn]) -> None:
        """Raise WouldRewrite for what cannot be done without writing each row, unless that was allowed."""
        if self.allow_rewrite:
            return
        if obstacles := [*_computed(columns), *self.obstacles()]:
            raise WouldRewrite(self.plain_name, listed(obstacles))

    def obstacles(self) -> list[str]:
        """Return what of the table makes the database copy it for new columns, in clauses."""
        return []

    def believed_rows(self) -> float | None:
        """Return about how many rows there are, by the server's statistics; None where it keeps none."""
        return None

    def told_of_columns(self, columns: Sequence[NewColumn]) -> list[str]:
        """Return what adding the columns locks, and for how long."""
        return ["Locks and duration are those of Django's own AddField; nothing better is known."]

    def told_of_index(self) -> list[str]:
        """Return what building the index locks, and for how long."""
        return ["Locks and duration are those of Django's own AddIndex; nothing better is known."]

    # Pieces of statements

    def definition(self, field: AnyField) -> tuple[str, list[Any]]:
        """Return the name and the definition of a column, and their parameters."""
        text, params = self.editor.column_sql(self.model, field)
        suffix = field.db_type_suffix(connection=self.connection)
        return " ".join(
            part for part in (self.editor.quote_name(field.column), text, suffix) if part
        ), list(params)

    def clauses(self, verb: str, fields: Sequence[AnyField]) -> tuple[str, list[Any]]:
        """Return *verb* and the definition of each field, in one list, with the parameters."""
        texts: list[str] = []
        values: list[Any] = []
        for field in fields:
            text, params = self.definition(field)
            texts.append(f"{verb} {text}")
            values += params
        return ", ".join(texts), values


def _computed(columns: Sequence[NewColumn]) -> list[str]:
    return [
        f"the column {column.field.column} has no constant db_default"
        for column in columns
        if must_be_computed(column.born)
    ]
