"""Finds what a handler sets on its rows although nothing writes it: the completion writes ``update_fields`` alone."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

from django.conf import settings
from django.db import Error, models
from django.db.models import DEFERRED

from django_taskclaim import conf
from django_taskclaim.claim import Claim, carried_claim, claim_of
from django_taskclaim.columns import claim_columns, is_claimable
from django_taskclaim.completion import Archive, Call, Delete, Save
from django_taskclaim.fields import AnyField
from django_taskclaim.formatting import listed
from django_taskclaim.guard import loaded_values
from django_taskclaim.handlers import Handler
from django_taskclaim.links import LINK, is_companion, source_link
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.removing import shared_columns
from django_taskclaim.querysets.results import PREFIX, checked_results, writable
from django_taskclaim.worker.records import logger, named

#: A process compares so many rows of a handler; where rows fail for what is found, all of them.
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
    """Compares the rows of one handler with what they were before each call."""

    #: Whether a row fails for what is found. Read once a claim: for each row that would cost more than all the rest.
    fails = False

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._left = COMPARED
        self._unwritten = cache(self._find_unwritten)
        self._warned: set[str] = set()

    def read_settings(self) -> None:
        """Read whether a row fails for what is found."""
        asked = conf.setting("FAIL_UNSAVED")
        self.fails = bool(settings.DEBUG if asked is None else asked)

    def before(self, rows: Sequence[Any]) -> list[Before]:
        """Return what the handler is given, as it is now; of rows that are not compared, nothing."""
        if not self.fails:
            rows = rows[: self._left]
            self._left -= len(rows)
        return [
            Before(row, instance, {one.attname: _copied(instance, one) for one in fields})
            for row in rows
            for instance in self._instances(row)
            if (fields := self._unwritten(instance.__class__))
        ]

    def compare(self, seen: Sequence[Before]) -> None:
        """Note on the claims which columns the handler has changed although the database has the old value."""
        for row, instance, before in seen:
            # Without a claim it was saved as another row.
            if claim_of(row) is None or not (changed := list(self._changed(instance, before))):
                continue
            claim = carried_claim(row)
            alias = claim.alias if instance is row else instance._state.db
            stored = _stored(instance, alias, changed)
            for field in changed if stored else ():
                old, found = before[field.attname], stored[field.attname]
                # A value that is neither was written by somebody, or made by the database.
                is_old = old is DEFERRED or _is_same(field, old, found)
                if is_old and not _is_same(field, instance.__dict__[field.attname], found):
                    claim.unsaved += (self._shown(row, instance, field),)

    def warn(self, row: Any, claim: Claim) -> None:
        """Warn, once for each column in this process, that a row is complete without what its handler has set."""
        if columns := [name for name in claim.unsaved if name not in self._warned]:
            self._warned.update(columns)
            logger.warning(
                "%s",
                self.describe(row, columns, "so this row and others are completed without it"),
                extra={
                    "event": "unsaved",
                    "model": self._handler.model._meta.label,
                    "keys": [str(claim.pk)],
                    "columns": columns,
                },
            )

    def describe(self, row: Any, columns: Sequence[str], outcome: str) -> str:
        """Say what the handler has set although nothing writes it, what happens, and what to do."""
        names = ", ".join(f'"{name}"' for name in (*self._handler.update_fields, *columns))
        return (
            f"{named(row)}: {self._handler.name} set {listed(columns)}, but nothing writes it, {outcome}."
            f" Register the handler with update_fields=[{names}], or call save() in it."
        )

    def _instances(self, row: Any) -> Iterator[Any]:
        yield row
        if is_companion(type(row)) and source_link(type(row)).field.is_cached(row):
            yield getattr(row, LINK)

    def _find_unwritten(self, kind: type[models.Model]) -> list[AnyField]:
        """Return the columns that stay when a row is done and that its completion does not write."""
        model, update_fields = self._handler.model, self._handler.update_fields
        completion, is_row = policy_for(model).completion, issubclass(kind, model)
        # A function of the user's may write anything.
        if isinstance(completion, Call) or (is_row and isinstance(completion, Delete)):
            return []
        names = writable(kind)
        if is_claimable(kind):
            names -= claim_columns(kind).guarded_names
        try:
            results = checked_results(model, update_fields)
            if is_row and isinstance(completion, Archive):
                names &= {*shared_columns(kind, completion.model)}
        except (TypeError, ValueError, LookupError):
            # The completion says more.
            return []
        written = [*results.own, *results.inherited] if is_row else results.of_source
        if is_row and isinstance(completion, Save) and not written:
            return []
        fields = kind._meta.concrete_fields
        return [one for one in fields if one.attname in names and one not in written]

    def _changed(self, instance: Any, before: dict[str, Any]) -> Iterator[AnyField]:
        """Yield the columns with another value than *before*, unless ``save()`` has written it."""
        saved = loaded_values(instance) or {}
        for field in self._unwritten(instance.__class__):
            now = instance.__dict__.get(field.attname, DEFERRED)
            # What is changed in place has changed in what was loaded, too.
            is_saved = saved.get(field.attname, DEFERRED) is now and not isinstance(now, _MUTABLE)
            if now is DEFERRED or is_saved or _is_same(field, now, before[field.attname]):
                continue
            yield field

    def _shown(self, row: Any, instance: Any, field: AnyField) -> str:
        """Return how ``update_fields`` names a column."""
        is_hidden = instance is not row and field.name in writable(self._handler.model)
        return f"{PREFIX}{field.name}" if is_hidden else field.name


def _copied(instance: Any, field: AnyField) -> Any:
    value = instance.__dict__.get(field.attname, DEFERRED)
    return deepcopy(value) if isinstance(value, _MUTABLE) else value


def _is_same(field: AnyField, one: Any, other: Any) -> bool:
    """Say whether two values are stored alike."""
    try:
        return one is other or bool(field.get_prep_value(one) == field.get_prep_value(other))
    except Exception:
        # No value of this column, or an array.
        return False


def _stored(instance: Any, alias: str, fields: Sequence[AnyField]) -> dict[str, Any]:
    """Return what the database has in these columns; nothing where the row is gone, or nobody can tell."""
    rows: models.QuerySet[Any] = models.QuerySet(type(instance), using=alias)
    try:
        return rows.filter(pk=instance.pk).values(*(one.attname for one in fields)).first() or {}
    except Error:
        return {}
