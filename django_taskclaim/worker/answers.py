"""What a handler has made of its rows: what its answer says of each, and which columns it has set in vain."""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from django.db import models

from django_taskclaim.claim import claim_of
from django_taskclaim.columns import (
    LINK,
    as_claimed,
    claim_columns,
    has_claim_columns,
    is_companion,
    source_link,
)
from django_taskclaim.completion import Clear, Mark
from django_taskclaim.fields import AnyField, ClaimColumn
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.claiming import loaded_key
from django_taskclaim.querysets.completing import PREFIX, checked_results, writable
from django_taskclaim.worker.records import logger, named

#: What a batch handler returned for each row: None for done, else what went wrong.
RowErrors: TypeAlias = list[BaseException | str | None]

UNMENTIONED = "The batch handler said nothing about this row."


def row_errors_in(rows: Sequence[models.Model], answer: object) -> RowErrors:
    """Return the outcome of each row in a batch handler's *answer*: None for done, else what went wrong.

    The answer is a mapping from rows or their keys to outcomes, or an iterable of rows and keys
    that are done and of pairs of a row, or its key, and its outcome. An outcome is None for done, or an exception. A
    row that is not mentioned has failed. The handler of companions got their sources, and names those, or their keys.
    Raises TypeError for an answer that is nothing of the kind.
    """
    by_key = {_own_key(row): _key(row) for row in rows}
    found = {
        _key(one) if isinstance(one, models.Model) else by_key.get(one): _outcome(outcome)
        for one, outcome in _pairs(answer, by_key)
    }
    return [found.get(_key(row), UNMENTIONED) for row in rows]


def _own_key(row: models.Model) -> object:
    """Return the key that an answer may name a row by: its own, as it was claimed, or its source's."""
    return _key(row) if is_companion(type(row)) else loaded_key(row)


def _key(given: models.Model) -> object:
    """Return what a row is known by here: the key of its claim, or of a companion's source.

    *given* is an instance that the handler got, or one that it has read itself.
    """
    row = as_claimed(given)
    kind = type(row)
    if is_companion(kind):
        first, *more = source_link(kind).key_of(row)
        return (first, *more) if more else first
    # A handler may have deleted the row since, or saved its instance as another row.
    if (claim := claim_of(row)) is not None:
        return claim.pk
    return claim_columns(kind).key_of(row) if has_claim_columns(kind) else row.pk


def _pairs(answer: object, keys: Container[object]) -> Iterable[tuple[object, object]]:
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise TypeError(
            f"A batch handler returns None, a mapping or an iterable of outcomes, not {answer!r:.200}."
        )
    return answer.items() if isinstance(answer, Mapping) else (_pair(one, keys) for one in answer)


def _pair(given: object, keys: Container[object]) -> tuple[object, object]:
    if not isinstance(given, tuple) or len(given) != 2:
        return given, None
    first, _ = given
    # A key may have two parts.
    names_a_row = isinstance(first, models.Model) or (given not in keys and first in keys)
    return given if names_a_row else (given, None)


def _outcome(given: object) -> BaseException | None:
    if isinstance(given, type) and issubclass(given, BaseException):
        return given()
    if given is None or isinstance(given, BaseException):
        return given
    return TypeError(f"The outcome of a row is None or an exception, not {given!r:.200}.")


# Columns that a handler sets although nothing writes them: a completion writes ``update_fields`` alone

#: By handler, how many of its rows this process is still to compare: the first 50, or none after a warning.
_to_compare: defaultdict[Handler, int] = defaultdict(lambda: 50)

#: A row, the instance that a handler gets (it, or its source), and what that had in its ``__dict__`` before the call.
Before: TypeAlias = tuple[models.Model, models.Model, dict[str, object]]


def values_before(handler: Handler, rows: Sequence[models.Model]) -> list[Before]:
    """Return what the handler is given, with its values; nothing once enough rows have been compared."""
    rows = rows[: _to_compare[handler]]
    # Another thread may have taken the last ones meanwhile.
    _to_compare[handler] = max(0, _to_compare[handler] - len(rows))
    given = [getattr(row, LINK) if handler.gets_sources else row for row in rows]
    return [(row, one, dict(vars(one))) for row, one in zip(rows, given, strict=True)]


def warn_of_unsaved(handler: Handler, seen: Sequence[Before]) -> None:
    """Warn, once, where the handler has set columns of which the database still has the old values."""
    for row, given, before in seen:
        # Without a claim it was saved as another row.
        if claim_of(row) is None or not (unsaved := _unsaved(handler, given, before)):
            continue
        _to_compare[handler] = 0
        columns = [one if given is row else PREFIX + one for one in unsaved]
        names = ", ".join(f'"{name}"' for name in (*handler.update_fields, *columns))
        logger.warning(
            "%s: %s set %s, but nothing writes it, so this row and others are completed without it."
            " Register the handler with update_fields=[%s], or call save() in it. To run those rows again:"
            " manage.py claimreset %s --complete",
            *(named(row), handler.name, listed(columns), names, handler.model._meta.label),
            extra={"event": "unsaved", "keys": [str(row.pk)], "columns": columns},
        )
        return


def _unsaved(handler: Handler, given: models.Model, before: Mapping[str, object]) -> Sequence[str]:
    """Return the columns that the handler has set on what it was *given*, and of which the old values are stored."""
    columns = _set_in_vain(handler, given, before)
    # The row may be gone, and reading it runs code of the user's: that makes no difference to what it came to.
    with suppress(Exception):
        if columns:
            rows = models.QuerySet[models.Model](type(given), using=given._state.db)
            stored = rows.filter(pk=given.pk).values(*(one.attname for one in columns)).get()
            # Another value was written by somebody, or made by the database.
            return [one.name for one in columns if _are_alike(one, before, stored)]
    return ()


def _set_in_vain(
    handler: Handler, given: models.Model, before: Mapping[str, object]
) -> list[AnyField]:
    """Return the columns that were set since *before*, and that a completion neither removes nor writes."""
    kind, model, now = type(given), handler.model, vars(given)
    if issubclass(kind, model) and not isinstance(policy_for(model).completion, (Mark, Clear)):
        return []
    loaded = writable(kind) & before.keys() & now.keys()
    fields = [one for one in kind._meta.concrete_fields if one.attname in loaded]
    results = checked_results(model, handler.update_fields)
    written = [one for one in fields if one in results or isinstance(one, ClaimColumn)]
    return [one for one in fields if not (one in written or _are_alike(one, before, now))]


def _are_alike(field: AnyField, one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Say whether both have values of the column that are stored alike; a file is a text until it is read."""
    mine, theirs = one[field.attname], other[field.attname]
    try:
        return bool(field.get_prep_value(mine) == field.get_prep_value(theirs))
    except Exception:
        # No value of this column, or one of a class of the user's.
        return mine is theirs
