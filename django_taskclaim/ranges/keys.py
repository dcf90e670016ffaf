"""The ranges of a model, and the keys of their source.

The database alone orders and compares keys. They are stored as JSON text, whose order is not that of the keys: ``10``
comes before ``9`` there, and each database has its collations.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import connections, models
from django.db.models import Q

from django_taskclaim.columns import unlinked
from django_taskclaim.db import dialect_for
from django_taskclaim.db.sql import ALL, WAIT, sql
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.states import Token

#: As ``row.pk`` has it: a tuple for a composite key.
Key: TypeAlias = Any

#: A row of a ``RangeMixin`` model, which stands above.
Range: TypeAlias = Any


class Part(NamedTuple):
    """The next rows in the order of keys: beyond *after*, up to and with *until*."""

    after: Key | None
    until: Key
    rows: int


class Keys:
    """The primary keys of one model on one database."""

    def __init__(self, source: type[models.Model], alias: str) -> None:
        self.source = source
        self.alias = alias
        self.fields = [unlinked(field) for field in source._meta.pk_fields]
        self.names = [field.attname for field in source._meta.pk_fields]

    def rows(self, after: Key | None = None, until: Key | None = None) -> Rows:
        """Return every row between two keys in the order of keys, also those that a manager hides."""
        rows: Rows = models.QuerySet(self.source, using=self.alias)
        return rows.filter(self.between(after, until)).order_by("pk")

    def between(self, after: Key | None, until: Key | None) -> Q:
        """Match the keys beyond *after* up to and with *until*; None is no bound."""
        lower = Q() if after is None else self._beyond(after, "gt")
        return lower if until is None else lower & self._beyond(until, "lte")

    def _beyond(self, key: Key, lookup: str) -> Q:
        if len(self.names) == 1 or dialect_for(connections[self.alias]).seeks_row_values:
            return Q(**{f"pk__{lookup}": key})
        # ``a > 1 OR (a = 1 AND b > 2)`` is two ranges of the index.
        *first, (last, value) = zip(self.names, key, strict=True)
        steps = Q(**{f"{last}__{lookup}": value})
        for name, value in reversed(first):
            steps = Q(**{f"{name}__{lookup.removesuffix('e')}": value}) | (
                Q(**{name: value}) & steps
            )
        return steps

    def parts(self, rows: Rows, size: int, after: Key | None = None) -> Iterator[Part]:
        """Cut what follows *after* of ordered *rows* into parts of *size*, the last of which may be smaller.

        No row is read, and rows may come and go meanwhile.
        """
        while (until := key_at(rows.filter(self.between(after, None)), size - 1)) is not None:
            yield Part(after, until, size)
            after = until
        rest = rows.filter(self.between(after, None))
        last = key_at(rest.reverse(), 0)
        if last is not None:
            # Counted up to there: rows may have come since.
            yield Part(after, last, rest.filter(self.between(None, last)).count())

    # Storing

    def encode(self, key: Key) -> str:
        """Return *key* as text; ValueError in one sentence for what is no key of the source."""
        parts = list(key) if len(self.names) > 1 and isinstance(key, (tuple, list)) else [key]
        try:
            stored = [_to_json(field, part) for field, part in zip(self.fields, parts, strict=True)]
        except (TypeError, ValueError, ArithmeticError, ValidationError) as error:
            raise ValueError(f"{key!r} is no key of {self.source._meta.label}.") from error
        return json.dumps(stored if len(stored) > 1 else stored[0])

    def decode(self, text: str | None) -> Key | None:
        """Return the key that *text* holds; None for None."""
        if text is None:
            return None
        stored = json.loads(text)
        parts = stored if len(self.names) > 1 else [stored]
        key = tuple(field.to_python(part) for field, part in zip(self.fields, parts, strict=True))
        return key if len(key) > 1 else key[0]


def key_at(rows: Rows, place: int) -> Key | None:
    """Return the key of the row at *place* (from 0) of ordered *rows*; None where there are not so many."""
    return next(iter(rows.values_list("pk", flat=True)[place : place + 1]), None)


def _to_json(field: Any, value: Any) -> int | str:
    """Return a value as its field writes it for serialisation, which ``to_python`` reads again."""
    converted = field.to_python(value)
    if converted is None:
        raise ValueError("No part of a key is None.")
    if isinstance(converted, int) and not isinstance(converted, bool):
        return converted
    return str(field.value_to_string(SimpleNamespace(**{field.attname: converted})))


# The ranges


class RangeTarget(Keys):
    """The keys of a source, and where the ranges of them that a model has are stored."""

    def __init__(self, model: type[models.Model], alias: str) -> None:
        """Raise TypeError where *model* names no source."""
        super().__init__(source_of(model), alias)
        self.model = model
        self.claims = ClaimTarget.of(model, alias)

    @property
    def ranges(self) -> Rows:
        """Every range, also those that a manager hides."""
        return models.QuerySet(self.model, using=self.alias).order_by()

    def left_in(self, range_: Range) -> Q:
        """Match the source's keys of which the work on a range is still to be done."""
        return self.between(self.decode(reached(range_)), self.decode(range_.upper))

    def locked(self, pk: object, token: Token | None = None) -> Range:
        """Lock a range for the current transaction and return it as it is now; None where it is gone.

        With *token*, None also where that does not hold it. Waits for a chunk of its holder to end. While a range is
        locked its end stays where it is.
        """
        fields, table = self.model._meta.concrete_fields, self.claims.table
        held = ALL if token is None else table.standing(token)
        condition = sql("{} AND {}", table.keyed([pk]), held)
        found = self.claims.dialect.select(table, fields, condition, WAIT)
        names = [field.attname for field in fields]
        return self.model.from_db(self.claims.alias, names, found[0]) if found else None


def reached(range_: Range) -> str | None:
    """Return the key behind which the work on a range goes on."""
    text: str | None = range_.lower if range_.checkpoint is None else range_.checkpoint
    return text


def source_of(model: type[models.Model]) -> type[models.Model]:
    """Return the model whose keys the ranges of *model* are of; TypeError in one sentence where it names none."""
    named: Any = getattr(model, "source", None)
    source: Any = named
    if isinstance(named, str):
        with suppress(LookupError, ValueError):
            source = apps.get_model(named)
    if isinstance(source, type) and issubclass(source, models.Model) and not source._meta.abstract:
        return source
    raise TypeError(
        f"{model._meta.label}.source must be the installed model whose keys its ranges are of, not {named!r}."
    )
