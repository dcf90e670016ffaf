"""Claim columns and their index for a table that others read and write meanwhile, in the way of each database.

A statement that waits for the lock of a table makes all later statements queue behind it. So each step waits for a
moment only, lets the others go first, and tries again.
"""

import copy
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, models, transaction
from django.db.models import NOT_PROVIDED, Value

from django_taskclaim.contention import contention_code
from django_taskclaim.db.sql import real_name
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import AnyField, StatusField

logger = logging.getLogger("django_taskclaim.adoption")

#: Seconds that PostgreSQL waits for a lock; MySQL and MariaDB know whole seconds only.
LOCK_WAIT, LOCK_WAIT_OF_MYSQL = 0.05, 1
#: Seconds between two tries, and until the last one.
RETRY_EVERY, GIVE_UP = 0.5, 600.0
#: The try after which a warning is logged.
WARN_AFTER = 6

#: MySQL's and MariaDB's errors where a table cannot be altered by ALGORITHM=INSTANT.
NOT_INSTANT = frozenset({1845, 1846, 4092})


class WouldRewrite(TaskClaimError):
    """The database cannot add the columns to ``table`` without writing each of its rows, for ``reason``."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(table, reason)

    def __str__(self) -> str:
        return (
            f"The table {self.table} would be rewritten: {self.reason}. Nothing was changed. Make a companion of the"
            " model, or run what manage.py makemigrations writes, in an hour when nobody else uses the table."
        )


class TableInUse(TaskClaimError):
    """The lock on ``table`` could not be had in the time ``waited``."""

    def __init__(self, table: str, waited: timedelta) -> None:
        self.table, self.waited = table, waited
        super().__init__(table, waited)

    def __str__(self) -> str:
        return (
            f"The table {self.table} was in use for {round(self.waited.total_seconds())} s, so nothing was changed."
            " The same migration may be run again."
        )


class NewColumn(NamedTuple):
    """A field as it stays, and as it is added: with the value of existing rows as its default."""

    field: AnyField
    added: AnyField


def new_columns(fields: Sequence[AnyField], existing: str) -> list[NewColumn]:
    """Return the columns, with the state *existing* for rows that are there."""
    return [
        NewColumn(field, with_default(field, existing))
        if isinstance(field, StatusField) and constant_default(field) != existing
        else NewColumn(field, field)
        for field in fields
    ]


def with_default(field: AnyField, value: Any) -> AnyField:
    """Return the field with another default in the database, with none for NOT_PROVIDED."""
    other = copy.copy(field)
    other.__dict__.pop("_db_default_expression", None)
    other.default = value
    other.db_default = value
    return other


def constant_default(field: AnyField) -> Any:
    """Return the value of the field's default in the database; None without one or where it is an expression."""
    default = getattr(field, "db_default", NOT_PROVIDED)
    if isinstance(default, Value):
        default = default.value
    is_constant = default is not NOT_PROVIDED and not hasattr(default, "resolve_expression")
    return default if is_constant else None


