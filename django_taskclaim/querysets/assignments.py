"""What the verbs set in the claim columns, piece by piece."""

from collections.abc import Sequence
from datetime import timedelta

from django_taskclaim.db.sql import SQL, value
from django_taskclaim.fields import QUARANTINED
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.states import Status

NULL = SQL("NULL")


def setting(target: ClaimTarget, **columns: SQL) -> list[SQL]:
    """Return what sets *columns*, named by their roles, in this order; those that the model lacks are left out."""
    fields = [(getattr(target.columns, role), to) for role, to in columns.items()]
    return [target.table.assign(field, to) for field, to in fields if field is not None]


def literal(status: Status) -> SQL:
    """Return a state as it is written in a statement."""
    return SQL(f"'{status.value}'")


def next_iteration(target: ClaimTarget) -> SQL:
    """Return an iteration of which no token was ever issued."""
    return SQL(f"{target.table.iteration} + 1")


def completed(target: ClaimTarget) -> Sequence[SQL]:
    """Return what completing sets: put together once, for that is what nearly all writes are."""

    def make() -> Sequence[SQL]:
        now = SQL(target.dialect.now)
        status = literal(Status.COMPLETE)
        return setting(target, status=status, completed_at=now, expires_at=NULL)

    # By the model's columns: a child may have one that the owner of the table has not.
    return target.table.cached(target.columns, make)


def due_later(target: ClaimTarget, wait: timedelta | None) -> list[SQL]:
    """Return what lets a row wait; None, or a model without ``not_before``, leaves it its place in the order."""
    return [] if wait is None else setting(target, not_before=target.dialect.later(wait))


def as_new(target: ClaimTarget) -> list[SQL]:
    """Return what forgets the failures of a row."""
    return setting(target, attempts=SQL("0"), last_error=value(""), error_class=value(""))


def why_failed(target: ClaimTarget, error_class: str, error_text: str) -> list[SQL]:
    """Return what notes why a row failed, where the model has columns for it."""
    return setting(target, error_class=value(error_class), last_error=value(error_text))


def one_more_attempt(target: ClaimTarget) -> list[SQL]:
    """Return what charges a row a try, where the model counts them."""
    field = target.columns.attempts
    return (
        []
        if field is None
        else setting(target, attempts=SQL(f"{target.table.qualified(field)} + 1"))
    )


def failed(target: ClaimTarget, error_class: str, error_text: str) -> list[SQL]:
    """Return what ends a row badly."""
    why = why_failed(target, error_class, error_text)
    return [*setting(target, status=literal(Status.FAILED), expires_at=NULL), *why]


def open_again(target: ClaimTarget) -> list[SQL]:
    """Return what puts a row back: open, held by nobody, one iteration on."""
    return setting(
        target,
        status=literal(Status.OPEN),
        claimed_at=NULL,
        expires_at=NULL,
        iteration=next_iteration(target),
        claimed_by=NULL,
    )


def held_by_another(target: ClaimTarget, holder: str, lease: timedelta) -> list[SQL]:
    """Return what gives a running row to another holder, for *lease* at least, as a claim of its own."""
    now, again = SQL(target.dialect.now), next_iteration(target)
    claim = setting(target, claimed_at=now, iteration=again, claimed_by=value(holder))
    return [target.dialect.extension(target.table, lease), *claim]


def quarantine_mark(target: ClaimTarget) -> list[SQL]:
    """Return what marks a row to be claimed alone; nothing for a model without ``not_before``."""
    field = target.columns.not_before
    return (
        [] if field is None else setting(target, not_before=target.table.bound(field, QUARANTINED))
    )
