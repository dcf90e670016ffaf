"""What the verbs set in the claim columns, piece by piece."""

from collections.abc import Sequence
from datetime import timedelta

from django_taskclaim.db.sql import SQL, value
from django_taskclaim.fields import QUARANTINED, AnyField
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.states import Status


def in_state(target: ClaimTarget, status: Status) -> SQL:
    """Return what gives a row this state."""
    return target.table.assign(target.columns.status, SQL(f"'{status.value}'"))


def to_null(target: ClaimTarget, field: AnyField) -> SQL:
    """Return what empties a column."""
    return target.table.assign(field, SQL("NULL"))


def one_more(target: ClaimTarget, field: AnyField) -> SQL:
    """Return what adds one to a column that counts."""
    return target.table.assign(field, SQL(f"{target.table.qualified(field)} + 1"))


def done_now(target: ClaimTarget) -> list[SQL]:
    """Return what notes when a row was completed, where the model has a column for it."""
    field = target.columns.completed_at
    return [] if field is None else [target.table.assign(field, SQL(target.dialect.now))]


def completed(target: ClaimTarget) -> Sequence[SQL]:
    """Return what completing sets: put together once, for that is what nearly all writes are."""

    def make() -> Sequence[SQL]:
        state, end = in_state(target, Status.COMPLETE), to_null(target, target.columns.expires_at)
        return (state, *done_now(target), end)

    # By the model's columns: a child may have one that the owner of the table has not.
    return target.table.cached(target.columns, make)


def due_later(target: ClaimTarget, wait: timedelta | None) -> list[SQL]:
    """Return what lets a row wait; None, or a model without ``not_before``, leaves it its place in the order."""
    field = target.columns.not_before
    if wait is None or field is None:
        return []
    return [target.table.assign(field, target.dialect.later(wait))]


def as_new(target: ClaimTarget) -> list[SQL]:
    """Return what forgets the failures of a row."""
    columns = target.columns
    fields = (columns.attempts, columns.last_error, columns.error_class)
    return [
        target.table.assign(field, target.table.bound(field, field.get_default()))
        for field in fields
        if field is not None
    ]


def why_failed(target: ClaimTarget, error_class: str, error_text: str) -> list[SQL]:
    """Return what notes why a row failed, where the model has columns for it."""
    columns = target.columns
    texts = ((columns.error_class, error_class), (columns.last_error, error_text))
    return [target.table.assign(field, value(text)) for field, text in texts if field is not None]


def one_more_attempt(target: ClaimTarget) -> list[SQL]:
    """Return what charges a row a try, where the model counts them."""
    field = target.columns.attempts
    return [] if field is None else [one_more(target, field)]


def failed(target: ClaimTarget, error_class: str, error_text: str) -> list[SQL]:
    """Return what ends a row badly."""
    state, end = in_state(target, Status.FAILED), to_null(target, target.columns.expires_at)
    return [state, *why_failed(target, error_class, error_text), end]


def open_again(target: ClaimTarget) -> list[SQL]:
    """Return what puts a row back: open, held by nobody, one iteration on."""
    columns = target.columns
    return [
        in_state(target, Status.OPEN),
        to_null(target, columns.claimed_at),
        to_null(target, columns.expires_at),
        one_more(target, columns.iteration),
        to_null(target, columns.claimed_by),
    ]


def pass_on(target: ClaimTarget, holder: str, lease: timedelta) -> list[SQL]:
    """Return what gives a running row to another holder, for *lease* at least, as a claim of its own."""
    table, columns = target.table, target.columns
    return [
        table.assign(columns.claimed_at, SQL(target.dialect.now)),
        target.dialect.extension(table, lease),
        one_more(target, columns.iteration),
        table.assign(columns.claimed_by, value(holder)),
    ]


def quarantine_mark(target: ClaimTarget) -> list[SQL]:
    """Return what marks a row to be claimed alone; nothing for a model without ``not_before``."""
    field = target.columns.not_before
    return (
        []
        if field is None
        else [target.table.assign(field, target.table.bound(field, QUARANTINED))]
    )
