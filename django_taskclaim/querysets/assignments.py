"""What the verbs set in the claim columns, piece by piece."""

from collections.abc import Sequence
from datetime import timedelta

from django_taskclaim.dialects.statements import SQL, value
from django_taskclaim.fields import CRASHED, AnyField
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.states import Status


def in_state(desk: Desk, status: Status) -> SQL:
    """Return what gives a row this state."""
    return desk.table.assign(desk.columns.status, SQL(f"'{status.value}'"))


def to_null(desk: Desk, field: AnyField) -> SQL:
    """Return what empties a column."""
    return desk.table.assign(field, SQL("NULL"))


def one_more(desk: Desk, field: AnyField) -> SQL:
    """Return what adds one to a column that counts."""
    return desk.table.assign(field, SQL(f"{desk.table.qualified(field)} + 1"))


def done_now(desk: Desk) -> list[SQL]:
    """Return what notes when a row was completed, where the model has a column for it."""
    field = desk.columns.completed_at
    return [] if field is None else [desk.table.assign(field, SQL(desk.dialect.now))]


def completed(desk: Desk) -> Sequence[SQL]:
    """Return what completing sets: put together once, for that is what nearly all writes are."""

    def spell() -> Sequence[SQL]:
        state, end = in_state(desk, Status.COMPLETE), to_null(desk, desk.columns.expires_at)
        return (state, *done_now(desk), end)

    # By the model's columns: a child may have one that the owner of the table has not.
    return desk.table.spelt(desk.columns, spell)


def due_later(desk: Desk, wait: timedelta | None) -> list[SQL]:
    """Return what lets a row wait; None, or a model without ``not_before``, leaves it its place in the order."""
    field = desk.columns.not_before
    if wait is None or field is None:
        return []
    return [desk.table.assign(field, desk.dialect.later(wait))]


def as_new(desk: Desk) -> list[SQL]:
    """Return what forgets the failures of a row."""
    columns = desk.columns
    fields = (columns.attempts, columns.last_error, columns.error_class)
    return [
        desk.table.assign(field, desk.table.bound(field, field.get_default()))
        for field in fields
        if field is not None
    ]


def why_failed(desk: Desk, error_class: str, error_text: str) -> list[SQL]:
    """Return what notes why a row failed, where the model has columns for it."""
    columns = desk.columns
    texts = ((columns.error_class, error_class), (columns.last_error, error_text))
    return [desk.table.assign(field, value(text)) for field, text in texts if field is not None]


def one_more_attempt(desk: Desk) -> list[SQL]:
    """Return what charges a row a try, where the model counts them."""
    field = desk.columns.attempts
    return [] if field is None else [one_more(desk, field)]


def failed(desk: Desk, error_class: str, error_text: str) -> list[SQL]:
    """Return what ends a row badly."""
    state, end = in_state(desk, Status.FAILED), to_null(desk, desk.columns.expires_at)
    return [state, *why_failed(desk, error_class, error_text), end]


def open_again(desk: Desk) -> list[SQL]:
    """Return what puts a row back: open, held by nobody, one iteration on."""
    columns = desk.columns
    return [
        in_state(desk, Status.OPEN),
        to_null(desk, columns.claimed_at),
        to_null(desk, columns.expires_at),
        one_more(desk, columns.iteration),
        to_null(desk, columns.claimed_by),
    ]


def pass_on(desk: Desk, holder: str, lease: timedelta) -> list[SQL]:
    """Return what gives a running row to another holder, for *lease* at least, as a claim of its own."""
    table, columns = desk.table, desk.columns
    return [
        table.assign(columns.claimed_at, SQL(desk.dialect.now)),
        desk.dialect.extension(table, lease),
        one_more(desk, columns.iteration),
        table.assign(columns.claimed_by, value(holder)),
    ]


def crash_mark(desk: Desk) -> list[SQL]:
    """Return what marks a row to be claimed alone; nothing for a model without ``not_before``."""
    field = desk.columns.not_before
    return [] if field is None else [desk.table.assign(field, desk.table.bound(field, CRASHED))]
