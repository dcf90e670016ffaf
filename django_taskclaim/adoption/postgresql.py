"""PostgreSQL: columns in one short transaction, the index CONCURRENTLY, partition by partition where there are any."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from django.db import models, transaction
from django.db.backends.utils import names_digest

from django_taskclaim.adoption.columns import NewColumn
from django_taskclaim.adoption.live import GIVES_WAY, LiveTable, measured
from django_taskclaim.adoption.patience import PATIENCE, patiently
from django_taskclaim.fields import AnyField

Statement: TypeAlias = tuple[str, Sequence[Any] | None]

#: A session's time limits, which are meant for queries and would end the building of an index half-way.
_LIMITS = ("lock_timeout", "statement_timeout")


@dataclass(frozen=True)
class Partition:
    """One table of a partitioned one, the topmost among them; its name is quoted."""

    name: str
    parent: str | None
    holds_rows: bool


class PostgreSQLTable(LiveTable):
    """A constant default is kept beside the table: no row is written, and changing it later changes none of them."""

    needs_own_transactions = True

    def _add(self, columns: Sequence[NewColumn]) -> None:
        text, params = self.clauses("ADD COLUMN", [column.born for column in columns])
        statements: list[Statement] = [(f"ALTER TABLE {self.name} {text}", params)]
        statements += [self._set_default(column.field) for column in columns if column.changes]
        self._in_a_moment(statements)

    def drop_columns(self, fields: Sequence[AnyField]) -> None:
        names = ", ".join(f"DROP COLUMN {self.editor.quote_name(field.column)}" for field in fields)
        self._in_a_moment([(f"ALTER TABLE {self.name} {names}", None)])

    def _set_default(self, field: AnyField) -> Statement:
        default, params = self.editor.db_default_sql(field)
        column = self.editor.quote_name(field.column)
        return f"ALTER TABLE {self.name} ALTER COLUMN {column} SET DEFAULT {default}", params

    # The index

    def add_index(self, index: models.Index) -> None:
        """Build the index; what a build that broke off has left is taken away first, what is there is left alone."""
        tree = self._tree()
        if len(tree) > 1 or not tree[0].holds_rows:
            self._build_on_partitions(index, tree)
        else:
            with self._without_limits():
                self._build(index, tree[0].name, str(index.name))

    def drop_index(self, index: models.Index) -> None:
        if self._tree()[0].holds_rows:
            with self._without_limits():
                self.editor.remove_index(self.model, index, concurrently=True)
        else:
            # Takes those of the partitions with it; CONCURRENTLY is refused here.
            self._in_a_moment([(str(index.remove_sql(self.model, self.editor)), None)])

    def _build_on_partitions(self, index: models.Index, tree: Sequence[Partition]) -> None:
        """Declare the index on the table, build it on each partition, and attach those, which makes it valid.

        A partition that is made meanwhile gets its own from the declared one.
        """
        names = {one.name: self._index_name(index, one) for one in tree}
        for one in tree:
            if not one.holds_rows and self._is_valid(one.name, names[one.name]) is None:
                sql = self._create(index, one.name, names[one.name], only=True)
                self._in_a_moment([(sql, None)])
        with self._without_limits():
            for one in tree:
                if one.holds_rows and not self._has_part(one, names):
                    self._build(index, one.name, names[one.name])
        for one in reversed(tree):
            if one.parent is not None and not self._has_part(one, names):
                whole = self.editor.quote_name(names[one.parent])
                part = self.editor.quote_name(names[one.name])
                schema = self._schema_of(one.name)
                above = self._schema_of(one.parent)
                sql = f"ALTER INDEX {above}.{whole} ATTACH PARTITION {schema}.{part}"
                self._in_a_moment([(sql, None)])

    def _build(self, index: models.Index, table: str, name: str) -> None:
        valid = self._is_valid(table, name)
        if valid:
            return
        if valid is False:
            spelled = f"{self._schema_of(table)}.{self.editor.quote_name(name)}"
            self.editor.execute(f"DROP INDEX CONCURRENTLY {spelled}", None)
        self.editor.execute(self._create(index, table, name, concurrently=True), None)

    def _create(self, index: models.Index, table: str, name: str, **how: bool) -> str:
        concurrently = how.get("concurrently", False)
        extra: dict[str, Any] = {"concurrently": True} if concurrently else {}
        statement = copy.copy(index.create_sql(self.model, self.editor, **extra))
        assert statement is not None, "a claim index has columns, so there is a statement"
        statement.parts = statement.parts | {
            "table": f"ONLY {table}" if how.get("only") else table,
            "name": self.editor.quote_name(name),
        }
        return str(statement)

    @staticmethod
    def _index_name(index: models.Index, one: Partition) -> str:
        """Return the index's own name for the topmost table, one made of it for each other."""
        name = str(index.name)
        return name if one.parent is None else f"{name}_{names_digest(one.name, length=8)}"

    # What is there

    def _tree(self) -> list[Partition]:
        """Return the table and its partitions, from the top."""
        found = self._rows(
            "SELECT t.relid::regclass::text, t.parentrelid::regclass::text, c.relkind <> 'p'"
            " FROM pg_partition_tree(%s::regclass) t JOIN pg_class c ON c.oid = t.relid ORDER BY t.level, 1"
        )
        # Of a table without partitions the function says nothing.
        top = Partition(self.name, None, True)
        return [
            Partition(name, parent if number else None, leaf)
            for number, (name, parent, leaf) in enumerate(found)
        ] or [top]

    def _is_valid(self, table: str, name: str) -> bool | None:
        """Say whether the table's index of this name can be used; None where there is none."""
        found = self._rows(
            "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = %s::regclass AND c.relname = %s",
            [table, name],
        )
        return bool(found[0][0]) if found else None

    def _has_part(self, one: Partition, names: dict[str, str]) -> bool:
        """Say whether an index of the partition is part of its parent's; of the topmost table there is no parent."""
        if one.parent is None:
            return False
        found = self._rows(
            "SELECT 1 FROM pg_inherits h JOIN pg_index i ON i.indexrelid = h.inhrelid"
            " JOIN pg_index p ON p.indexrelid = h.inhparent JOIN pg_class c ON c.oid = p.indexrelid"
            " WHERE i.indrelid = %s::regclass AND p.indrelid = %s::regclass AND c.relname = %s",
            [one.name, one.parent, names[one.parent]],
        )
        return bool(found)

    def _schema_of(self, table: str) -> str:
        ((schema,),) = self._rows(
            "SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = %s::regclass",
            [table],
        )
        return str(schema)

    def _users(self) -> list[str]:
        """Return who has a transaction open that uses the table."""
        found = self._rows(
            "SELECT DISTINCT a.pid, a.state, round(extract(epoch FROM now() - a.xact_start))::int"
            " FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"
            " WHERE l.granted AND l.pid <> pg_backend_pid() AND l.database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND (l.relation = %s::regclass OR l.relation IN (SELECT relid FROM pg_partition_tree(%s::regclass)))",
            [self.name, self.name],
        )
        return [f"process {pid} ({state}, for {seconds} s)" for pid, state, seconds in found]

    def _rows(self, question: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(question, [self.name] if params is None else params)
            return list(cursor.fetchall())

    # How

    def _in_a_moment(self, statements: Sequence[Statement]) -> None:
        """Run the statements in one transaction as soon as their locks can be had without keeping others waiting."""
        limit: Statement = (f"SET LOCAL lock_timeout = '{PATIENCE * 1000:.0f}ms'", None)

        def attempt() -> None:
            with transaction.atomic(using=self.connection.alias):
                for text, params in (limit, *statements):
                    self.editor.execute(text, params or None)

        if self.editor.collect_sql:
            self.editor.collected_sql.append("BEGIN;")
            attempt()
            self.editor.collected_sql.append("COMMIT;")
        else:
            patiently(attempt, self.plain_name, self._users)

    @contextmanager
    def _without_limits(self) -> Iterator[None]:
        """Lift the limits of the session, if it has any: what waits here keeps nobody else waiting."""
        limits = {name: self._rows(f"SHOW {name}", ())[0][0] for name in _LIMITS}
        set_ones = {name: limit for name, limit in limits.items() if limit != "0"}
        for name in set_ones:
            self.editor.execute(f"SET {name} = 0", None)
        try:
            yield
        finally:
            # Not RESET: the session may have been given limits of its own since it was opened.
            for name, limit in set_ones.items():
                self.editor.execute(f"SET {name} = '{limit}'", None)

    # What it tells

    def believed_rows(self) -> float | None:
        names = [one.name for one in self._tree()]
        ((rows, never_counted),) = self._rows(
            "SELECT SUM(GREATEST(reltuples, 0)), bool_or(reltuples < 0) FROM pg_class"
            " WHERE oid = ANY(%s::regclass[]) AND relkind = 'r'",
            [names],
        )
        return None if never_counted or rows is None else float(rows)

    def told_of_columns(self, columns: Sequence[NewColumn]) -> list[str]:
        return [
            "Locks everybody out (ACCESS EXCLUSIVE) for some milliseconds; no row is read or written.",
            GIVES_WAY,
        ]

    def told_of_index(self) -> list[str]:
        told = [
            "Locks out no reader and no writer (CONCURRENTLY): it reads the table twice beside them, and waits for"
            " transactions that are older than itself.",
            measured("3 to 9"),
        ]
        if partitions := sum(one.holds_rows for one in self._tree() if one.parent is not None):
            told.append(
                f"One after the other on {partitions} partitions, each attached at the end, which locks writers out for"
                " some milliseconds."
            )
        return told
