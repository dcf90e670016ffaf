"""Taking rows: what ``claim_batch`` promises, from the caller's words to the instances in hand.

A plain claim of a worker's id is one statement that commits by itself. Any other runs in a transaction: it joins
tables, is asked for what its holder has already, has limits, or a database claims by several statements.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any

from django.db import OperationalError, models

from django_taskclaim import conf
from django_taskclaim.claim import Claim, attach_all, claims_of, clock
from django_taskclaim.db import ClaimedRow
from django_taskclaim.fields import is_quarantine_mark
from django_taskclaim.holders import checked_name, new_holder
from django_taskclaim.limits.grant import Grant
from django_taskclaim.limits.key_limits import limits_over
from django_taskclaim.limits.model_limits import known, limits_are_stored
from django_taskclaim.limits.per_key import KeyClaim
from django_taskclaim.policy import known_policy, policies_over
from django_taskclaim.querysets.candidates import (
    ClaimCall,
    Request,
    candidates,
    claim_statement,
    send,
    send_parts,
)
from django_taskclaim.querysets.cursor import EVERYTHING, TURN, Cursor, Scan, quarantined_scans
from django_taskclaim.querysets.failing import release
from django_taskclaim.querysets.holdings import extend_held, rows_of_holder
from django_taskclaim.querysets.instances import bare, build, like, read_again
from django_taskclaim.querysets.isolating import (
    RefusedRows,
    UnreadableRows,
    fail_unreadable,
    isolate_unreadable,
    remembered,
    without_refused,
)
from django_taskclaim.querysets.losses import judge_ambiguous_commit
from django_taskclaim.querysets.ordering import in_policy_order
from django_taskclaim.querysets.scope import ClaimTarget, Rows, is_plain, refuse_unclaimable
from django_taskclaim.querysets.transactions import (
    PATIENCE,
    AmbiguousCommit,
    can_autocommit,
    in_transaction,
    run_durable,
    wait_for_answer,
)
from django_taskclaim.signals import rows_claimed, send_after_commit
from django_taskclaim.states import WORKER_MARK

#: Rows that cannot be read, each with the error.
Unreadable = list[tuple[models.Model, Exception]]

#: How many rows are looked at for each one wanted, while some refuse to be claimed; others may have locked them.
LOOK_AHEAD = 4

#: How many claims this process has made, by database and model.
claims_made: Counter[tuple[str, type[models.Model]]] = Counter()


def checked_request(
    model: type[models.Model],
    limit: int,
    claimed_by: str | None,
    lease: float | timedelta | None,
    include_held: bool,
    durable: bool,
) -> Request:
    """Return the request; ValueError with one sentence where it makes none."""
    if include_held and claimed_by is None:
        raise ValueError(
            "include_held=True returns what claimed_by holds, so claimed_by must be given."
        )
    holder = new_holder() if claimed_by is None else checked_name(claimed_by)
    usual = known_policy(model).lease
    duration = usual if lease is None else conf.positive_duration(lease, "lease")
    conf.BATCH_SIZE.check(limit, "limit")
    return Request(limit, holder, duration, include_held=include_held, durable=durable)


def claim(queryset: Rows, request: Request) -> list[Any]:
    """Claim rows of *queryset* and return them, committed, in claim order.

    A row that nobody can read, or write, keeps nobody from the others. Raises TypeError for a queryset that no row can
    be claimed through.
    """
    vars(queryset)["_for_write"] = True
    call = _call_of(queryset, request)
    if queryset.query.is_empty():
        return []
    try:
        rows, _ = _claim(call)
        # A worker learns of stored limits when it reads the switch.
        may_be_refused = not rows and not call.is_limited and request.answer is None
        if may_be_refused and limits_are_stored(call.target.model, call.target.alias):
            call = replace(call, is_limited=True, autocommits=False)
            rows, _ = _claim(call)
    except Exception as error:
        rows = _claim_without_bad_rows(call, error)
    if rows and rows_claimed.receivers:
        send_after_commit(rows_claimed, call.target.model, call.target.alias, rows=rows)
    return rows


def _call_of(queryset: Rows, request: Request) -> ClaimCall:
    refuse_unclaimable(queryset)
    policies = policies_over(queryset.model)
    if policies:
        queryset = in_policy_order(queryset)
    if remembered:
        queryset = without_refused(queryset)
    target = ClaimTarget.of(queryset.model, queryset.db)
    plain = is_plain(queryset, target)
    limited = (target.alias, target.model) in known
    limited = limited or (bool(policies) and any(one.names_limits for one in policies))
    return ClaimCall(
        queryset,
        request,
        target,
        started=clock(),
        is_plain=plain,
        is_limited=limited,
        counts_by_key=limited and any(one.counts_by_column for one in policies),
        # Only for a holder of its own: where the answer is lost, or a row cannot be read, the rows are found by it.
        autocommits=plain
        and not limited
        and WORKER_MARK in request.holder
        and target.dialect.returns_updated
        and can_autocommit(target),
    )


def _claim(call: ClaimCall) -> tuple[list[models.Model], Unreadable]:
    """Claim, commit and return the instances, each with its claim; see ``_read``."""
    try:
        if call.autocommits:
            return _instances(call, _take(call, call.request.limit)), []
        run = run_durable if call.request.durable else in_transaction
        return run(call.target, partial(_claim_in_transaction, call))
    except AmbiguousCommit as error:
        return _committed(call, error)


def _claim_in_transaction(call: ClaimCall) -> tuple[list[models.Model], Unreadable]:
    """Claim in the transaction that is open, beside what the holder has already, if it asked for that."""
    request = call.request
    rows, unreadable = _read(call, extend_held(call) if request.include_held else [])
    wanted = request.limit - len(rows)
    if wanted > 0:
        new, unreadable_too = _read(call, _take_allowed(call, wanted))
        rows, unreadable = rows + new, unreadable + unreadable_too
    return rows, unreadable


def _take_allowed(call: ClaimCall, wanted: int) -> list[ClaimedRow]:
    """Claim up to *wanted* rows in the transaction that is open, and no more than limits allow."""
    if not call.is_limited:
        return _take(call, wanted)
    grant = Grant(call.target, call.request.answer)
    allowed = grant.begin(wanted, by_key=call.counts_by_key)
    rows = _take(call, allowed) if allowed else []
    grant.charge(len(rows), allowed)
    return rows


# Scanning


def _take(call: ClaimCall, limit: int) -> list[ClaimedRow]:
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
    rows: list[ClaimedRow] = []
    for scan in quarantined_scans(call.target):
        rows = rows or _claim_from(call, scan, 1)
    return rows


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


def _claim_from(call: ClaimCall, scan: Scan, limit: int) -> list[ClaimedRow]:
    """Claim up to *limit* rows that *scan* finds."""
    if call.refused is not None:
        return _claim_unrefused(call, scan, limit)
    if call.counts_by_key:
        return KeyClaim(call, limits_over(call.target.model), scan, limit).run()
    return send(call, claim_statement(call, scan), limit, scan)


# The rows in hand


def _instances(call: ClaimCall, claimed: Sequence[ClaimedRow]) -> list[Any]:
    """Return the rows claimed as the queryset asks for them, each with its claim."""
    if not claimed:
        return []
    claims = _claims(call, claimed)
    if len(claimed) == 1:
        claims[0].quarantined = is_quarantine_mark(claimed[0].not_before)
    if call.is_plain:
        rows = build(call.queryset, claimed)
    else:
        by_key = {one.pk: one for one in claims}
        rows = read_again(call.queryset, call.target, [*by_key])
        claims = [by_key[call.target.columns.key_of(row)] for row in rows]
    attach_all(rows, claims)
    return rows


def _claims(call: ClaimCall, claimed: Sequence[ClaimedRow]) -> list[Claim]:
    request = call.request
    return claims_of(claimed, request.holder, call.target.alias, request.lease, call.started)


# After an error


def _committed(call: ClaimCall, error: AmbiguousCommit) -> tuple[list[models.Model], Unreadable]:
    """Return the rows of a claim whose COMMIT was not answered; OperationalError where it has claimed none.

    Only of a worker's id: another call may have claimed the same rows under the same name.
    """
    rows, unreadable = error.result or (None, [])
    if rows == unreadable == []:
        return [], []
    if WORKER_MARK not in call.request.holder:
        raise error
    # A caller that knows soon that nobody knows can still give the rows back in time.
    patience = min(PATIENCE, call.request.lease.total_seconds() / 4)
    if rows is None:
        held = wait_for_answer(call.target, rows_of_holder, patience, call)
        rows = _instances(call, held)
    else:
        errors = {id(row): reason for row, reason in unreadable}
        claimed = [*rows, *(row for row, _ in unreadable)]
        held = judge_ambiguous_commit(claimed, patience=patience).still_held
        rows = [row for row in held if id(row) not in errors]
        unreadable = [(row, errors[id(row)]) for row in held if id(row) in errors]
    if not held:
        raise OperationalError("The claim was not committed.") from error
    return rows, unreadable


def _claim_without_bad_rows(call: ClaimCall, error: Exception) -> list[models.Model]:
    """Claim again after *error*, without the rows that it is of; raise it where it is not of single rows."""
    refused: RefusedRows[Any] = RefusedRows(call.target)
    is_of_writing = refused.is_of_a_row(error)
    if not is_of_writing and not UnreadableRows(call.queryset).is_of_a_row(error):
        raise error
    # What has committed by itself before it could not be read is what the holder has already.
    include_held = call.request.include_held or call.autocommits
    request = replace(call.request, include_held=include_held)
    again = replace(call, request=request, is_plain=False, autocommits=False, refused=refused)
    try:
        rows, unreadable = _claim(again)
        if is_of_writing:
            refused.end(error, rows or unreadable)
    except BaseException:
        if call.autocommits:
            _give_back(again)
        raise
    fail_unreadable(unreadable)
    return rows


def _give_back(call: ClaimCall) -> None:
    """Release uncounted what has committed by itself, and what nobody gets as the call ends in an error."""
    # If this fails too, the rows return with the end of their lease.
    with suppress(Exception):
        claims = _claims(call, rows_of_holder(call))
        release([bare(call.queryset.model, one) for one in claims])


def _claim_unrefused(call: ClaimCall, scan: Scan, limit: int) -> list[ClaimedRow]:
    """Claim the first rows that *scan* finds by their keys, without those that are refused."""
    target = call.target
    found = target.dialect.first(
        candidates(call, scan), target.table, LOOK_AHEAD * limit, target.columns.key
    )
    claimed: list[ClaimedRow] = []

    def claim_part(part: Sequence[Any]) -> list[ClaimedRow]:
        one = replace(call, queryset=call.queryset.filter(pk__in=part), refused=None)
        return _claim_from(one, scan, limit - len(claimed))

    for rows in send_parts(call, list(dict.fromkeys(target.table.keys_of(found))), claim_part):
        claimed += rows
        if len(claimed) >= limit:
            break
    return claimed


def _read(call: ClaimCall, claimed: Sequence[ClaimedRow]) -> tuple[list[models.Model], Unreadable]:
    """Return the instances of *claimed*; after an error without those of rows that cannot be read, which come apart."""
    if call.refused is None:
        return _instances(call, claimed), []
    read = partial(read_again, call.queryset, call.target)
    keys = [row.key for row in claimed]
    errors = dict(isolate_unreadable(keys, read, like(call.queryset, call.target)))
    rows = _instances(call, [row for row in claimed if row.key not in errors])
    claims = _claims(call, [row for row in claimed if row.key in errors])
    return rows, [(bare(call.queryset.model, one), errors[one.pk]) for one in claims]
