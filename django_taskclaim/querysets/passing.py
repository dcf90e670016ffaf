"""Passing claims from one holder to another."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from django.db import models

from django_taskclaim import conf
from django_taskclaim.claim import GIVEN_UP, carried_claims, end_claims
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import Change
from django_taskclaim.guard import show
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.assignments import pass_on
from django_taskclaim.querysets.claiming import checked_name
from django_taskclaim.querysets.operating import TakeOver, in_chunks
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.querysets.writes import (
    Given,
    Write,
    by_database,
    send_of_rows,
    write,
)
from django_taskclaim.signals import rows_handed_over

M = TypeVar("M", bound=models.Model)

Lease = float | timedelta | None


def hand_over(rows: M | Iterable[M], to: str, lease: Lease) -> int:
    """Let *to* hold *rows* from now on; see ``ClaimQuerySet.hand_over``."""
    holder = checked_name(to, "to")
    duration = None if lease is None else conf.positive_duration(lease, "lease")
    given = Given.of(rows)
    written: list[M] = []
    for part in by_database(given.held):
        done = write(part, Passing(holder, duration))
        end_claims(carried_claims(done), GIVEN_UP)
        for row in done:
            _show_passed(row, holder)
        send_of_rows(rows_handed_over, done, to=holder)
        written += done
    given.raise_unless_all(written)
    return len(written)


def take_over(queryset: Rows, by: str, reason: str, lease: Lease) -> int:
    """Let *by* hold what others hold of *queryset*; see ``ClaimQuerySet.take_over``."""
    holder = checked_name(by, "by")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("take_over() needs a reason, for whoever loses the rows.")
    duration = _duration(queryset.model, lease)
    return in_chunks(queryset, TakeOver(holder, reason.strip(), duration))


def _duration(model: type[models.Model], lease: Lease) -> timedelta:
    return policy_for(model).lease if lease is None else conf.positive_duration(lease, "lease")


class Passing(Write):
    """Gives rows to another holder, as claims of their own."""

    def __init__(self, holder: str, lease: timedelta | None) -> None:
        self.holder, self.lease = holder, lease

    def change(self, target: ClaimTarget, rows: Sequence[Any]) -> Change:
        return Change(pass_on(target, self.holder, self.lease or policy_for(target.model).lease))


def _show_passed(row: models.Model, holder: str) -> None:
    columns = claim_columns(type(row))
    unknown = (columns.claimed_at, columns.expires_at, columns.iteration)
    show([row], {columns.claimed_by: holder, **dict.fromkeys(unknown, models.DEFERRED)})
