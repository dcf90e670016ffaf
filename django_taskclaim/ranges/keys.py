"""The keys of a source model: kept as JSON text, compared as typed values by the database alone.

Text cannot be compared for the order of keys: ``10`` comes before ``9`` there, and collations are the database's.
"""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connections, models
from django.db.models import Q

from django_taskclaim.db import dialect_for

Key = Any


class SourceKey:
    """How the rows of one source are told apart and put in order on one database."""

    def __init__(self, source: type[models.Model], alias: str) -> None:
        self.source = source
        self.alias = alias
        fields: Sequence[Any] = source._meta.pk_fields
        self.names = [field.attname for field in fields]
        self.fields = [_plain(field) for field in fields]

    # Storing

    def encode(self, key: Key) -> str:
        """Return *key* as text; ValueError in one sentence for what is no key of the source."""
        parts = list(key) if len(self.names) > 1 and isinstance(key, (tuple, list)) else [key]
        if len(parts) != len(self.names) or None in parts:
            raise ValueError(f"{key!r} is no key of {self.source._meta.label}.")
        try:
            told = [_to_json(field, part) for field, part in zip(self.fields, parts, strict=True)]
        except (TypeError, ValueError, ArithmeticError, ValidationError) as error:
            raise ValueError(f"{key!r} is no key of {self.source._meta.label}.") from error
        return json.dumps(told if len(told) > 1 else told[0])

    def decode(self, text: str | None) -> Key | None:
        """Return the key that *text* holds; None for None."""
        if text is None:
            return None
        told = json.loads(text)
        parts = told if len(self.names) > 1 else [told]
        values = [field.to_python(part) for field, part in zip(self.fields, parts, strict=True)]
        return tuple(values) if len(values) > 1 else values[0]

    # Asking

    def rows(self) -> "models.QuerySet[Any]":
        """Return every row of the source, whatever managers hide, in the order of keys."""
        return models.QuerySet(self.source, using=self.alias).order_by(*self.names)

    def between(self, after: str | None, until: str | None) -> Q:
        """Match the keys beyond *after* up to and with *until*; None is no bound."""
        lower, upper = self.decode(after), self.decode(until)
        bounds = Q() if lower is None else self._beyond(lower, "gt")
        return bounds if upper is None else bounds & self._beyond(upper, "lte")

    def _beyond(self, key: Key, lookup: str) -> Q:
        if len(self.names) == 1:
            return Q(**{f"{self.names[0]}__{lookup}": key})
        if dialect_for(connections[self.alias]).seeks_row_values:
            return Q(**{f"pk__{lookup}": key})
        return self._step_by_step(key, lookup)

    def _step_by_step(self, key: Sequence[Any], lookup: str) -> Q:
        """Compare column by column: ``a > 1 OR (a = 1 AND b > 2)``, which is two ranges of the index."""
        *first, last = zip(self.names, key, strict=True)
        strictly = lookup.removesuffix("e")
        steps = Q(**{f"{last[0]}__{lookup}": last[1]})
        for name, value in reversed(first):
            steps = Q(**{f"{name}__{strictly}": value}) | (Q(**{name: value}) & steps)
        return steps

    def at(self, rows: "models.QuerySet[Any]", place: int) -> str | None:
        """Return the key of the row at *place* (from 0) of ordered *rows*; None where there are not so many."""
        found = list(rows.values_list(*self.names)[place : place + 1])
        if not found:
            return None
        return self.encode(found[0] if len(self.names) > 1 else found[0][0])

    def last(self, rows: "models.QuerySet[Any]") -> str | None:
        """Return the key of the last of ordered *rows*; None where there is none."""
        return self.at(rows.reverse(), 0)


def _plain(field: Any) -> Any:
    """Return the field whose values a key holds: that of the parent where the key links to it."""
    while field.is_relation:
        field = field.target_field
    return field


def _to_json(field: Any, value: Any) -> int | str:
    """Return a value as its field writes it for serialisation, which ``to_python`` reads again."""
    converted = field.to_python(value)
    if isinstance(converted, int) and not isinstance(converted, bool):
        return converted
    return str(field.value_to_string(SimpleNamespace(**{field.attname: converted})))
