"""Renewals: leases are extended without waiting for a row that somebody has locked, and none is shortened."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from django.db import models

from django_taskclaim.claim import carried_claim, carried_claims, clock
from django_taskclaim.db.sql import Key
from django_taskclaim.querysets.isolating import RefusedRows
from django_taskclaim.querysets.scope import NOW
from django_taskclaim.querysets.transactions import (
    AmbiguousCommit,
    autocommit,
    can_autocommit,
    in_transaction,
)
from django_taskclaim.querysets.writes import Given, HeldRows, raise_lost, show_state
from django_taskclaim.signals import rows_renewed, send_of_rows


class Renewed(NamedTuple):
    """What became of the rows of one renewal."""

    renewed: list[models.Model]
    #: Locked by another transaction at that moment: neither renewed nor lost.
    skipped: list[models.Model]
    lost: list[models.Model]
    #: Not renewed, because the database refuses to have them, or some among them, written.
    refused: list[models.Model]


#: Keys of the claims of one statement: those renewed, those skipped and those that are lost.
_Outcome = tuple[Sequence[Key], Sequence[Key], Sequence[Key]]


def renew_all(rows: object, lease: timedelta | None) -> int:
    """Renew rows of any database, and raise ClaimLost for those that are lost; see ``ClaimQuerySet.renew``."""
    given = Given(rows)
    outcome = renew(given, lease)
    show_state(outcome.renewed, {"expires_at": NOW})
    # Rows that were passed over are not lost.
    known = set(map(id, [*outcome.renewed, *outcome.skipped, *outcome.refused]))
    if len(known) < len(given.rows):
        raise_lost([row for row in given.rows if id(row) not in known], outcome.renewed)
    return len(outcome.renewed)


def renew(given: Given, lease: timedelta | None = None) -> Renewed:
    """Extend the leases that stand, of rows of any database; by default for as long as they were asked for."""
    started = clock()
    result = Renewed([], [], [], [])
    try:
        for part in [part for one in given.held for part in one.parts()]:
            # The rows of one claim were asked for together, so their leases are nearly always alike.
            longest = lease or max([claim.lease for claim in carried_claims(part.rows)])
            search, left = (
                RefusedRows(part.target),
                dict(zip(part.keys, part.rows, strict=True)),
            )
            for outcome in search.send(part.keys, partial(_send, part, longest)):
                for rows, keys in zip(result, outcome, strict=False):
                    rows += [left.pop(key) for key in keys]
            result.refused.extend(left.values())
    finally:
        # Each part is a transaction: an error in one takes nothing back of those before it.
        for claim in carried_claims(result.renewed):
            claim.extend(started, lease)
        send_of_rows(rows_renewed, result.renewed)
        for row in result.lost:
            carried_claim(row).lost = True
    return result


def _send(part: HeldRows, lease: timedelta, keys: Sequence[Key]) -> _Outcome:
    target, extend = part.target, partial(_extend, part, lease, keys)
    try:
        if target.dialect.returns_updated and can_autocommit(target):
            return autocommit(target, extend)
        return in_transaction(target, extend)
    except AmbiguousCommit:
        # It shortens no lease, and the fence stands.
        return in_transaction(target, extend)


def _extend(part: HeldRows, lease: timedelta, keys: Sequence[Key]) -> _Outcome:
    target, token = part.target, part.token
    renewed = target.dialect.renew_held(target.table, token, keys, lease)
    if len(renewed) == len(keys):
        return renewed, (), ()
    rest = [key for key in keys if key not in set(renewed)]
    # A token that does not stand now never stands again; one that does was locked.
    skipped = target.dialect.select_keys(target.table, rest, target.table.standing(token))
    return renewed, skipped, [key for key in rest if key not in set(skipped)]
