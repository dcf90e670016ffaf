"""SQLite: one transaction, which keeps other writers waiting; rows that are there are written where they differ."""

from collections.abc import Sequence

from django.db import transaction

from django_taskclaim.adoption.columns import NewColumn, must_be_computed
from django_taskclaim.adoption.live import LiveTable, measured

LOCKED = "A writer whose timeout is shorter than that gets 'database is locked'."


class SQLiteTable(LiveTable):
    """A default cannot be changed once the column is there: it is added as it stays, then the rows are written."""

    def _add(self, columns: Sequence[NewColumn]) -> None:
        with transaction.atomic(using=self.connection.alias):
            for column in columns:
                if must_be_computed(column.field):
                    self.editor.add_field(self.model, column.field)
                else:
                    text, params = self.clauses("ADD COLUMN", [column.field])
                    self.editor.execute(f"ALTER TABLE {self.name} {text}", params or None)
            if late := [column for column in columns if column.changes]:
                names = [self.editor.quote_name(column.field.column) for column in late]
                values = [self.editor.quote_value(column.existing) for column in late]
                assigned = ", ".join(map("{} = {}".format, names, values))
                self.editor.execute(f"UPDATE {self.name} SET {assigned}", None)

    def told_of_columns(self, columns: Sequence[NewColumn]) -> list[str]:
        if any(column.changes for column in columns):
            return [
                "Writes each row once, in one transaction; other writers wait meanwhile, readers do not (WAL).",
                measured("2"),
                LOCKED,
            ]
        return ["Adds the columns at once; no row is written."]

    def told_of_index(self) -> list[str]:
        return [
            "Reads the table once; other writers wait meanwhile, readers do not (WAL).",
            measured("2"),
            LOCKED,
        ]
