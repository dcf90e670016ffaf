"""SQL text for one table on one connection: names quoted, values bound, nothing decided.

Names are quoted as Django quotes them and every statement is sent with parameters, so a ``%`` in a name means what
it means in Django's own statements.
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from django.conf import settings
from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.columns import ClaimColumns, KeyColumns, unlinked
from django_taskclaim.fields import AnyField, MomentField, moment_reader
from django_taskclaim.states import Status, Token

Key = Any

Keys: TypeAlias = Sequence[Key]
Fields: TypeAlias = Sequence[AnyField]
Rows: TypeAlias = "models.QuerySet[Any]"

#: The values of one row, in the order of the columns asked for: as the driver gives them, and as Python shows them.
Raw: TypeAlias = tuple[Any, ...]
Row: TypeAlias = list[Any]

#: Stands for all transactions that wait for the second phase of their commit: they cannot be told apart.
PREPARED = "prepared"


#: Columns whose whole numbers are sent as they are.
PLAIN_INTEGERS = {
    models.AutoField,
    models.BigAutoField,
    models.SmallAutoField,
    models.IntegerField,
    models.BigIntegerField,
    models.SmallIntegerField,
}


#: The name of the VALUES that an UPDATE or a DELETE joins.
VALUES = "taskclaim_values"

#: What a SELECT does about rows that another transaction has locked.
WAIT, SKIP = " ", " SKIP LOCKED"


class SQL(NamedTuple):
    """A piece of a statement and the values bound in it."""

    text: str
    params: Raw = ()

    @classmethod
    def join(cls, separator: str, pieces: Iterable["SQL"]) -> "SQL":
        """Put *pieces* together with *separator* between them."""
        parts = list(pieces)
        texts = separator.join([part.text for part in parts])
        return cls(texts, tuple(chain.from_iterable([part.params for part in parts])))


def sql(template: str, *pieces: "SQL | str") -> SQL:
    """Fill the ``{}`` of *template* with *pieces*, keeping the bound values in the order of the text."""
    parts = [piece if isinstance(piece, SQL) else SQL(piece) for piece in pieces]
    params = tuple(chain.from_iterable([part.params for part in parts]))
    return SQL(template.format(*[part.text for part in parts]), params)


def both(one: SQL, other: SQL | None) -> SQL:
    """Return the condition that holds where both do; the *other* one may be missing."""
    if other is None:
        return one
    return SQL(f"{one.text} AND {other.text}", (*one.params, *other.params))


def value(bound: object) -> SQL:
    """Return a bound value as a piece of a statement."""
    return SQL("%s", (bound,))


def real_name(name: str | None) -> str:
    """Return a table's or column's name as the database knows it; Django's statements double each ``%``."""
    assert name is not None, "every field of a table has a column"
    return name.replace("%%", "%")


def unqualified(name: str) -> str:
    """Return a quoted table name without its schema, as PostgreSQL's lock clauses and plans want it."""
    _, schema_ends, last = name.rpartition('"."')
    return f'"{last}' if schema_ends else name


class OwnValues(NamedTuple):
    """A column in which each row gets a value of its own."""

    field: AnyField
    #: In the order of the rows' keys.
    values: Sequence[SQL]
    #: The expression that is stored, with ``{}`` in place of the value.
    stored: str = "{}"


class Change(NamedTuple):
    """What one UPDATE sets: assignments that are alike for all rows, and columns that are not."""

    shared: Sequence[SQL]
    own: Sequence[OwnValues] = ()

    def assignments(self, table: "KeyTable", *, joined: bool = False) -> SQL:
        """Return the SET list for a single row, or, if a list of values is *joined*, for several."""
        values = [
            SQL(one.stored.format(f"{VALUES}.v{n}")) if joined else sql(one.stored, one.values[0])
            for n, one in enumerate(self.own)
        ]
        own = [table.assign(one.field, to) for one, to in zip(self.own, values, strict=True)]
        return SQL.join(", ", [*self.shared, *own])


