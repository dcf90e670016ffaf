"""Taking rows: what ``claim_batch`` promises, from the caller's words to the instances in hand.

A plain claim of a worker's id is one statement that commits by itself. Any other runs in a transaction: it joins
tables, is asked for what its holder has already, has limits, or a database claims by several statements.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from django.db import OperationalError, models

from django_taskclaim import conf
from django_taskclaim.claim import Claim, attach, clock
from django_taskclaim.db import ClaimedRow
from django_taskclaim.db.sql import WAIT, Change, Key, rows_by_role
from django_taskclaim.fields import is_quarantine_mark
from django_taskclaim.holders import checked_name, new_holder
from django_taskclaim.limits.model_limits import Grant, known, limits_are_stored
from django_taskclaim.policy import known_policy, policies_over
from django_taskclaim.querysets.candidates import ClaimCall, Request, send_parts, take
from django_taskclaim.querysets.failing import release
from django_taskclaim.querysets.instances import bare, build, like, read_again
from django_taskclaim.querysets.isolating import (
    Bad,
    RefusedRows,
    fail_unreadable,
    is_unreadable,
    isolate_unreadable,
    remembered,
    without_refused,
)
from django_taskclaim.querysets.scope import (
    ClaimTarget,
    Rows,
    in_claim_order,
    in_policy_order,
    is_plain,
    is_running,
    on_claim_table,
    refuse_unclaimable,
)
from django_taskclaim.querysets.transactions import (
    PATIENCE,
    AmbiguousCommit,
    can_autocommit,
    in_transaction,
    run_durable,
    wait_for_answer,
)
from django_taskclaim.querysets.writes import judge_ambiguous_commit
from django_taskclaim.signals import rows_claimed, send_after_commit
from django_taskclaim.states import WORKER_MARK, Token


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
    duration = usual if lease is None else conf.DURATION.check(lease, "lease")
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
        rows = _claim(call)
        # A worker learns of stored limits when it reads the switch.
        may_be_refused = not rows and not call.is_limited and request.answer is None
        if may_be_refused and limits_are_stored(call.target.model, call.target.alias):
            call = replace(call, is_limited=True, autocommits=False)
            rows = _claim(call)
    except Exception as error:
        rows = _claim_without_bad_rows(call, error)
    if rows and rows_claimed.receivers:
        send_after_commit(rows_claimed, call.target.model, call.target.alias, rows=rows)
    return rows


def _call_of(queryset: Rows, request: Request) -> ClaimCall:
    refuse_unclaimable(queryset)
    policies = policies_over(queryset.model).values()
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


def _claim(call: ClaimCall) -> list[Any]:
    """Claim, commit and return the instances, each with its claim."""
    try:
        if call.autocommits:
            return _instances(call, take(call, call.request.limit))
        run = run_durable if call.request.durable else in_transaction
        return run(call.target, partial(_claim_in_transaction, call))
    except AmbiguousCommit as error:
        return _committed(call, error)


def _claim_in_transaction(call: ClaimCall) -> list[Any]:
    """Claim in the transaction that is open, beside what the holder has already, if it asked for that."""
    request = call.request
    call.unreadable.clear()
    rows = _read(call, extend_held(call)) if request.include_held else []
    wanted = request.limit - len(rows)
    if wanted <= 0:
        return rows
    if not call.is_limited:
        return rows + _read(call, take(call, wanted))
    grant = Grant(call.target, request.answer)
    allowed = grant.begin(wanted, by_key=call.counts_by_key)
    claimed = take(call, allowed) if allowed else []
    grant.charge(len(claimed), allowed)
    return rows + _read(call, claimed)


# The rows in hand


def _instances(call: ClaimCall, claimed: Sequence[ClaimedRow]) -> list[Any]:
    """Return the rows claimed as the queryset asks for them, each with its claim."""
    if not claimed:
        return []
    claims = _claims(call, claimed)
    if len(claimed) == 1:
        claims[0].quarantined = is_quarantine_mark(claimed[0].not_before)
    if call.is_plain:
        return build(call.queryset, claimed, claims)
    by_key = {one.pk: one for one in claims}
    rows = read_again(call.queryset, call.target, [*by_key])
    for row in rows:
        attach(row, by_key[call.target.columns.key_of(row)])
    return rows


def _claims(call: ClaimCall, claimed: Sequence[ClaimedRow]) -> list[Claim]:
    """Return what the instances of rows just claimed are to carry."""
    request, alias = call.request, call.target.alias
    tokens = {
        number: Token(request.holder, number) for number in {row.iteration for row in claimed}
    }
    deadline = call.started + request.lease.total_seconds()
    claims = []
    for row in claimed:
        token = tokens[row.iteration]
        claim = Claim(token, alias, row.key, lease=request.lease, attempts=row.attempts)
        claim.local_deadline = deadline
        claims.append(claim)
    return claims


# After an error


def _committed(call: ClaimCall, error: AmbiguousCommit) -> list[Any]:
    """Return the rows of a claim whose COMMIT was not answered; OperationalError where it has claimed none.

    Only of a worker's id: another call may have claimed the same rows under the same name.
    """
    rows: list[Any] | None = error.result
    claimed = [*(rows or ()), *(bad.row for bad in call.unreadable)]
    if rows is not None and not claimed:
        return []
    if WORKER_MARK not in call.request.holder:
        raise error
    # A caller that knows soon that nobody knows can still give the rows back in time.
    patience = min(PATIENCE, call.request.lease.total_seconds() / 4)
    if rows is None:
        claimed = rows = _instances(
            call, wait_for_answer(call.target, rows_of_holder, patience, call)
        )
    else:
        claimed = judge_ambiguous_commit(claimed, patience=patience).still_held
    if not claimed:
        raise OperationalError("The claim was not committed.") from error
    held = set(map(id, claimed))
    return [row for row in rows if id(row) in held]


def _claim_without_bad_rows(call: ClaimCall, error: Exception) -> list[Any]:
    """Claim again after *error*, without the rows that it is of; raise it where it is not of single rows."""
    refused = RefusedRows[Any](call.target)
    is_of_writing = refused.is_of_a_row(error)
    if not is_of_writing and not is_unreadable(call.queryset, error):
        raise error
    # What has committed by itself before it could not be read is what the holder has already.
    include_held = call.request.include_held or call.autocommits
    request = replace(call.request, include_held=include_held)
    again = replace(call, request=request, is_plain=False, autocommits=False, refused=refused)
    try:
        rows = _claim(again)
        if is_of_writing:
            refused.end(error, rows or again.unreadable)
    except BaseException:
        if call.autocommits:
            # Nobody gets what the first try has claimed. If this fails too, it returns with the end of its lease.
            with suppress(Exception):
                held = _claims(again, rows_of_holder(again))
                release([bare(call.queryset.model, one) for one in held])
        raise
    fail_unreadable(again.unreadable)
    return rows


def _read(call: ClaimCall, claimed: Sequence[ClaimedRow]) -> list[Any]:
    """Return the instances of *claimed*; after an error those that cannot be read are put aside."""
    if call.refused is None:
        return _instances(call, claimed)
    read = partial(read_again, call.queryset, call.target)
    keys = [row.key for row in claimed]
    errors = dict(isolate_unreadable(keys, read, like(call.queryset, call.target)))
    for one in _claims(call, [row for row in claimed if row.key in errors]):
        call.unreadable.append(Bad(bare(call.queryset.model, one), errors[one.pk]))
    return _instances(call, [row for row in claimed if row.key not in errors])


# What the holder has already


def rows_of_holder(call: ClaimCall) -> list[ClaimedRow]:
    """Return the first rows that the holder of *call* has, as many as it asks for at most."""
    target, fields = call.target, call.fields
    columns = target.columns
    # What an id of its own has is this call's, also where a condition like ``open()`` is true of it no more.
    is_own = WORKER_MARK in call.request.holder
    rows = target.rows if is_own else on_claim_table(call.queryset, target)
    rows = in_claim_order(rows, call.queryset, target)
    held = rows.filter(is_running(columns), **{columns.claimed_by.name: call.request.holder})
    found = target.dialect.first(held, target.table, call.request.limit, fields)
    return rows_by_role(fields, target.table, found)


def extend_held(call: ClaimCall) -> list[ClaimedRow]:
    """Return what the holder has of the queryset, each lease extended and none shortened.

    Rows are found without locks and waited for: a row passed over because it is locked would be handed out twice.
    """
    call.target.lock_holder(call.request.holder)
    held = rows_of_holder(call)
    extended: set[Key] = set()
    by_token = sorted(held, key=attrgetter("iteration", "key"))
    for iteration, same in groupby(by_token, attrgetter("iteration")):
        extend = partial(_extend, call, Token(call.request.holder, iteration))
        for part in send_parts(call, [row.key for row in same], extend):
            extended.update(part)
    return [row for row in held if row.key in extended]


def _extend(call: ClaimCall, token: Token, keys: Sequence[Key]) -> list[Key]:
    """Wait for the rows that *token* holds, extend their leases, and return their keys."""
    dialect, table = call.target.dialect, call.target.table
    held = dialect.select_keys(table, keys, table.standing(token), WAIT)
    if held:
        extension = Change([dialect.extension(table, call.request.lease)])
        dialect.write(table, held, extension, table.standing(token))
    return held
