"""What a handler has made of its rows: what its answer says of each, and which columns it has set in vain."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeAlias

from django.db import models

from django_taskclaim.claim import claim_of
from django_taskclaim.columns import (
    LINK,
    as_claimed,
    claim_columns,
    has_claim_columns,
    is_claimable,
    is_companion,
    source_link,
)
from django_taskclaim.completion import Clear, Mark
from django_taskclaim.fields import AnyField
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.completing import PREFIX, checked_results, writable
from django_taskclaim.worker.records import logger, named

#: Of a batch handler, what it said of each row: None for done, else what went wrong.
Said: TypeAlias = list[BaseException | str | None]

UNMENTIONED = "The batch handler said nothing about this row."


def of_answer(rows: Sequence[models.Model], answer: object) -> Said:
    """Return what a batch handler's *answer* says of each row: None for done, else what went wrong.

    The answer is a mapping from rows or their keys to outcomes, or an iterable of rows and keys
    that are done and of pairs of a row and its outcome. An outcome is None for done, or an exception. A row that is
    not mentioned has failed. The handler of companions got their sources, and names those, or their keys.
    Raises TypeError for an answer that is nothing of the kind.
    """
    said = {_key(one): outcome for one, outcome in _pairs(answer)}
    return [_outcome(said.get(_key(row), UNMENTIONED)) for row in rows]


def _key(given: object) -> object:
    """Return the key by which an answer names a row: that of the row itself, or of a companion's source.

    *given* is such a key, an instance that the handler got, or one that it has read itself.
    """
    if not isinstance(given, models.Model):
        return given
    row = as_claimed(given)
    kind = type(row)
    if is_companion(kind):
        first, *more = source_link(kind).key_of(row)
        return (first, *more) if more else first
    # A handler may have deleted the row since, or saved its instance as another row.
    if (claim := claim_of(row)) is not None:
        return claim.pk
    return claim_columns(kind).key_of(row) if has_claim_columns(kind) else row.pk


def _pairs(answer: object) -> Iterable[tuple[object, object]]:
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise TypeError(
            f"A batch handler returns None, a mapping or an iterable of outcomes, not {answer!r:.200}."
        )
    return answer.items() if isinstance(answer, Mapping) else map(_pair, answer)


def _pair(said: object) -> tuple[object, object]:
    if isinstance(said, tuple) and len(said) == 2 and isinstance(said[0], models.Model):
        return said
    return said, None


def _outcome(said: object) -> BaseException | str | None:
    if isinstance(said, type) and issubclass(said, BaseException):
        return said()
    if said is None or said is UNMENTIONED or isinstance(said, BaseException):
        return said
    return TypeError(f"The outcome of a row is None or an exception, not {said!r:.200}.")


# Columns that a handler sets although nothing writes them: a completion writes ``update_fields`` alone

#: A process compares so many rows of a handler.
COMPARED = 50

#: A row, the instance that a handler gets (it, or its source), and what that had in its ``__dict__`` before the call.
_Before: TypeAlias = tuple[models.Model, models.Model, dict[str, object]]


@cache
def unsaved_columns(handler: Handler) -> "UnsavedColumns":
    """Return what compares the rows of *handler* in this process."""
    return UnsavedColumns(handler)


class UnsavedColumns:
    """Compares the first rows of one handler with what they were before each call, until one tells of a mistake."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        #: So many rows are still to be compared.
        self.left = COMPARED

    def before(self, rows: Sequence[models.Model]) -> list[_Before]:
        """Return what the handler is given, with its values; nothing once enough rows have been compared."""
        rows = rows[: self.left]
        # Another thread may have taken the last ones meanwhile.
        self.left = max(0, self.left - len(rows))
        given = [getattr(row, LINK) if self._handler.gets_sources else row for row in rows]
        return [(row, one, dict(vars(one))) for row, one in zip(rows, given, strict=True)]

    def warn(self, seen: Sequence[_Before]) -> None:
        """Warn, once, where the handler has set columns of which the database still has the old values."""
        for row, instance, before in seen:
            changed = _changed(self._unwritten(instance), before, vars(instance))
            # Without a claim it was saved as another row.
            if not changed or claim_of(row) is None:
                continue
            stored = models.QuerySet[models.Model](type(instance), using=instance._state.db)
            # The row may be gone, and reading it runs code of the user's: that makes no difference to what it came to.
            with suppress(Exception):
                there = stored.filter(pk=instance.pk).values(*(one.attname for one in changed))
                # Another value was written by somebody, or made by the database.
                written = _changed(changed, before, there.get())
                if unsaved := [one.name for one in changed if one not in written]:
                    self.left = 0
                    prefix = "" if instance is row else PREFIX
                    self._log(row, [prefix + name for name in unsaved])
                    return

    def _unwritten(self, instance: models.Model) -> list[AnyField]:
        """Return the columns that a completion of the row neither removes nor writes."""
        kind, model = type(instance), self._handler.model
        if issubclass(kind, model) and not isinstance(policy_for(model).completion, (Mark, Clear)):
            return []
        names = writable(kind)
        if is_claimable(kind):
            names -= claim_columns(kind).guarded_names
        written = checked_results(model, self._handler.update_fields)
        fields = [field for field in kind._meta.concrete_fields if field.attname in names]
        return [field for field in fields if field not in written]

    def _log(self, row: models.Model, columns: list[str]) -> None:
        names = ", ".join(f'"{name}"' for name in (*self._handler.update_fields, *columns))
        logger.warning(
            "%s: %s set %s, but nothing writes it, so this row and others are completed without it."
            " Register the handler with update_fields=[%s], or call save() in it. To run those rows again:"
            " manage.py claimreset %s --complete",
            *(named(row), self._handler.name, listed(columns), names),
            self._handler.model._meta.label,
            extra={"event": "unsaved", "keys": [str(row.pk)], "columns": columns},
        )


def _changed(
    fields: Sequence[AnyField], before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[AnyField]:
    """Return the columns that were loaded and are stored otherwise now; a file is a text until it is read."""

    def differs(field: AnyField) -> bool:
        one, other = before[field.attname], now[field.attname]
        try:
            return bool(field.get_prep_value(one) != field.get_prep_value(other))
        except Exception:
            # No value of this column, or one of a class of the user's.
            return one is not other

    return [one for one in fields if one.attname in before and one.attname in now and differs(one)]