class KeyTable:
    """A table whose rows are found by their key, as one connection spells it."""

    columns: KeyColumns

    def __init__(self, columns: KeyColumns, connection: BaseDatabaseWrapper) -> None:
        self.columns = columns
        self.connection = connection
        #: By the fields of the rows: Django's converters, where the moments are, and what reads these.
        self._converters: dict[Hashable, Any] = {}
        self.name = connection.ops.quote_name(columns.owner._meta.db_table)
        self.key = [self.column(field) for field in columns.key]
        self.key_list = self.list_of(columns.key)
        #: Whether keys are whole numbers, which need no conversion.
        self.has_plain_key = len(columns.key) == 1 and type(columns.key[0]) in PLAIN_INTEGERS

    @cached_property
    def sorts_as_python(self) -> bool:
        """Whether Python puts keys into the order that the database has them in: no text, which has a collation."""
        kinds = {type(field) for field in map(unlinked, self.columns.key)}
        # The native UUID of MariaDB has an order of its own.
        is_native = self.connection.features.has_native_uuid_field
        sorts = self.connection.vendor != "mysql" or not is_native
        return kinds <= (PLAIN_INTEGERS | {models.UUIDField} if sorts else PLAIN_INTEGERS)

    def column(self, field: AnyField) -> str:
        """Return the quoted name of the field's column."""
        return self.connection.ops.quote_name(str(field.column))

    def qualified(self, field: AnyField) -> str:
        """Return the column's name with the table in front of it."""
        return f"{self.name}.{self.column(field)}"

    def list_of(self, fields: Fields) -> str:
        """Return qualified column names, separated by commas."""
        return ", ".join(self.qualified(field) for field in fields)

    def shown(self, fields: Fields) -> str:
        """Return the same as a SELECT or a RETURNING names it whose rows ``python_rows`` takes.

        PostgreSQL's driver reads each moment by itself, in Python. As text those that are the same are read once.
        """
        as_text = "::text" if self.connection.vendor == "postgresql" else ""
        return ", ".join(
            self.qualified(one) + as_text * (type(one) is MomentField) for one in fields
        )

    def keyed(self, keys: Keys) -> SQL:
        """Match the rows with these keys."""
        if self.has_plain_key and len(keys) > 1 and set(map(type, keys)) == {int}:
            # Many bound values cost the driver more than the statement costs the server, so they are in the text.
            # With a single one the text is the same for all rows, so the driver parses it only once.
            return SQL(f"{self.key_list} IN ({', '.join(map(str, keys))})")
        params = tuple(chain.from_iterable(self.prepared_keys(keys)))
        if len(self.key) == 1:
            return SQL(f"{self.key_list} IN ({', '.join(['%s'] * len(params))})", params)
        if self.connection.vendor == "sqlite":
            # An OR of a thousand is too deep for SQLite. It uses the index for a SELECT of VALUES, not for VALUES.
            row = f"({', '.join(['%s'] * len(self.key))})"
            listed = ", ".join([row] * len(keys))
            return SQL(f"({self.key_list}) IN (SELECT * FROM (VALUES {listed}))", params)
        each = " AND ".join(f"{self.name}.{column} = %s" for column in self.key)
        return SQL("(" + " OR ".join([f"({each})"] * len(keys)) + ")", params)

    def same_key(self, other: str, names: Sequence[str]) -> str:
        """Match the row whose key the table *other* has in its columns *names*."""
        pairs = zip(self.key, names, strict=True)
        return " AND ".join([f"{self.name}.{own} = {other}.{name}" for own, name in pairs])

    def prepared_keys(self, keys: Keys) -> list[Raw]:
        """Return the values of each key as the driver wants them."""
        if self.has_plain_key and set(map(type, keys)) == {int}:
            return [(key,) for key in keys]
        return [
            tuple(
                field.get_db_prep_value(part, self.connection, prepared=False)
                for field, part in zip(self.columns.key, parts, strict=True)
            )
            for parts in (keys if len(self.key) > 1 else [(key,) for key in keys])
        ]

    def assign(self, field: AnyField, to: SQL) -> SQL:
        """Return ``column = expression`` for a SET clause."""
        return SQL(f"{self.column(field)} = {to.text}", to.params)

    def bound(self, field: AnyField, given: object) -> SQL:
        """Bind a Python value as ``save()`` would store it in *field*."""
        return self.bound_all(field, [given])[0]

    def bound_all(self, field: AnyField, given: Sequence[object]) -> list[SQL]:
        """Bind Python values as ``save()`` would store them in *field*."""
        for one in given:
            if hasattr(one, "resolve_expression"):
                raise TypeError(
                    f"update_fields writes values; {field.name} holds the expression {one!r}."
                )
        # Django's own expression costs more, and is needed where a field writes more than the value.
        if hasattr(field, "get_placeholder_sql") or hasattr(field, "get_placeholder"):
            return [self._expression(field, one) for one in given]
        return [value(field.get_db_prep_save(one, self.connection)) for one in given]

    def _expression(self, field: AnyField, given: object) -> SQL:
        compiler = models.sql.Query(self.columns.owner).get_compiler(connection=self.connection)
        expression = models.Value(given, output_field=field)
        expression.for_save = True
        text, params = compiler.compile(expression)
        return SQL(text, tuple(params))

    def where_of(self, queryset: Rows) -> SQL | None:
        """Return the queryset's condition as text, None where it can match nothing."""
        compiler = queryset.query.get_compiler(connection=self.connection)
        try:
            compiler.pre_sql_setup()
            text, params = compiler.compile(queryset.query.where)
        except EmptyResultSet:
            return None
        except FullResultSet:
            return SQL("1 = 1")
        return SQL(text or "1 = 1", tuple(params))

    def python_rows(self, fields: Fields, raw: Iterable[Raw]) -> list[Row]:
        """Turn what the driver returned for *fields* into what Django would show."""
        # The converters of moments follow the settings. Ids are used because hashing a field takes longer.
        kind = (*map(id, fields), settings.USE_TZ, settings.TIME_ZONE)
        if kind not in self._converters:
            compiler = models.sql.Query(self.columns.owner).get_compiler(connection=self.connection)
            others = compiler.get_converters([field.get_col(self.name) for field in fields])
            moments = [place for place, field in enumerate(fields) if type(field) is MomentField]
            for place in moments:
                others.pop(place, None)
            convert = partial(compiler.apply_converters, converters=others) if others else None
            self._converters[kind] = convert, moments, moment_reader(self.connection)
        convert, moments, read = self._converters[kind]
        rows = [list(row) for row in raw] if convert is None else list(convert(raw))
        for place in moments:
            # A moment that is the same in row after row, as those of one claim are, is read once.
            given = shown = None
            for row in rows:
                if row[place] != given:
                    given, shown = row[place], read(row[place])
                row[place] = shown
        return rows

    def python_keys(self, raw: Iterable[Raw]) -> list[Key]:
        """Turn returned key columns into keys: plain values, tuples for composite keys."""
        if self.has_plain_key:
            return [row[0] for row in raw]
        return self.keys_of(self.python_rows(self.columns.key, raw))

    def keys_of(self, rows: Sequence[Row]) -> list[Key]:
        """Return the keys of rows whose first columns are the key's."""
        return [self.key_of(row) for row in rows]

    def key_of(self, row: Sequence[object]) -> Key:
        """Return the key of a row whose first columns are the key's."""
        width = len(self.key)
        return tuple(row[:width]) if width > 1 else row[0]


