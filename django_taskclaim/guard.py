"""Keeps the claim columns out of every write that is no verb.

On a row that exists, a claim column that was assigned is an error before any SQL. A new row is created open, unless
it was constructed with another initial state that is allowed, and with nothing that only a claim writes.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from django_taskclaim.claim import Claim, claim_of, detach
from django_taskclaim.columns import claim_columns
from django_taskclaim.exceptions import ClaimColumnError
from django_taskclaim.fields import AnyField, RangeColumn, as_utc
from django_taskclaim.states import Status

#: Where an instance keeps what its row has stored: names and values as they were loaded, by reference, and by attname
#: what was written or loaded since. Nothing is copied for rows that are only read.
LOADED = "_taskclaim_loaded"

#: The last of the three for a row that was only loaded.
UNCHANGED: Mapping[str, Any] = {}

#: Why an instance that carries a claim, or once did, is not stored as a new row under the key that it had claimed.
NEVER_INSERTED = "the row is gone, and an instance that was claimed never inserts its key again"

_VERB_FOR: dict[Any, str] = {
    Status.OPEN: "row.claim.release(), or reset() on a queryset",
    Status.PROCESSING: "claim_batch()",
    Status.COMPLETE: "row.claim.complete()",
    Status.FAILED: "row.claim.fail(error)",
    Status.PAUSED: "pause_rows() on a queryset",
}


def remember(row: models.Model, attnames: Iterable[str]) -> None:
    """Take the row's present values of these columns for the stored ones."""
    stored = {name: row.__dict__.get(name, models.DEFERRED) for name in attnames}
    names, values, since = row.__dict__.get(LOADED, ((), (), UNCHANGED))
    row.__dict__[LOADED] = (names, values, {**since, **stored})


def show(rows: Iterable[models.Model], values: Mapping[AnyField | None, Any]) -> None:
    """Let instances show what a verb has written to all of them; ``DEFERRED`` values are read again when asked for."""
    written = {field.attname: value for field, value in values.items() if field is not None}
    unknown = [name for name, value in written.items() if value is models.DEFERRED]
    for row in rows:
        own = row.__dict__
        own.update(written)
        for name in unknown:
            del own[name]
        names, values, since = own.get(LOADED, ((), (), UNCHANGED))
        # Rows that a verb has written alike share what it wrote.
        own[LOADED] = (names, values, {**since, **written} if since else written)


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
    if not is_stored(row):
        return
    own, columns = row.__dict__, claim_columns(type(row))
    names, values, since = own[LOADED]
    known = {**dict(zip(names, values, strict=False)), **since}
    for field in columns.guarded:
        name = field.attname
        stored = known.get(name, models.DEFERRED)
        if name in own and (stored is models.DEFERRED or _differs(stored, own[name])):
            verb = _VERB_FOR.get(own[name]) if field is columns.status else None
            raise ClaimColumnError(
                f"{row._meta.label} {row.pk!r}: {field.name} was set to {own[name]!r}, but claim columns are written"
                f" by the verbs alone; use {verb or 'one of the verbs'}."
            )


def _differs(known: object, value: object) -> bool:
    """Compare as an export, a form or a spreadsheet keeps values: whole seconds, and no NULL beside an empty text."""
    if known == value or (not known and value in ("", None)):
        return False
    if isinstance(known, datetime) and isinstance(value, datetime) and not value.microsecond:
        return as_utc(known).replace(microsecond=0) != as_utc(value)
    return True


def is_stored(row: models.Model) -> bool:
    """Say whether the row was loaded, or saved before: then its values of our columns are not the user's wish."""
    return LOADED in row.__dict__


def is_copy(row: models.Model) -> bool:
    """Say whether the row is a loaded one about to be saved as a new row (Django's copy idiom)."""
    return is_stored(row) and (row._state.adding or row.pk is None)


def claim_on(row: models.Model, using: str) -> Claim | None:
    """Return the claim that the instance carries, or once carried, on the very row that a save there would write."""
    claim = claim_of(row)
    if claim is None or claim.alias != using:
        return None
    columns = claim_columns(type(row))
    key = columns.key_of(row)
    if claim.pk == key:
        return claim
    # A key as its field would load it: "5" names the row 5.
    with suppress(ValidationError):
        return claim if claim.pk == columns.owner._meta.pk.to_python(key) else None
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
    columns, own = claim_columns(type(row)), row.__dict__
    state = own.get(columns.status.attname, Status.OPEN)
    if state not in Status.values:
        raise ClaimColumnError(
            f"A new {row._meta.label} cannot be {state!r}, only open, paused, complete or failed."
        )
    only_a_claim_writes = [one for one in ours if one not in (columns.status, columns.not_before)]
    return state == Status.PROCESSING or any(
        one.attname in own and own[one.attname] != one.get_default() for one in only_a_claim_writes
    )
