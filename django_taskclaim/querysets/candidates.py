"""What one claim asks the database for: the rows that it may take, and the statement that takes them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from django.conf import settings

from django_taskclaim.db import ClaimedRow, ClaimSpec, ClaimStatement, SwitchIsOn
from django_taskclaim.db.sql import Key
from django_taskclaim.fields import QUARANTINED, QUARANTINED_UNSTARTED, AnyField
from django_taskclaim.limits.grant import Answer
from django_taskclaim.querysets.conditions import is_open
from django_taskclaim.querysets.cursor import EVERYTHING, QUARANTINED_SCAN, Cursor, Scan
from django_taskclaim.querysets.isolating import RefusedRows
from django_taskclaim.querysets.ordering import in_claim_order
from django_taskclaim.querysets.scope import ClaimTarget, Rows, on_claim_table
from django_taskclaim.querysets.transactions import autocommit, in_transaction
from django_taskclaim.tables import stop_scopes

R = TypeVar("R")

#: How many statements of plain claims are kept, for each model and connection.
MOST_STATEMENTS = 200


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
    refused: RefusedRows[Any] | None = None

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


def candidates(call: ClaimCall, scan: Scan) -> Rows:
    """Return the rows that may be claimed and that *scan* finds, in claim order."""
    columns = call.target.columns
    rows = on_claim_table(call.queryset, call.target)
    rows = rows.filter(is_open(columns) & scan.condition(columns), call.switch)
    if scan.name == "quarantined":
        # In no order of the caller's: such a row is claimed alone, and an index finds it in this one.
        return rows.order_by(*columns.order)
    return in_claim_order(rows, call.queryset, call.target)


def claim_statement(call: ClaimCall, scan: Scan) -> ClaimStatement | None:
    """Return the statement that claims what *scan* finds, kept for calls like this; None where that is nothing."""
    query, target = call.queryset.query, call.target
    simple = not query.where and not query.order_by and target.is_owner
    if not simple or ("key" in scan.values and len(target.columns.key) > 1):
        return prepare(call, scan, candidates(call, scan), simple=simple)
    shape = call.is_plain, call.is_limited, settings.USE_TZ, call.request.lease
    kind = (scan.name, *scan.values, *shape, call.request.notes_start)
    if kind not in target.statements:
        if len(target.statements) >= MOST_STATEMENTS:
            target.statements.clear()
        rows = candidates(call, scan.with_places())
        target.statements[kind] = prepare(call, scan, rows, simple=True)
    return target.statements[kind]


def prepare(call: ClaimCall, scan: Scan, rows: Rows, *, simple: bool) -> ClaimStatement | None:
    """Return the statement that claims the first of *rows*, which *scan* finds; None where they can be none."""
    target, ours, mark = call.target, EVERYTHING, None
    if scan.name == "quarantined":
        # The mark says, should the claim expire, whether the row had been started.
        ours, mark = (
            QUARANTINED_SCAN,
            QUARANTINED_UNSTARTED if call.request.notes_start else QUARANTINED,
        )
    claimable = is_open(target.columns) & ours.condition(target.columns)
    return target.dialect.prepare_claim(
        target.table,
        rows,
        target.rows.order_by().filter(claimable, call.switch),
        call.fields,
        call.request.lease,
        simple=simple,
        mark=mark,
    )


def send(
    call: ClaimCall, statement: ClaimStatement | None, limit: int, scan: Scan
) -> list[ClaimedRow]:
    """Claim up to *limit* rows by *statement*; outside of a transaction it commits by itself."""
    if statement is None:
        return []
    values = scan.prepared(call.target.table) if scan.values else scan.values
    spec = ClaimSpec(statement, limit, call.request.holder, values)
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
