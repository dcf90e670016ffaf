"""Which rows one claim takes: where it looks for them, place after place, and the statement that claims them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from typing import TypeVar

from django.conf import settings
from django.db import models

from django_taskclaim.db import ClaimedRow, ClaimSpec, ClaimStatement, SwitchIsOn
from django_taskclaim.db.sql import Key
from django_taskclaim.fields import QUARANTINED, QUARANTINED_UNSTARTED, AnyField
from django_taskclaim.limits.key_limits import KeyChooser
from django_taskclaim.limits.model_limits import Answer
from django_taskclaim.querysets.cursor import (
    EVERYTHING,
    QUARANTINED_SCAN,
    TURN,
    Cursor,
    Scan,
    quarantined_scans,
)
from django_taskclaim.querysets.isolating import MOST_ROWS, Bad, RefusedRows
from django_taskclaim.querysets.scope import (
    ClaimTarget,
    Rows,
    in_claim_order,
    is_open,
    on_claim_table,
    with_keys,
)
from django_taskclaim.querysets.transactions import autocommit, in_transaction
from django_taskclaim.tables import stop_scopes

R = TypeVar("R")

#: How many rows are looked at for each one wanted, beside those that are refused; others may have locked them.
LOOK_AHEAD = 4

#: How many claims this process has made, by database and model.
claims_made: Counter[tuple[str, type[models.Model]]] = Counter()


@dataclass(frozen=True, slots=True)
class Request:
    """One call of ``claim_batch``, checked."""

    limit: int
    holder: str
    lease: timedelta
    include_held: bool = False
    durable: bool = True
    #: Whether the holder notes in the database when it starts a quarantined row; see ``failing.note_start``.
    notes_start: bool = False
    #: How far the holder's claims before this one have come.
    cursor: Cursor | None = None
    #: Where limits say why the claim took no more than it did.
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class ClaimCall:
    """What all statements of one call of ``claim_batch`` have in common."""

    queryset: Rows
    request: Request
    target: ClaimTarget
    #: When the leases begin at the latest, by ``clock()``.
    started: float
    #: Whether the claim statement's own columns make the instances.
    is_plain: bool
    #: Whether limits of the model are known, of its handler's or stored ones, …
    is_limited: bool
    #: … and whether rows that share a value of a column wait for each other.
    counts_by_key: bool
    #: Whether each statement commits by itself.
    autocommits: bool
    #: Set once an error may be of single rows, which are then claimed apart from the others.
    refused: RefusedRows[Key] | None = None
    #: Instances that carry no more than their claims, of rows that cannot be read, each with the error.
    unreadable: list[Bad[models.Model]] = field(default_factory=list)

    @property
    def fields(self) -> Sequence[AnyField]:
        """The columns that the claim returns: all that make the instances, or those with a role."""
        columns = self.target.columns
        if self.is_plain:
            return columns.owner._meta.concrete_fields
        extra = (columns.iteration, columns.attempts, columns.not_before, columns.priority)
        return [*columns.key, *(one for one in extra if one is not None)]

    @property
    def switch(self) -> SwitchIsOn:
        """What stops this claim; where it looks at no limits, a stored limit does, too."""
        return SwitchIsOn(stop_scopes(self.queryset.model), unlimited=not self.is_limited)


# Where a claim looks


def take(call: ClaimCall, limit: int) -> list[ClaimedRow]:
    """Claim up to *limit* rows, of which a quarantined one is alone."""
    is_sorted = call.queryset.query.order_by or call.counts_by_key
    cursor = None if is_sorted else call.request.cursor
    place = call.target.alias, call.target.model
    claims_made[place] += 1
    turn = claims_made[place] % TURN
    is_turn = turn == 0 or (cursor is not None and cursor.thorough)
    rows = _take_quarantined(call) if is_turn else []
    if not rows:
        rows = _scan(call, cursor, limit, retried_first=turn == TURN // 2)
    return rows or ([] if is_turn else _take_quarantined(call))


def _take_quarantined(call: ClaimCall) -> list[ClaimedRow]:
    """Claim one row that may have killed its worker, so that its next crash is charged to nobody else."""
    scans = quarantined_scans(call.target)
    return next(filter(None, (_claim_from(call, scan, 1) for scan in scans)), [])


def _scan(
    call: ClaimCall, cursor: Cursor | None, limit: int, *, retried_first: bool
) -> list[ClaimedRow]:
    """Claim up to *limit* rows, from one place after the other where a cursor says so, and return them in order."""
    rows: list[ClaimedRow] = []
    scan = EVERYTHING
    scans = cursor.scans(call.target, retried_first=retried_first) if cursor else [EVERYTHING]
    for scan in scans:
        rows += _claim_from(call, scan, limit - len(rows))
        if len(rows) == limit:
            break
    if not call.queryset.query.order_by:
        # In an order of the caller's they are read again.
        rows = _in_order(call.target, rows)
    if cursor is not None:
        cursor.advance(rows, scan, full=len(rows) == limit)
    return rows


def _in_order(target: ClaimTarget, rows: list[ClaimedRow]) -> list[ClaimedRow]:
    """Put rows into the model's claim order; RETURNING has none.

    Text is compared by the database alone, which costs one statement.
    """
    if len(rows) < 2:
        return rows
    # The least important column first: sorting leaves rows that are alike in the order that they have.
    if target.table.sorts_as_python:
        rows.sort(key=attrgetter("key"))
    else:
        keys = target.dialect.select_keys(target.table, [row.key for row in rows], ordered=True)
        place = {key: number for number, key in enumerate(keys)}
        rows.sort(key=lambda row: place.get(row.key, len(place)))
    if target.columns.not_before is not None:
        rows.sort(key=attrgetter("not_before"))
    if target.columns.priority is not None:
        rows.sort(key=attrgetter("priority"), reverse=True)
    return rows


# The statements of a claim


def _claim_from(call: ClaimCall, scan: Scan, limit: int) -> list[ClaimedRow]:
    """Claim up to *limit* rows that *scan* finds."""
    target = call.target
    if call.counts_by_key:
        claimed: list[ClaimedRow] = []
        chooser = KeyChooser(target, candidates(call, scan), limit)
        while keys := chooser.choose(limit - len(claimed)):
            rows = _claim_keys(call, scan, keys, len(keys))
            chooser.forget(set(keys).difference(row.key for row in rows))
            claimed += rows
        return claimed
    if call.refused is None:
        return _send(call, _statement(call, scan), limit, scan)
    look = LOOK_AHEAD * limit + MOST_ROWS
    found = target.dialect.first(candidates(call, scan), target.table, look, target.columns.key)
    return _claim_keys(call, scan, list(dict.fromkeys(target.table.keys_of(found))), limit)


def _claim_keys(call: ClaimCall, scan: Scan, keys: Sequence[Key], limit: int) -> list[ClaimedRow]:
    """Claim up to *limit* of the rows with these keys, as far as *scan* finds them still."""
    rows: list[ClaimedRow] = []
    found = candidates(call, scan)

    def claim_part(part: Sequence[Key]) -> list[ClaimedRow]:
        wanted = limit - len(rows)
        chosen = with_keys(found if wanted < len(part) else found.order_by(), call.target, part)
        return _send(call, _prepare(call, scan, chosen, simple=False), wanted, scan)

    for claimed in send_parts(call, keys, claim_part):
        rows += claimed
        if len(rows) == limit:
            break
    return rows


def candidates(call: ClaimCall, scan: Scan) -> Rows:
    """Return the rows that may be claimed and that *scan* finds, in claim order."""
    columns = call.target.columns
    rows = on_claim_table(call.queryset, call.target)
    rows = rows.filter(is_open(columns) & scan.condition(columns), call.switch)
    if scan.name == "quarantined":
        # In no order of the caller's: such a row is claimed alone, and an index finds it in this one.
        return rows.order_by(*columns.order)
    return in_claim_order(rows, call.queryset, call.target)


def _statement(call: ClaimCall, scan: Scan) -> ClaimStatement | None:
    """Return the statement that claims what *scan* finds, kept for calls like this; None where that is nothing."""
    query, target = call.queryset.query, call.target
    simple = not query.where and not query.order_by and target.is_owner
    if not simple or ("key" in scan.values and len(target.columns.key) > 1):
        return _prepare(call, scan, candidates(call, scan), simple=simple)
    shape = call.is_plain, call.is_limited, call.request.notes_start, settings.USE_TZ
    kind = (scan.name, *scan.values, *shape)
    if kind not in target.statements:
        rows = candidates(call, scan.with_places())
        target.statements[kind] = _prepare(call, scan, rows, simple=True)
    return target.statements[kind]


def _prepare(call: ClaimCall, scan: Scan, rows: Rows, *, simple: bool) -> ClaimStatement | None:
    """Return the statement that claims the first of *rows*, which *scan* finds; None where they can be none."""
    target, ours, mark = call.target, EVERYTHING, None
    if scan.name == "quarantined":
        # The mark says, should the claim expire, whether the row had been started.
        mark = QUARANTINED_UNSTARTED if call.request.notes_start else QUARANTINED
        ours = QUARANTINED_SCAN
    claimable = is_open(target.columns) & ours.condition(target.columns)
    rows_of_ours = target.rows.order_by().filter(claimable, call.switch)
    return target.dialect.prepare_claim(
        target.table, rows, rows_of_ours, call.fields, simple=simple, mark=mark
    )


def _send(
    call: ClaimCall, statement: ClaimStatement | None, limit: int, scan: Scan
) -> list[ClaimedRow]:
    """Claim up to *limit* rows by *statement*; outside of a transaction it commits by itself."""
    if statement is None:
        return []
    request = call.request
    values = scan.prepared(call.target.table) if scan.values else scan.values
    spec = ClaimSpec(statement, limit, request.holder, request.lease.total_seconds(), values)
    claim = call.target.dialect.claim
    return autocommit(call.target, claim, spec) if call.autocommits else claim(spec)


def send_parts(
    call: ClaimCall, keys: Sequence[Key], attempt: Callable[[Sequence[Key]], list[R]]
) -> Iterator[list[R]]:
    """Yield what *attempt* returns of *keys*, chunk by chunk; of smaller parts while some rows are refused."""
    for part in call.target.dialect.chunks(keys, call.target.table):
        if call.refused is None:
            yield attempt(part)
        else:
            yield from call.refused.send(
                part, lambda some: in_transaction(call.target, attempt, some)
            )