class Table(KeyTable):
    """The table that holds a model's claim columns, as one connection spells it."""

    columns: ClaimColumns

    def __init__(self, columns: ClaimColumns, connection: BaseDatabaseWrapper) -> None:
        super().__init__(columns, connection)
        self.model_table = columns.owner._meta.db_table
        #: SQLite must not use this column to find a row whose key is known: without statistics it would read every
        #: open row rather than find a hundred by their keys. The plus keeps the column out of the choice of an index.
        self.status = "+" * (connection.vendor == "sqlite") + self.qualified(columns.status)
        self.holder = self.qualified(columns.claimed_by)
        self.iteration = self.qualified(columns.iteration)

    def beside_key(self, condition: SQL) -> SQL:
        """Return a condition as it stands beside the keys of the rows, by which these are found; see ``status``."""
        text = condition.text.replace(self.qualified(self.columns.status), self.status)
        return SQL(text, condition.params)

    def in_state(self, state: Status) -> SQL:
        """Match rows in this state; a literal, so that a partial index is found to fit."""
        return SQL(f"{self.status} = '{state.value}'")

    def standing(self, token: Token) -> SQL:
        """Match rows whose claim is still the one that *token* names: the fence."""
        return SQL(
            f"{self.status} = '{Status.PROCESSING.value}' AND {self.holder} = %s AND {self.iteration} = %s",
            (token.holder, token.iteration),
        )
