"""Warns of columns that a handler sets although nothing writes them: a completion writes ``update_fields`` alone."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

from django.db import Error, models
from django.db.models import DEFERRED

from django_taskclaim.claim import claim_of
from django_taskclaim.columns import claim_columns, is_claimable
from django_taskclaim.completion import Call, Clear, Mark
from django_taskclaim.fields import AnyField
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import Handler
from django_taskclaim.links import LINK, is_companion, source_link
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.results import PREFIX, checked_results, writable
from django_taskclaim.worker.records import logger, named

#: A process compares so many rows of a handler.
COMPARED = 50

_MUTABLE = (list, dict, set, bytearray)


class Before(NamedTuple):
    """An instance that a handler gets, of a row or of its source, and its values before the call."""

    row: Any
    instance: Any
    values: dict[str, Any]


@cache
def unsaved_columns(handler: Handler) -> "UnsavedColumns":
    """Return what compares the rows of *handler* in this process."""
    return UnsavedColumns(handler)


class UnsavedColumns:
    """Compares the first rows of one handler with what they were before each call."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._left = COMPARED
        self._unwritten = cache(self._find_unwritten)
        self._warned: set[str] = set()

    def before(self, rows: Sequence[object]) -> list[Before]:
        """Return the values that the handler is given; nothing once enough rows have been compared."""
        rows = rows[: self._left]
        self._left -= len(rows)
        return [
            Before(row, instance, {one.attname: _copied(instance, one) for one in fields})
            for row in rows
            for instance in self._instances(row)
            if (fields := self._unwritten(instance.__class__))
        ]

    def warn(self, seen: Sequence[Before]) -> None:
        """Warn, once for each column, where the handler has set it and the database still has the old value."""
        for row, instance, before in seen:
            fields = [
                field
                for field in self._unwritten(instance.__class__)
                if not _is_same(field, before[field.attname], _value(instance, field))
            ]
            # Without a claim it was saved as another row.
            if not fields or claim_of(row) is None:
                continue
            stored = _stored(instance, self._alias(row, instance), fields)
            lost = [
                self._name(row, instance, field)
                for field in fields
                if field.attname in stored
                # A value that is neither was written by somebody, or made by the database.
                and (
                    before[field.attname] is DEFERRED
                    or _is_same(field, before[field.attname], stored[field.attname])
                )
                and not _is_same(field, stored[field.attname], _value(instance, field))
            ]
            if columns := [name for name in lost if name not in self._warned]:
                self._warned.update(columns)
                self._log(row, columns)

    def _log(self, row: models.Model, columns: Sequence[str]) -> None:
        names = ", ".join(f'"{name}"' for name in (*self._handler.update_fields, *columns))
        logger.warning(
            "%s: %s set %s, but nothing writes it, so this row and others are completed without it."
            " Register the handler with update_fields=[%s], or call save() in it.",
            *(named(row), self._handler.name, listed(columns), names),
            extra={
                "event": "unsaved",
                "model": self._handler.model._meta.label,
                "keys": [str(row.pk)],
                "columns": columns,
            },
        )

    def _alias(self, row: models.Model, instance: models.Model) -> Any:
        claim = claim_of(row)
        return claim.alias if instance is row and claim else instance._state.db

    def _instances(self, row: Any) -> Iterator[Any]:
        yield row
        if is_companion(type(row)) and source_link(type(row)).field.is_cached(row):
            yield getattr(row, LINK)

    def _find_unwritten(self, kind: type[models.Model]) -> list[AnyField]:
        """Return the columns that stay when a row is done and that its completion does not write."""
        model = self._handler.model
        completion, is_row = policy_for(model).completion, issubclass(kind, model)
        # A function of the user's may write anything.
        if isinstance(completion, Call) or (is_row and not isinstance(completion, (Mark, Clear))):
            return []
        names = writable(kind)
        if is_claimable(kind):
            names -= claim_columns(kind).guarded_names
        results = checked_results(model, self._handler.update_fields)
        written = [*results.own, *results.inherited] if is_row else results.of_source
        fields = kind._meta.concrete_fields
        return [one for one in fields if one.attname in names and one not in written]

    def _name(self, row: models.Model, instance: models.Model, field: AnyField) -> str:
        """Return how ``update_fields`` names a column."""
        is_hidden = instance is not row and field.name in writable(self._handler.model)
        return f"{PREFIX}{field.name}" if is_hidden else field.name


def _value(instance: object, field: AnyField) -> Any:
    return instance.__dict__.get(field.attname, DEFERRED)


def _copied(instance: object, field: AnyField) -> Any:
    value = _value(instance, field)
    return deepcopy(value) if isinstance(value, _MUTABLE) else value


def _is_same(field: AnyField, one: object, other: object) -> bool:
    """Say whether two values are stored alike; one that is not loaded is no change."""
    try:
        return other is DEFERRED or bool(field.get_prep_value(one) == field.get_prep_value(other))
    except Exception:
        # No value of this column, or an array.
        return one is other


def _stored(instance: Any, alias: str, fields: Sequence[AnyField]) -> dict[str, Any]:
    """Return what the database has in these columns; nothing where the row is gone, or nobody can tell."""
    rows: models.QuerySet[Any] = models.QuerySet(type(instance), using=alias)
    try:
        return rows.filter(pk=instance.pk).values(*(one.attname for one in fields)).first() or {}
    except Error:
        return {}
