"""Keeps the claim columns out of every write that is no verb.

On a row that exists, a column of ours that was assigned is an error before any SQL. A new row is created open, unless
it was constructed with another initial state that is allowed, and with nothing that only a claim writes.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from django_taskclaim.claim import Claim, claim_of, detach
from django_taskclaim.columns import claim_columns
from django_taskclaim.exceptions import ClaimColumnError
from django_taskclaim.fields import AnyField, RangeColumn, as_utc
from django_taskclaim.states import Status

LOADED = "_taskclaim_loaded"

#: Why an instance that carries a claim, or once did, is not stored as a new row under the key that it had claimed.
NEVER_INSERTED = "the row is gone, and an instance that was claimed never inserts its key again"

_VERB_FOR: dict[Any, str] = {
    Status.OPEN: "row.claim.release(), or reset() on a queryset",
    Status.PROCESSING: "claim_batch()",
    Status.COMPLETE: "row.claim.complete()",
    Status.FAILED: "row.claim.fail(error)",
    Status.PAUSED: "pause_rows() on a queryset",
}


def loaded_values(row: models.Model) -> dict[str, Any] | None:
    """Return the values that the row was last loaded or written with, by attname; None for one never stored."""
    return _as_dict(row.__dict__.get(LOADED))


def _as_dict(known: Any) -> dict[str, Any] | None:
    if known is None or isinstance(known, dict):
        return known
    if len(known) == 3:
        # What a verb has written since: put together only if somebody asks.
        before, shown, unknown = known
        values = {**(_as_dict(before) or {}), **shown}
        return {name: one for name, one in values.items() if name not in unknown}
    names, values = known
    return dict(zip(names, values, strict=False))


def remember_loaded(row: models.Model, names: Iterable[str], values: Iterable[Any]) -> None:
    """Keep a reference to what the row was loaded with: nothing is copied for rows that are only read."""
    row.__dict__[LOADED] = (names, values)


def remember(row: models.Model, attnames: Iterable[str]) -> None:
    """Take the row's present values of these columns for the stored ones."""
    known = dict(loaded_values(row) or {})
    for attname in attnames:
        if attname in row.__dict__:
            known[attname] = row.__dict__[attname]
        else:
            known.pop(attname, None)
    row.__dict__[LOADED] = known


def show(rows: Iterable[models.Model], values: dict[AnyField | None, Any]) -> None:
    """Let instances show what a verb has written to all of them; ``DEFERRED`` values are read again when asked for."""
    show_written(rows, *split_deferred(values))


