"""Warns of columns that a handler sets although nothing writes them: a completion writes ``update_fields`` alone."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

from django.db import Error, models

from django_taskclaim.claim import claim_of
from django_taskclaim.columns import LINK, claim_columns, is_claimable, is_companion, source_link
from django_taskclaim.completion import Clear, Mark
from django_taskclaim.fields import AnyField
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.completing import PREFIX, checked_results, writable
from django_taskclaim.worker.records import logger, named

#: A process compares so many rows of a handler.
COMPARED = 50

_MUTABLE = (list, dict, set, bytearray)


class Before(NamedTuple):
    """An instance that a handler gets, of a row or of its source, and its values before the call."""

    row: Any
    instance: Any
    values: dict[AnyField, Any]


@cache
def unsaved_columns(handler: Handler) -> "UnsavedColumns":
    """Return what compares the rows of *handler* in this process."""
    return UnsavedColumns(handler)


class UnsavedColumns:
    """Compares the first rows of one handler with what they were before each call."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._left = COMPARED
        self._warned: set[str] = set()

    def before(self, rows: Sequence[Any]) -> list[Before]:
        """Return the values that the handler is given; nothing once enough rows have been compared."""
        rows = rows[: self._left]
        self._left -= len(rows)
        given = [(row, row) for row in rows]
        if rows and is_companion(type(rows[0])):
            field = source_link(type(rows[0])).field
            given += [(row, getattr(row, LINK)) for row in rows if field.is_cached(row)]
        return [Before(row, instance, self._values(instance)) for row, instance in given]

    def _values(self, instance: models.Model) -> dict[AnyField, Any]:
        """Return the loaded values that a completion of the row neither removes nor writes."""
        kind, model = type(instance), self._handler.model
        completion, is_row = policy_for(model).completion, issubclass(kind, model)
        if is_row and not isinstance(completion, (Mark, Clear)):
            return {}
        names = writable(kind)
        if is_claimable(kind):
            names -= claim_columns(kind).guarded_names
        results = checked_results(model, self._handler.update_fields)
        written = [*results.own, *results.inherited] if is_row else results.of_source
        loaded = {
            one: instance.__dict__.get(one.attname, one) for one in kind._meta.concrete_fields
        }
        return {
            field: deepcopy(value) if isinstance(value, _MUTABLE) else value
            for field, value in loaded.items()
            if value is not field and field.attname in names and field not in written
        }

    def warn(self, seen: Sequence[Before]) -> None:
        """Warn, once for each column, where the handler has set it and the database still has the old value."""
        for row, instance, before in seen:
            now = instance.__dict__
            changed = [
                one
                for one, old in before.items()
                if not _is_same(one, old, now.get(one.attname, old))
            ]
            # Without a claim it was saved as another row.
            if not changed or (claim := claim_of(row)) is None:
                continue
            alias = claim.alias if instance is row else instance._state.db
            stored = _stored(instance, alias, changed)
            names = [
                self._name(row, instance, one)
                for one in changed
                # Another value was written by somebody, or made by the database.
                if one.attname in stored and _is_same(one, before[one], stored[one.attname])
            ]
            if columns := [name for name in names if name not in self._warned]:
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

    def _name(self, row: models.Model, instance: models.Model, field: AnyField) -> str:
        """Return how ``update_fields`` names a column."""
        is_hidden = instance is not row and field.name in writable(self._handler.model)
        return f"{PREFIX}{field.name}" if is_hidden else field.name


def _is_same(field: AnyField, one: object, other: object) -> bool:
    """Say whether two values are stored alike."""
    try:
        return bool(field.get_prep_value(one) == field.get_prep_value(other))
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
