"""What the state of a row means to claims, as conditions: open, due, waiting, quarantined, running, expired."""

from datetime import datetime

from django.db.models import Q

from django_taskclaim.columns import ClaimColumns
from django_taskclaim.db import DatabaseNow
from django_taskclaim.fields import NEVER_WAITED, QUARANTINED
from django_taskclaim.states import Status, Token


def in_state(columns: ClaimColumns, *states: Status) -> Q:
    """Match rows in one of these states."""
    status = columns.status.name
    return Q(**{status: states[0]}) if len(states) == 1 else Q(**{f"{status}__in": states})


def is_open(columns: ClaimColumns) -> Q:
    """Match rows that wait to be claimed, due or not."""
    return in_state(columns, Status.OPEN)


def is_running(columns: ClaimColumns) -> Q:
    """Match rows that somebody holds, expired or not."""
    return in_state(columns, Status.PROCESSING)


def is_claimed_by(columns: ClaimColumns, token: Token, status: Status = Status.PROCESSING) -> Q:
    """Match the row while its claim is the one that *token* names; with another *status*, as this claim left it."""
    return in_state(columns, status) & Q(
        **{columns.claimed_by.name: token.holder, columns.iteration.name: token.iteration}
    )


def is_expired(columns: ClaimColumns, cutoff: datetime | None = None) -> Q:
    """Match rows whose lease has ended by the database's clock; a running row without expiry counts as expired.

    With *cutoff*, only those whose lease had ended by then.
    """
    expiry = columns.expires_at.name
    ended = Q(**{f"{expiry}__lte": DatabaseNow()})
    if cutoff is not None:
        ended &= Q(**{f"{expiry}__lte": cutoff})
    return is_running(columns) & (Q(**{f"{expiry}__isnull": True}) | ended)


def has_waited(columns: ClaimColumns, now: datetime | None = None) -> Q:
    """Match rows whose waiting time is over: all, where the model has none. *now* is the database's clock by default.

    The mark of a quarantined row lies in the far future, so ordinary claims leave such rows out by the index.
    """
    waiting = columns.not_before
    return Q() if waiting is None else Q(**{f"{waiting.name}__lte": now or DatabaseNow()})


def never_waited(columns: ClaimColumns) -> Q:
    """Match rows that never had to wait: all, where the model has no waiting time."""
    waiting = columns.not_before
    return Q() if waiting is None else Q(**{waiting.name: NEVER_WAITED})


def is_quarantined(columns: ClaimColumns) -> Q:
    """Match rows that are marked because their worker may have died of them; none, where the model has no mark."""
    waiting = columns.not_before
    return Q(pk__in=[]) if waiting is None else Q(**{f"{waiting.name}__gte": QUARANTINED})


def is_due(columns: ClaimColumns, now: datetime | None = None) -> Q:
    """Match rows that some claim takes if they are open: their waiting time is over, or they are quarantined."""
    found = has_waited(columns, now)
    return found | is_quarantined(columns) if found else found


def is_waiting(columns: ClaimColumns) -> Q:
    """Match rows whose waiting time is not over; none, where the model has none."""
    if columns.not_before is None:
        return Q(pk__in=[])
    name = columns.not_before.name
    return Q(**{f"{name}__gt": DatabaseNow(), f"{name}__lt": QUARANTINED})
