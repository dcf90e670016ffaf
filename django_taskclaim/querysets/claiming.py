"""Taking rows: from the arguments of ``claim_batch`` to instances that carry their claims.

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

from django.conf import settings
from django.db import OperationalError, models

from django_taskclaim import conf
from django_taskclaim.claim import (
    Claim,
    attach,
    carried_claims,
    checked_name,
    clock,
    new_holder,
)
from django_taskclaim.db import ClaimedRow, ClaimSpec, ClaimStatement
from django_taskclaim.db.sql import Key
from django_taskclaim.fields import QUARANTINED, QUARANTINED_UNSTARTED, is_quarantine_mark
from django_taskclaim.limits import Grant, known, limits_are_stored
from django_taskclaim.limits.key_limits import KeyChooser
from django_taskclaim.policy import policies_over, policy_for
from django_taskclaim.querysets.cursor import (
    EVERYTHING,
    QUARANTINED_SCAN,
    TURN,
    ClaimCall,
    Cursor,
    Request,
    Scan,
    quarantined_scans,
)
from django_taskclaim.querysets.failing import fail_unreadable, release
from django_taskclaim.querysets.instances import (
    bare,
    build,
    like,
    read_again,
    rows_of_holder,
)
from django_taskclaim.querysets.isolating import (
    MOST_ROWS,
    Bad,
    RefusedRows,
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
    is_open,
    is_plain,
    on_claim_table,
    refuse_unclaimable,
)
from django_taskclaim.querysets.transactions import (
    AWAY,
    AmbiguousCommit,
    autocommit,
    can_autocommit,
    in_transaction,
    judge_ambiguous_commit,
    run_durable,
)
from django_taskclaim.querysets.writes import Given, lock_claims, renew
from django_taskclaim.signals import rows_claimed, send_after_commit
from django_taskclaim.states import WORKER_MARK, Token

#: A claim that leaves refused rows out reads so many rows for each one wanted: other claims may have locked some.
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
    started = clock()
    usual = policy_for(model).lease
    duration = usual if lease is None else conf.DURATION.check(lease, "lease")
    conf.BATCH_SIZE.check(limit, "limit")
    return Request(limit, holder, duration, started, include_held=include_held, durable=durable)


def claim(queryset: Rows, request: Request) -> list[models.Model]:
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
    policies = policies_over(queryset.model).values()
    refuse_unclaimable(queryset)
    if policies:
        queryset = in_policy_order(queryset)
    if remembered:
        queryset = without_refused(queryset)
    target = ClaimTarget.of(queryset.model, queryset.db)
    # What is held already is read again once its lease has been extended.
    plain = not request.include_held and is_plain(queryset, target)
    limited = (target.alias, target.model) in known
    limited = limited or (bool(policies) and any(one.names_limits for one in policies))
    return ClaimCall(
        queryset,
        request,
        target,
        is_plain=plain,
        is_limited=limited,
        counts_by_key=limited and any(one.counts_by_column for one in policies),
        # The holder must be unique: if the answer is lost, or a row cannot be read, the rows are found by the holder.
        autocommits=plain
        and not limited
        and WORKER_MARK in request.holder
        and target.dialect.returns_updated
        and can_autocommit(target),
    )


def _claim(call: ClaimCall) -> list[models.Model]:
    """Claim, commit and return the instances, each with its claim."""
    try:
        if call.autocommits:
            return _instances(call, take(call, call.request.limit))
        run = run_durable if call.request.durable else in_transaction
        return run(call.target, partial(_claim_in_transaction, call))
    except AmbiguousCommit as error:
        return _committed(call, error)


def _claim_in_transaction(call: ClaimCall) -> list[models.Model]:
    """Claim in the transaction that is open, beside what the holder has already, if it asked for that."""
    request = call.request
    call.unreadable.clear()
    rows = _read(call, _extend_held(call)) if request.include_held else []
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


def _extend_held(call: ClaimCall) -> list[ClaimedRow]:
    """Return what the holder has of the queryset, each lease extended and none shortened.

    Rows are found without locks and waited for: a row passed over because it is locked would be handed out twice.
    """
    call.target.lock_holder(call.request.holder)
    held = rows_of_holder(call)
    rows = [bare(call.queryset.model, one) for one in _claims(call, held)]
    lost = set(map(id, lock_claims(rows)))
    standing = Given([row for row in rows if id(row) not in lost])
    extended = carried_claims(renew(standing, call.request.lease).renewed)
    keys = {one.pk for one in extended}
    return [row for row in held if row.key in keys]


# The rows in hand


def _instances(call: ClaimCall, claimed: Sequence[ClaimedRow]) -> list[models.Model]:
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
    deadline = request.started + request.lease.total_seconds()
    claims = []
    for row in claimed:
        token = tokens[row.iteration]
        claim = Claim(token, alias, row.key, lease=request.lease, attempts=row.attempts)
        claim.local_deadline = deadline
        claims.append(claim)
    return claims


# After an error


def _committed(call: ClaimCall, error: AmbiguousCommit) -> list[models.Model]:
    """Return the rows of a claim whose COMMIT was not answered; OperationalError where it has claimed none.

    Only of a worker's id: another call may have claimed the same rows under the same name.
    """
    rows: list[models.Model] | None = error.result
    claimed = [*(rows or ()), *(bad.row for bad in call.unreadable)]
    if rows is not None and not claimed:
        return []
    if WORKER_MARK not in call.request.holder:
        raise error
    if rows is None:
        claimed = rows = _instances(call, in_transaction(call.target, rows_of_holder, call))
    else:
        claimed = judge_ambiguous_commit(claimed).still_held
    if not claimed:
        raise OperationalError("The claim was not committed.") from error
    held = set(map(id, claimed))
    return [row for row in rows if id(row) in held]


def _claim_without_bad_rows(call: ClaimCall, error: Exception) -> list[models.Model]:
    """Claim again after *error*, without the rows that it is of; raise it where it is not of single rows."""
    refused = RefusedRows(call.target)
    # The first try may have committed: then its rows are what the holder has already.
    include_held = call.request.include_held or call.autocommits
    request = replace(call.request, include_held=include_held)
    again = replace(call, request=request, is_plain=False, autocommits=False, refused=refused)
    try:
        is_of_writing = refused.is_of_a_row(error)
        if not is_of_writing and not is_unreadable(call.queryset, error):
            raise error
        rows = _claim(again)
        has_claimed = rows or again.unreadable
        if is_of_writing and not has_claimed and (refused.is_full or not refused.found):
            raise error
    except BaseException:
        if call.autocommits and not isinstance(error, AWAY):
            # The rows of the first try go back. If that fails too, they return when their leases end.
            with suppress(Exception):
                held = _claims(again, rows_of_holder(again))
                release([bare(call.queryset.model, one) for one in held])
        raise
    fail_unreadable(again.unreadable)
    return rows


def _read(call: ClaimCall, claimed: Sequence[ClaimedRow]) -> list[models.Model]:
    """Return the instances of *claimed*; after an error, rows that cannot be read are put aside."""
    if call.refused is None:
        return _instances(call, claimed)
    read = partial(read_again, call.queryset, call.target)
    keys = [row.key for row in claimed]
    errors = dict(isolate_unreadable(keys, read, like(call.queryset, call.target)))
    for one in _claims(call, [row for row in claimed if row.key in errors]):
        call.unreadable.append(Bad(bare(call.queryset.model, one), errors[one.pk]))
    return _instances(call, [row for row in claimed if row.key not in errors])


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
        # Rows in the caller's own order are read again, in that order.
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
    # Python's sort is stable, so the least important column comes first.
    if target.table.sorts_as_python:
        rows.sort(key=attrgetter("key"))
    else:
        keys = target.dialect.select_keys(target.table, [row.key for row in rows])
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
    if call.counts_by_key:
        return _claim_below_key_limits(call, scan, limit)
    if call.refused is not None:
        return _claim_beside_refused(call, scan, limit)
    return _send(call, _statement(call, scan), limit, scan)


def _claim_below_key_limits(call: ClaimCall, scan: Scan, limit: int) -> list[ClaimedRow]:
    """Claim rows whose keys have fewer rows running than they may; for ``limit_per`` and ``serial_by``."""
    claimed: list[ClaimedRow] = []
    chooser = KeyChooser(call.target, candidates(call, scan), limit)
    while keys := chooser.choose(limit - len(claimed)):
        rows = _claim_keys(call, scan, keys, len(keys))
        chooser.forget(set(keys).difference(row.key for row in rows))
        claimed += rows
    return claimed


def _claim_beside_refused(call: ClaimCall, scan: Scan, limit: int) -> list[ClaimedRow]:
    """Claim rows beside some that the database lets nobody write, which are found on the way."""
    target, look = call.target, LOOK_AHEAD * limit + MOST_ROWS
    found = target.dialect.first(candidates(call, scan), target.table, look, target.columns.key)
    return _claim_keys(call, scan, list(dict.fromkeys(target.table.keys_of(found))), limit)


def _claim_keys(call: ClaimCall, scan: Scan, keys: Sequence[Key], limit: int) -> list[ClaimedRow]:
    """Claim up to *limit* of the rows with these keys, as far as *scan* finds them still."""
    rows: list[ClaimedRow] = []
    found = candidates(call, scan)

    def claim_part(part: Sequence[Key]) -> list[ClaimedRow]:
        wanted = limit - len(rows)
        chosen = (found if wanted < len(part) else found.order_by()).filter(pk__in=part)
        return _send(call, _prepare(call, scan, chosen, simple=False), wanted, scan)

    def claim_alone(part: Sequence[Key]) -> list[ClaimedRow]:
        return in_transaction(call.target, claim_part, part)

    for part in call.target.dialect.chunks(keys, call.target.table):
        refused = call.refused
        sent = [claim_part(part)] if refused is None else refused.send(part, claim_alone)
        for claimed in sent:
            rows += claimed
            if len(rows) == limit:
                return rows
    return rows


def candidates(call: ClaimCall, scan: Scan) -> Rows:
    """Return the rows that may be claimed and that *scan* finds, in claim order."""
    columns = call.target.columns
    rows = on_claim_table(call.queryset, call.target)
    rows = rows.filter(is_open(columns) & scan.condition(columns), call.switch)
    if scan.name == "quarantined":
        # The caller's order does not matter: such a row is claimed alone, and the index finds it in this order.
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
        # If the claim expires, the mark says whether the row had been started.
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
