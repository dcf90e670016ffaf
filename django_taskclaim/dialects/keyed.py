"""What is sent to tables of the user's that need have no claim columns: the sources of companions, and their rows."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from django.apps import apps
from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim import conf
from django_taskclaim.columns import KeyColumns
from django_taskclaim.contention import is_of_the_schema
from django_taskclaim.dialects.statements import SQL, Key, KeyTable, sql
from django_taskclaim.fields import AnyField


class KeyedTables:
    """The part of a dialect that knows rows by key alone, and how statements are sent."""

    lock_clause: ClassVar[str] = "FOR UPDATE"
    #: Whether ``insert_selected`` can pass over rows whose key is there already, and over nothing else.
    passes_over_duplicates: ClassVar[bool] = False

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection

    def fetch(self, statement: SQL) -> list[Any]:
        """Run a statement and return all its rows, so that nothing stays half executed."""
        with self.connection.cursor() as cursor:
            self._send(cursor, statement)
            return list(cursor.fetchall())

    def run(self, statement: SQL) -> int:
        """Run a statement and return how many rows it matched."""
        with self.connection.cursor() as cursor:
            self._send(cursor, statement)
            return int(cursor.rowcount)

    def _send(self, cursor: Any, statement: SQL) -> None:
        try:
            cursor.execute(statement.text, statement.params)
        except DatabaseError as error:
            if is_of_the_schema(error):
                error.add_note(self._how_to_migrate(str(error), statement.text))
            raise

    def _how_to_migrate(self, said: str, statement: str) -> str:
        """Return the command that creates what is missing."""
        by_table = {model._meta.db_table: model._meta.app_label for model in apps.get_models()}
        # An error names a missing table, but not always the table of a missing column.
        named = [table for table in by_table if table in said]
        sent = [table for table in by_table if table in statement and "taskclaim_" not in table]
        label = by_table.get(max(named or sent, key=len, default=""), "")
        using = f" --database {self.connection.alias}" if self.connection.alias != "default" else ""
        first = "" if label.startswith("taskclaim") else f"manage.py makemigrations {label}, then "
        return f"Has a migration been forgotten? Run {first}manage.py migrate {label}{using}."

    def keyed_table(self, columns: KeyColumns) -> KeyTable:
        """Return any table of a model as this connection spells it, its rows told apart by those columns."""
        return KeyTable(columns, self.connection)

    def read(
        self, table: KeyTable, keys: Sequence[Key], fields: Sequence[AnyField]
    ) -> list[list[Any]]:
        """Return *fields* of the rows with these keys."""
        rows: list[list[Any]] = []
        for part in self.chunks(keys, table):
            statement = sql(
                "SELECT {} FROM {} WHERE {}", table.list_of(fields), table.name, table.keyed(part)
            )
            rows += table.python_rows(fields, self.fetch(statement))
        return rows

    def chunks(
        self, keys: Sequence[Any], table: KeyTable, per_key: int = 0
    ) -> Iterator[Sequence[Any]]:
        """Cut *keys* so that no statement exceeds CHUNK_SIZE rows or the parameters that the database takes."""
        size: int = conf.setting("CHUNK_SIZE")
        most = self.connection.features.max_query_params
        if most:
            size = max(1, min(size, (most - 40) // (len(table.key) + per_key)))
        for start in range(0, len(keys), size):
            yield keys[start : start + size]

    def present(self, table: KeyTable, keys: Sequence[Key]) -> set[Key]:
        """Return those of *keys* that the table has."""
        statement = sql(
            "SELECT {} FROM {} WHERE {}",
            table.list_of(table.columns.key),
            table.name,
            table.keyed(keys),
        )
        return set(table.python_keys(self.fetch(statement)))

    def in_order(self, table: KeyTable, keys: Sequence[Key]) -> list[Key]:
        """Return *keys* in the order that the database has them in, without those that are gone."""
        key = table.list_of(table.columns.key)
        statement = sql(
            "SELECT {} FROM {} WHERE {} ORDER BY {}", key, table.name, table.keyed(keys), key
        )
        return table.python_keys(self.fetch(statement))

    def lock_keyed(self, table: KeyTable, keys: Sequence[Key]) -> set[Key]:
        """Lock the rows with these keys that nobody else has locked, and return their keys."""
        statement = sql(
            "SELECT {} FROM {} WHERE {} {} SKIP LOCKED",
            table.list_of(table.columns.key),
            table.name,
            table.keyed(keys),
            self.lock_clause,
        )
        return set(table.python_keys(self.fetch(statement)))

    def update_keyed(self, table: KeyTable, keys: Sequence[Key], assignments: Sequence[SQL]) -> int:
        """Write the rows with these keys and return how many there are."""
        chosen = SQL.join(", ", assignments)
        return self.run(sql("UPDATE {} SET {} WHERE {}", table.name, chosen, table.keyed(keys)))

    def insert_selected(
        self,
        table: KeyTable,
        into: Sequence[AnyField],
        selected: SQL,
        *,
        passing_over: bool = False,
    ) -> int:
        """Insert the rows that a SELECT returns into the columns *into*, and return how many.

        With *passing_over*, for databases with ``passes_over_duplicates``, rows whose key is there already are left
        out; it costs a third more. INSERT IGNORE of MySQL would do more than that: it also stores cut-off values and
        leaves out what any constraint refuses.
        """
        names = ", ".join(table.column(field) for field in into)
        insertion = sql("INSERT INTO {} ({}) {}", table.name, names, selected)
        if passing_over:
            insertion = sql("{} ON CONFLICT ({}) DO NOTHING", insertion, ", ".join(table.key))
        return self.run(insertion)