class LiveTable:
    """A table in use. This class is for SQLite, which has one writer: others wait until a step has ended."""

    #: Whether the steps need transactions of their own, or none.
    needs_own_transactions = False
    #: What adding the columns and building the index lock.
    columns_lock = (
        "Adds the columns and writes each row once, in one transaction; other writers wait."
    )
    index_lock = "Reads the table once; other writers wait."

    def __init__(self, schema_editor: Any, model: type[models.Model]) -> None:
        self.editor = schema_editor
        self.connection = schema_editor.connection
        self.model = model

    @property
    def name(self) -> str:
        """The table's name as statements spell it."""
        return str(self.editor.quote_name(self.model._meta.db_table))

    @property
    def plain_name(self) -> str:
        """The table's name as people write it."""
        return real_name(self.model._meta.db_table)

    def refuse_rewrite(self, columns: Sequence[NewColumn]) -> None:
        """Raise WouldRewrite for what cannot be done while others write."""
        for column in columns:
            if not column.added.null and constant_default(column.added) is None:
                reason = f"the column {column.field.column} has no constant db_default"
                raise WouldRewrite(self.plain_name, reason)

    def add_columns(self, columns: Sequence[NewColumn]) -> None:
        """Add the columns: existing rows get the defaults that they are added with, new rows those of the fields."""
        self.refuse_rewrite(columns)
        with transaction.atomic(using=self.connection.alias):
            for column in columns:
                # A default cannot be changed later here, so the column is added as it stays.
                self.editor.execute(*self._alter([("ADD COLUMN", column.field)]))
            late = [column for column in columns if column.added is not column.field]
            if late:
                assigned = ", ".join(
                    f"{self.editor.quote_name(column.field.column)} ="
                    f" {self.editor.quote_value(constant_default(column.added))}"
                    for column in late
                )
                self.editor.execute(f"UPDATE {self.name} SET {assigned}", None)

    def drop_columns(self, fields: Sequence[AnyField]) -> None:
        for field in fields:
            self.editor.remove_field(self.model, field)

    def add_index(self, index: models.Index) -> None:
        self.editor.add_index(self.model, index)

    def drop_index(self, index: models.Index) -> None:
        self.editor.remove_index(self.model, index)

    # Pieces for all databases

    def _alter(self, changes: Sequence[tuple[str, AnyField]], how: str = "") -> tuple[str, Any]:
        """Return one ALTER TABLE that makes *changes*, verb and field, and its parameters."""
        clauses, params = [], []
        for verb, field in changes:
            definition, values = self.editor.column_sql(self.model, field)
            suffix = field.db_type_suffix(connection=self.connection) or ""
            name = self.editor.quote_name(field.column)
            clauses.append(f"{verb} {name} {definition} {suffix}".rstrip())
            params += values
        return f"ALTER TABLE {self.name} {', '.join(clauses)}{how}", params or None

    def _drop(self, fields: Sequence[AnyField]) -> str:
        names = ", ".join(f"DROP COLUMN {self.editor.quote_name(field.column)}" for field in fields)
        return f"ALTER TABLE {self.name} {names}"

    def _when_free(self, attempt: Callable[[], None]) -> None:
        """Call *attempt* until it has had its locks; TableInUse after ten minutes."""
        began, tries = time.monotonic(), 0
        while True:
            try:
                return attempt()
            except DatabaseError as error:
                if contention_code(error) is None:
                    raise
                waited = time.monotonic() - began
                if waited >= GIVE_UP:
                    raise TableInUse(self.plain_name, timedelta(seconds=waited)) from error
            tries += 1
            if tries == WARN_AFTER:
                logger.warning(
                    "The table %s is in use by a transaction. Trying again every %s s, for %s s at most; nobody waits"
                    " long behind that.",
                    *(self.plain_name, RETRY_EVERY, GIVE_UP),
                    extra={"event": "waiting", "table": self.plain_name},
                )
            time.sleep(RETRY_EVERY)

    def _rows(self, question: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(question, params)
            return list(cursor.fetchall())


class PostgreSQLTable(LiveTable):
    """A constant default is kept beside the table: no row is written, and changing it later changes none of them."""

    needs_own_transactions = True
    columns_lock = (
        "Locks everybody out (ACCESS EXCLUSIVE) for some milliseconds; no row is read or written."
    )
    index_lock = (
        "Locks out no reader and no writer (CONCURRENTLY): reads the table twice beside them, and waits for"
        " transactions that are older than itself."
    )

    def refuse_rewrite(self, columns: Sequence[NewColumn]) -> None:
        super().refuse_rewrite(columns)
        kind = self._rows("SELECT relkind FROM pg_class WHERE oid = %s::regclass", [self.name])
        if kind == [("p",)]:
            reason = "it is partitioned, and building its index locks writers out"
            raise WouldRewrite(self.plain_name, reason)

    def add_columns(self, columns: Sequence[NewColumn]) -> None:
        self.refuse_rewrite(columns)
        statements = [self._alter([("ADD COLUMN", column.added) for column in columns])]
        for column in columns:
            if column.added is not column.field:
                default, params = self.editor.db_default_sql(column.field)
                name = self.editor.quote_name(column.field.column)
                text = f"ALTER TABLE {self.name} ALTER COLUMN {name} SET DEFAULT {default}"
                statements.append((text, params))
        self._in_a_moment(statements)

    def drop_columns(self, fields: Sequence[AnyField]) -> None:
        self._in_a_moment([(self._drop(fields), None)])

    def add_index(self, index: models.Index) -> None:
        """Build the index; drop what a build that broke off has left, and keep an index that is there."""
        found = self._rows(
            "SELECT i.indisvalid, i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = %s::regclass AND c.relname = %s",
            [self.name, index.name],
        )
        if found and found[0][0]:
            return
        with self._without_time_limits():
            if found:
                self.editor.execute(f"DROP INDEX CONCURRENTLY {found[0][1]}", None)
            self.editor.add_index(self.model, index, concurrently=True)

    def drop_index(self, index: models.Index) -> None:
        with self._without_time_limits():
            self.editor.remove_index(self.model, index, concurrently=True)

    def _in_a_moment(self, statements: Sequence[tuple[str, Any]]) -> None:
        """Run the statements in one transaction that waits for no lock."""

        def attempt() -> None:
            with transaction.atomic(using=self.connection.alias):
                self.editor.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT * 1000:.0f}ms'", None)
                for text, params in statements:
                    self.editor.execute(text, params)

        if self.editor.collect_sql:
            self.editor.collected_sql.append("BEGIN;")
        self._when_free(attempt)
        if self.editor.collect_sql:
            self.editor.collected_sql.append("COMMIT;")

    @contextmanager
    def _without_time_limits(self) -> Iterator[None]:
        """Lift the session's limits, which are meant for queries: nobody waits behind this build."""
        names = ("lock_timeout", "statement_timeout")
        for name in names:
            self.editor.execute(f"SET {name} = 0", None)
        try:
            yield
        finally:
            for name in names:
                self.editor.execute(f"RESET {name}", None)


