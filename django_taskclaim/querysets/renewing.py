"""Renewals: leases are extended without waiting for a row that somebody has locked, and none is shortened."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from django.db import DatabaseError, models

from django_taskclaim.claim import carried_claim, carried_claims, clock, standing
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import Key
from django_taskclaim.guard import show
from django_taskclaim.querysets.losses import raise_lost
from django_taskclaim.querysets.refusals import Search
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.transactions import alone, may_stand_alone, transactionally
from django_taskclaim.querysets.writes import (
    Rows,
    Statement,
    by_database,
    keys_of,
    send_of_rows,
    statements,
    with_keys,
)
from django_taskclaim.signals import rows_renewed
from django_taskclaim.states import Token


class Renewed(NamedTuple):
    """What became of the rows of one renewal."""

    renewed: list[Any]
    #: Locked by another transaction at that moment: neither renewed nor lost.
    skipped: list[Any]
    lost: list[Any]
    #: Not renewed, because the database refuses to have them, or some among them, written.
    refused: list[Any]


def renew_all(given: Rows, lease: timedelta | None) -> int:
    """Renew rows of any database, and raise ClaimLost for those that are lost; see ``ClaimQuerySet.renew``."""
    renewed: list[Any] = []
    held = standing(given)
    lost = set(map(id, given)).difference(map(id, held))
    for part in by_database(held):
        outcome = renew(part, lease)
        kinds: set[Any] = set(map(type, outcome.renewed))
        for model in kinds:
            same: list[Any] = [row for row in outcome.renewed if type(row) is model]
            show(same, {claim_columns(model).expires_at: models.DEFERRED})
        renewed += outcome.renewed
        lost.update(map(id, outcome.lost))
    if lost:
        raise_lost([row for row in given if id(row) in lost], renewed)
    return len(renewed)


def renew(rows: Rows, lease: timedelta | None) -> Renewed:
    """Extend the leases that stand, of rows of one database; by default for as long as they were asked for."""
    started = clock()
    result = Renewed([], [], [], [])
    by_lease: dict[timedelta, list[Any]] = {}
    for row, claim in zip(rows, carried_claims(rows), strict=True):
        by_lease.setdefault(lease or claim.lease, []).append(row)
    try:
        for duration, same in by_lease.items():
            for part in statements(same):
                _renew_part(part, duration, result)
    finally:
        # Each part is a transaction: an error in one takes nothing back of those before it.
        for claim in carried_claims(result.renewed):
            claim.extend(started, lease)
        send_of_rows(rows_renewed, result.renewed)
        for row in result.lost:
            carried_claim(row).lost = True
    return result


class _Outcome(NamedTuple):
    """What became of the claims of one statement, by key."""

    renewed: Sequence[Key]
    skipped: Sequence[Key]
    lost: Sequence[Key]


def _renew_part(part: Statement, lease: timedelta, result: Renewed) -> None:
    ((token, rows),) = part.rows_of
    extend = partial(_extend, part.target, token, lease)
    keys = keys_of(rows)
    try:
        outcomes = [_send(part.target, partial(extend, keys))]
    except DatabaseError as error:
        outcomes = list(Search(part.target, error).send([keys], extend))
    for outcome in outcomes:
        result.renewed.extend(with_keys(rows, outcome.renewed))
        result.skipped.extend(with_keys(rows, outcome.skipped))
        result.lost.extend(with_keys(rows, outcome.lost))
    if sum(map(len, chain.from_iterable(outcomes))) < len(rows):
        known = {key for outcome in outcomes for same in outcome for key in same}
        result.refused.extend([row for row in rows if carried_claim(row).pk not in known])


def _send(target: ClaimTarget, extend: Callable[[], _Outcome]) -> _Outcome:
    # It is sent again where its COMMIT was not answered: it shortens no lease, and the fence stands.
    again = partial(transactionally, target, extend)
    if target.dialect.returns_updated and may_stand_alone(target):
        return alone(target, extend, again)
    return transactionally(target, extend, lambda unknown: again())


def _extend(target: ClaimTarget, token: Token, lease: timedelta, keys: Sequence[Key]) -> _Outcome:
    renewed = target.dialect.renew_held(target.table, token, keys, lease)
    if len(renewed) == len(keys):
        return _Outcome(renewed, (), ())
    rest = [key for key in keys if key not in set(renewed)]
    # A token that does not stand now never stands again; one that does was locked.
    skipped = target.dialect.still_standing(target.table, token, rest)
    return _Outcome(renewed, skipped, [key for key in rest if key not in set(skipped)])