def split_deferred(values: dict[AnyField | None, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values to show by attname, and the attnames of those that are to be read when asked for."""
    named = {field.attname: value for field, value in values.items() if field is not None}
    unknown = [name for name, value in named.items() if value is models.DEFERRED]
    return {name: named[name] for name in named if name not in unknown}, unknown


def show_written(rows: Iterable[models.Model], shown: dict[str, Any], unknown: list[str]) -> None:
    """Let instances show values that are the same for all of them, as ``split_deferred`` has them."""
    for row in rows:
        own = row.__dict__
        own.update(shown)
        for name in unknown:
            own.pop(name, None)
        before = own.get(LOADED)
        if type(before) is tuple and len(before) == 3:
            # A range is written again and again.
            before = _as_dict(before)
        # *shown* and *unknown* are the same objects for all the rows that the verb has written alike.
        own[LOADED] = (before, shown, unknown)


def refuse_names(model: type[models.Model], names: Iterable[str] | None, where: str) -> None:
    """Raise ClaimColumnError if *names* holds a claim column."""
    wrong = sorted(claim_columns(model).guarded_names.intersection(names or ()))
    if wrong:
        raise ClaimColumnError(
            f"{where} names {', '.join(wrong)} of {model._meta.label}: claim columns are written by the verbs alone"
            f" (claim_batch, complete, fail, release, renew, reset, pause_rows, resume_rows)."
        )


def refuse_assigned(row: models.Model) -> None:
    """Raise ClaimColumnError if a claim column of a stored row was assigned since it was loaded."""
    field = assigned(row)
    if field is not None:
        raise ClaimColumnError(_assigned_message(row, field))


def assigned(row: models.Model) -> AnyField | None:
    """Return a claim column of a stored row that was assigned since it was loaded, if there is one."""
    known = loaded_values(row)
    if known is None:
        return None
    for field in claim_columns(type(row)).guarded:
        attname = field.attname
        if attname in row.__dict__ and (
            attname not in known or _differs(known[attname], row.__dict__[attname])
        ):
            return field
    return None


def _differs(known: Any, value: Any) -> bool:
    """Compare as an export, a form or a spreadsheet keeps values: whole seconds, and no NULL beside an empty text."""
    if known == value or (not known and value in ("", None)):
        return False
    if isinstance(known, datetime) and isinstance(value, datetime) and not value.microsecond:
        return as_utc(known).replace(microsecond=0) != as_utc(value)
    return True


def _assigned_message(row: models.Model, field: AnyField) -> str:
    value = row.__dict__[field.attname]
    is_status = field is claim_columns(type(row)).status
    verb = _VERB_FOR.get(value, "one of the verbs") if is_status else "one of the verbs"
    return (
        f"{row._meta.label} {row.pk!r}: {field.name} was set to {value!r}, but claim columns are written by the verbs"
        f" alone; use {verb}."
    )


def is_stored(row: models.Model) -> bool:
    """Say whether the row was loaded, or saved before: then its values of our columns are not the user's wish."""
    return LOADED in row.__dict__


def is_copy(row: models.Model) -> bool:
    """Say whether the row is a loaded one about to be saved as a new row (Django's copy idiom)."""
    return is_stored(row) and (row._state.adding or row.pk is None)


def prepare_copy(row: models.Model) -> None:
    """Give a copy the columns that were never loaded: they cannot be, for its row is not there yet."""
    missing = [f for f in claim_columns(type(row)).guarded if f.attname not in row.__dict__]
    for field in missing:
        row.__dict__[field.attname] = field.get_default()
    remember(row, [field.attname for field in missing])


def claim_on(row: models.Model, using: str, key: Any) -> Claim | None:
    """Return the claim that the instance carries, or once carried, on the very row that has this key."""
    claim = claim_of(row)
    if claim is None or claim.alias != using:
        return None
    return claim if claim.pk == key or claim.pk == _read_key(row, key) else None


def _read_key(row: models.Model, key: Any) -> Any:
    """Return a key as its field would load it: "5" names the row 5."""
    try:
        return claim_columns(type(row)).owner._meta.pk.to_python(key)
    except ValidationError:
        return None


def prepare_new_row(row: models.Model) -> None:
    """Prepare a row to be inserted: one that was loaded, or names what a claim writes, is a copy and is created open.

    Raises ClaimColumnError for a constructed row whose state is none.
    """
    columns = claim_columns(type(row))
    claim, ours = claim_of(row), columns.guarded
    if not is_stored(row) and claim is None:
        # What a new range is of, its maker says.
        ours = [field for field in ours if not isinstance(field, RangeColumn)]
        if not _names_a_claim(row, ours):
            return
    for field in ours:
        row.__dict__[field.attname] = field.get_default()
    if claim is not None and claim.pk != columns.key_of(row):
        # With the same key, but on another database, the instance still carries the claim of the row here.
        detach(row)


def _names_a_claim(row: models.Model, ours: Iterable[AnyField]) -> bool:
    columns = claim_columns(type(row))
    state = _value(row, columns.status)
    if state not in Status.values:
        raise ClaimColumnError(
            f"A new {row._meta.label} cannot be {state!r}, only open, paused, complete or failed."
        )
    free = (columns.status, columns.not_before)
    return state == Status.PROCESSING or any(
        field not in free and _value(row, field) != field.get_default() for field in ours
    )


def _value(row: models.Model, field: AnyField) -> Any:
    return row.__dict__.get(field.attname, field.get_default())
