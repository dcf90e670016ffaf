"""What is sent to tables of the user's that need have no claim columns: the sources of companions, and their rows."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from django.apps import apps
from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim import conf
from django_taskclaim.columns import KeyColumns
from django_taskclaim.contention import is_of_the_schema
from django_taskclaim.db.sql import SQL, Change, Key, KeyTable, OwnValues, both, sql
from django_taskclaim.fields import AnyField

#: The list of values that an UPDATE joins.
VALUES = "taskclaim_values"

#: What a SELECT that locks does about rows that somebody else has locked.
WAIT, SKIP, NOWAIT = " ", " SKIP LOCKED", " NOWAIT"


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
            self.explain_missing(error, statement.text)
            raise

    def explain_missing(self, error: DatabaseError, statement: str) -> None:
        """Add to *error* how to create the table or column that it misses, if that is what it says."""
        if is_of_the_schema(error):
            error.add_note(self._how_to_migrate(str(error), statement))

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

    def select(
        self,
        table: KeyTable,
        fields: Sequence[AnyField],
        condition: SQL,
        locking: str = "",
        *,
        ordered: bool = False,
        limit: int | None = None,
    ) -> list[list[Any]]:
        """Return *fields* of the rows that match, by key if *ordered*.

        *locking* locks them first: ``WAIT``, ``SKIP`` or ``NOWAIT`` says what happens to rows that others have locked.
        """
        statement = sql(
            "SELECT {} FROM {} WHERE {}{}{}{}",
            table.list_of(fields),
            self.update_target(table) if locking else table.name,
            condition,
            f" ORDER BY {table.key_list}" if ordered or locking else "",
            "" if limit is None else f" LIMIT {limit}",
            f" {self.lock_clause}{locking}" if locking else "",
        )
        return table.python_rows(fields, self.fetch(statement))

    def update_target(self, table: KeyTable) -> str:
        """Name the table in a statement that finds its rows by key, to write or to lock them."""
        return table.name

    def read(
        self, table: KeyTable, keys: Sequence[Key], fields: Sequence[AnyField]
    ) -> list[list[Any]]:
        """Return *fields* of the rows with these keys."""
        parts = self.chunks(keys, table)
        return [row for part in parts for row in self.select(table, fields, table.keyed(part))]

    def chunk_size(self, table: KeyTable, per_key: int = 0) -> int:
        """Return how many rows a statement may have: CHUNK_SIZE, or as many as the database takes parameters for."""
        size: int = conf.setting("CHUNK_SIZE")
        most = self.connection.features.max_query_params
        return max(1, min(size, (most - 40) // (len(table.key) + per_key))) if most else size

    def chunks(
        self, keys: Sequence[Any], table: KeyTable, per_key: int = 0
    ) -> Iterator[Sequence[Any]]:
        """Cut *keys* into what one statement may have."""
        size = self.chunk_size(table, per_key)
        for start in range(0, len(keys), size):
            yield keys[start : start + size]

    def present(self, table: KeyTable, keys: Sequence[Key]) -> set[Key]:
        """Return those of *keys* that the table has."""
        return set(table.keys_of(self.select(table, table.columns.key, table.keyed(keys))))

    def in_order(self, table: KeyTable, keys: Sequence[Key]) -> list[Key]:
        """Return *keys* in the order that the database has them in, without those that are gone."""
        found = self.select(table, table.columns.key, table.keyed(keys), ordered=True)
        return table.keys_of(found)

    def lock_keyed(self, table: KeyTable, keys: Sequence[Key]) -> set[Key]:
        """Lock the rows with these keys that nobody else has locked, and return their keys."""
        return set(table.keys_of(self.select(table, table.columns.key, table.keyed(keys), SKIP)))

    # Writing

    def update(
        self,
        table: KeyTable,
        keys: Sequence[Key],
        change: Change,
        condition: SQL | None = None,
    ) -> SQL:
        """Return the UPDATE of the rows with these keys that also match *condition*.

        Columns with a value for each row are joined to the table: a CASE would grow with the square of the rows.
        """
        assignments = list(change.shared)
        if len(keys) > 1 and change.own:
            assignments += [
                table.assign(one.field, SQL(one.stored.format(f"{VALUES}.v{n}")))
                for n, one in enumerate(change.own)
            ]
            return self.joined_update(table, keys, change.own, assignments, condition)
        assignments += [
            table.assign(one.field, sql(one.stored, one.values[0])) for one in change.own
        ]
        return sql(
            "UPDATE {} SET {} WHERE {}",
            self.update_target(table),
            SQL.join(", ", assignments),
            table.keyed(keys) if condition is None else both(table.keyed(keys), condition),
        )

    def joined_update(
        self,
        table: KeyTable,
        keys: Sequence[Key],
        own: Sequence[OwnValues],
        assignments: Sequence[SQL],
        condition: SQL | None,
    ) -> SQL:
        """Return the UPDATE that takes each row's own values from a list that it joins."""
        names = [f"k{n}" for n in range(len(table.key))]
        same = SQL(table.same_key(VALUES, names))
        return sql(
            "WITH {} ({}) AS (VALUES ({})) UPDATE {} SET {} FROM {} WHERE {}",
            VALUES,
            ", ".join([*names, *[f"v{n}" for n in range(len(own))]]),
            SQL.join("), (", self.value_rows(table, keys, own)),
            table.name,
            SQL.join(", ", assignments),
            VALUES,
            same if condition is None else both(same, condition),
        )

    def value_rows(
        self, table: KeyTable, keys: Sequence[Key], own: Sequence[OwnValues]
    ) -> list[SQL]:
        """Return the key of each row and its own values, as items of a list."""
        marks = ["%s"] * len(table.key)
        given = zip(*[one.values for one in own], strict=True)
        return [
            SQL(
                ", ".join([*marks, *[cell.text for cell in cells]]),
                (*key, *[param for cell in cells for param in cell.params]),
            )
            for key, cells in zip(table.prepared_keys(keys), given, strict=True)
        ]

    def deletion(self, table: KeyTable, keys: Sequence[Key], condition: SQL | None = None) -> SQL:
        """Return the DELETE of the rows with these keys that also match *condition*."""
        keyed = table.keyed(keys)
        matching = keyed if condition is None else both(keyed, condition)
        return sql("DELETE FROM {} WHERE {}", table.name, matching)

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