class MySQLTable(LiveTable):
    """MySQL and MariaDB have no transaction around such statements, so what is there already is passed over."""

    needs_own_transactions = True
    columns_lock = (
        "Locks everybody out for some milliseconds; no row is read or written (ALGORITHM=INSTANT)."
    )
    index_lock = (
        "Locks out no reader and no writer (ALGORITHM=INPLACE, LOCK=NONE) but for a moment at its beginning and its"
        " end: reads the table once beside them."
    )

    def add_columns(self, columns: Sequence[NewColumn]) -> None:
        self.refuse_rewrite(columns)
        there = self._columns_there()
        added = [self._without_text_default(column.added) for column in columns]
        new = [("ADD COLUMN", field) for field in added if field.column not in there]
        late = [
            ("MODIFY COLUMN", column.field)
            for column, field in zip(columns, added, strict=True)
            if field is not column.field
        ]
        try:
            for changes in filter(None, (new, late)):
                self._run(*self._alter(changes, ", ALGORITHM=INSTANT"))
        except DatabaseError as error:
            if error.args[:1] and error.args[0] in NOT_INSTANT:
                reason = str(error.args[1]).rstrip(".")
                raise WouldRewrite(self.plain_name, f"the server says {reason!r}") from error
            raise

    def drop_columns(self, fields: Sequence[AnyField]) -> None:
        there = self._columns_there()
        if known := [field for field in fields if field.column in there]:
            self._run(self._drop(known), None)

    def add_index(self, index: models.Index) -> None:
        if index.name not in self._indexes_there():
            create = index.create_sql(self.model, self.editor)
            self._run(f"{create} ALGORITHM=INPLACE LOCK=NONE", None)

    def drop_index(self, index: models.Index) -> None:
        if index.name in self._indexes_there() or self.editor.collect_sql:
            name = self.editor.quote_name(index.name)
            self._run(f"ALTER TABLE {self.name} DROP INDEX {name}, LOCK=NONE", None)

    def _without_text_default(self, field: AnyField) -> AnyField:
        """Return a text column without a default: MySQL calls one an expression, and copies the table for it.

        Existing rows have empty text without a default.
        """
        is_text = (field.db_type(self.connection) or "").endswith("text")
        if self.connection.mysql_is_mariadb or not is_text or constant_default(field) != "":
            return field
        return with_default(field, NOT_PROVIDED)

    def _run(self, text: str, params: Any) -> None:
        """Run a statement that waits for its lock as shortly as the server can."""
        self.editor.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_OF_MYSQL}", None)
        try:
            self._when_free(lambda: self.editor.execute(text, params))
        finally:
            self.editor.execute("SET SESSION lock_wait_timeout = DEFAULT", None)

    def _columns_there(self) -> set[str]:
        with self.connection.cursor() as cursor:
            look = self.connection.introspection
            return {one.name for one in look.get_table_description(cursor, self.plain_name)}

    def _indexes_there(self) -> set[str]:
        with self.connection.cursor() as cursor:
            return set(self.connection.introspection.get_constraints(cursor, self.plain_name))


_KINDS: dict[str, type[LiveTable]] = {"postgresql": PostgreSQLTable, "mysql": MySQLTable}


def live_table(schema_editor: Any, model: type[models.Model]) -> LiveTable:
    """Return the table of *model*, to be changed in the way of the schema editor's database."""
    return _KINDS.get(schema_editor.connection.vendor, LiveTable)(schema_editor, model)
