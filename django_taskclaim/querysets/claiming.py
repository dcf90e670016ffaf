"""Taking rows: what ``claim_batch`` promises, from the caller's words to the instances in hand."""

import os
import secrets
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Any, TypeVar

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, models

from django_taskclaim import conf
from django_taskclaim.claim import (
    Claim,
    attach_all,
    claims_of,
    clock,
    commits_by_itself,
)
from django_taskclaim.db import ClaimedRow, ClaimSpec, ClaimStatement, SwitchIsOn
from django_taskclaim.fields import (
    QUARANTINED,
    QUARANTINED_UNSTARTED,
    AnyField,
    is_quarantine_mark,
)
from django_taskclaim.limits.grant import Answer, claim_within_limits
from django_taskclaim.limits.key_limits import claim_by_keys, limits_over
from django_taskclaim.limits.model_limits import known, switches_of
from django_taskclaim.policy import known_policy, policies_over
from django_taskclaim.querysets.conditions import is_open
from django_taskclaim.querysets.cursor import (
    EVERYTHING,
    QUARANTINED_SCAN,
    TURN,
    Cursor,
    Scan,
    quarantined_scans,
)
from django_taskclaim.querysets.held_rows import extend_held, rows_of_holder
from django_taskclaim.querysets.instances import build, read_again
from django_taskclaim.querysets.isolated_claims import claim_again, claim_isolated, read_isolated
from django_taskclaim.querysets.isolating import RefusedRows, remembered, without_refused
from django_taskclaim.querysets.losses import judge_ambiguous_commit
from django_taskclaim.querysets.ordering import in_claim_order, in_policy_order
from django_taskclaim.querysets.scope import (
    ClaimTarget,
    Rows,
    is_plain,
    on_claim_table,
    refuse_unclaimable,
)
from django_taskclaim.querysets.transactions import (
    PATIENCE,
    AmbiguousCommit,
    autocommit,
    belongs_to_the_caller,
    in_transaction,
    run_durable,
    wait_for_answer,
)
from django_taskclaim.signals import rows_claimed, send_after_commit
from django_taskclaim.states import WORKER_MARK
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


def new_holder(worker: str | None = None) -> str:
    """Return an id for one batch: ``<process>#<random>``, never used before or again.

    A worker's begins with the name that its process reports under.
    """
    process = process_name(worker) if worker else f"{os.getpid()}@{socket.gethostname()}"[:170]
    return process + WORKER_MARK + secrets.token_hex(8)


def process_name(worker: str) -> str:
    """Return the name of this process of *worker*, unique on its host while it lives: ``<worker>@<host>:<pid>``."""
    pid = f":{os.getpid()}"
    return f"{worker}@{socket.gethostname()}"[: 170 - len(pid)] + pid


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


def checked_name(name: str, argument: str = "claimed_by") -> str:
    """Return a holder named by the caller; the mark of workers tells the reaper who is none of them."""
    if not isinstance(name, str) or not name or len(name) > 200 or "\x00" in name:
        raise ValueError(f"{argument} must be a text of 1 to 200 characters, not {name!r}.")
    if WORKER_MARK in name:
        raise ValueError(
            f"{argument} {name!r} contains {WORKER_MARK!r}, which marks the ids of workers."
        )
    return name


def claim(queryset: Rows, request: Request) -> list[Any]:
    """Claim rows of *queryset* and return them, committed, in claim order.

    A row that nobody can read, or write, keeps nobody from the others. Raises TypeError for a queryset that no row can
    be claimed through.
    """
    call = ClaimCall(queryset, request)
    if queryset.query.is_empty():
        return []
    try:
        rows = call.run()
        if rows or call.is_limited or request.answer is not None:
            # A worker learns of stored limits when it reads the switch.
            return rows
        # A limit that was stored meanwhile keeps such a claim from taking rows.
        switches_of(call.target.model, call.target.alias)
        if (call.target.alias, call.target.model) in known:
            call.is_limited, call.autocommits = True, False
            rows = call.run()
        return rows
    except Exception as error:
        if request.durable and belongs_to_the_caller(call.target.dialect.connection):
            raise
        return claim_again(call, error)


#: How many claims this process has made, by database and table.
claims_made: Counter[tuple[str, type[models.Model]]] = Counter()


class ClaimCall:
    """One call of ``claim_batch``.

    A plain claim of a worker's id is one statement that commits by itself. Any other runs in a transaction: it joins
    tables, is asked for what its holder has already, has limits, or a database claims by several statements.
    """

    def __init__(self, queryset: Rows, request: Request) -> None:
        policies = policies_over(queryset.model)
        refuse_unclaimable(queryset)
        if policies:
            queryset = in_policy_order(queryset)
        if remembered:
            queryset = without_refused(queryset)
        self.queryset, self.request = queryset, request
        self.target = target = ClaimTarget.of(queryset.model, queryset.db)
        #: Whether limits of the model are known, of its handler's or stored ones.
        self.is_limited = (target.alias, target.model) in known or (
            bool(policies) and any(policy.names_limits for policy in policies)
        )
        #: Whether the claim statement's own columns make the instances.
        self.plain = is_plain(queryset, target)
        #: Rows that statements of this call have claimed and committed.
        self.committed: list[ClaimedRow] = []
        #: The keys of what statements have claimed in the transaction that is open.
        self.known: set[Any] = set()
        #: Set once an error may be of single rows, which are then claimed and read apart from the others.
        self.refused: RefusedRows[Any] | None = None
        #: The claimed rows that cannot be read, each with the error.
        self.unreadable: list[tuple[models.Model, Exception]] = []
        dialect, connection = target.dialect, target.dialect.connection
        self.started = clock()
        #: Whether each statement commits by itself. Only for a holder of its own: where the answer is lost, or a row
        #: cannot be read, the rows are found by it.
        self.autocommits = (
            self.plain
            and not self.is_limited
            and WORKER_MARK in request.holder
            and dialect.returns_updated
            and not connection.in_atomic_block
            and commits_by_itself(connection)
            and dialect.autocommits_read_committed
        )

    @property
    def fields(self) -> Sequence[AnyField]:
        """The columns that the claim returns: all that make the instances, or those with a role."""
        columns = self.target.columns
        if self.plain:
            return columns.owner._meta.concrete_fields
        extra = (columns.iteration, columns.attempts, columns.not_before, columns.priority)
        return [*columns.key, *(one for one in extra if one is not None)]

    @property
    def counts_by_key(self) -> bool:
        """Whether a limit of the model lets rows of one key wait for each other."""
        return self.is_limited and bool(limits_over(self.target.model))

    # Sending

    def run(self) -> list[Any]:
        """Claim, commit and return the instances, each with its claim."""
        if self.autocommits:
            rows = self.instances(self.take(self.request.limit))
        else:
            rows = self._run_in_transaction()
        if rows and rows_claimed.receivers:
            send_after_commit(rows_claimed, self.target.model, self.target.alias, rows=rows)
        return rows

    def _run_in_transaction(self) -> list[Any]:
        try:
            run = run_durable if self.request.durable else in_transaction
            return run(self.target, self.claim_in_transaction)
        except AmbiguousCommit as error:
            if WORKER_MARK not in self.request.holder:
                # Another call may have claimed the same rows under the same name.
                raise
            held = judge_ambiguous_commit(error.result, patience=self._patience).still_held
            return _committed(held) if error.result else []

    def claim_in_transaction(self) -> list[Any]:
        """Claim in the transaction that is open, beside what the holder has already, if it asked for that."""
        request, held = self.request, list(self.committed)
        self.known = {row.key for row in held}
        self.unreadable.clear()
        if request.include_held:
            self.target.lock_holder(request.holder)
            held = extend_held(self)
        rows = self.instances(held)
        wanted = request.limit - len(rows)
        if wanted > 0:
            claimed = claim_within_limits(self, wanted) if self.is_limited else self.take(wanted)
            rows += self.instances(claimed)
        return rows

    def send(self, statement: ClaimStatement | None, limit: int, scan: Scan) -> list[ClaimedRow]:
        """Send one claim; outside of a transaction it commits by itself."""
        if statement is None:
            return []
        values = scan.prepared(self.target.table) if scan.values else scan.values
        spec = ClaimSpec(statement, limit, self.request.holder, values)
        if self.autocommits:
            try:
                rows = self.target.dialect.claim(spec)
            except (DatabaseError, InterfaceError) as error:
                rows = self._send_again(spec, error)
            self.committed += rows
            return rows
        # A strategy that finds its rows by their holder returns those of the statements before, too.
        rows = [row for row in self.target.dialect.claim(spec) if row.key not in self.known]
        self.known.update(row.key for row in rows)
        return rows

    # After an error

    @property
    def _patience(self) -> float:
        # A caller that knows soon that nobody knows can still give the rows back in time.
        return min(PATIENCE, self.request.lease.total_seconds() / 4)

    def _send_again(self, spec: ClaimSpec, error: Exception) -> list[ClaimedRow]:
        """Claim again after contention; find out what came of a claim that was not answered."""
        errors = [error]

        def once() -> list[ClaimedRow]:
            if errors:
                raise errors.pop()
            return self.target.dialect.claim(spec)

        try:
            return autocommit(self.target, once)
        except AmbiguousCommit:
            return _committed(wait_for_answer(self.target, self.claimed, self._patience))

    def claimed(self) -> list[ClaimedRow]:
        """Return what this call's own holder has on the table beside what is known to be committed."""
        committed = {row.key for row in self.committed}
        rows = rows_of_holder(self, self.target.rows.order_by(*self.target.columns.order))
        return [row for row in rows if row.key not in committed]

    # Scanning

    def take(self, limit: int) -> list[ClaimedRow]:
        """Claim up to *limit* rows, of which a quarantined one is alone."""
        cursor = self.request.cursor
        if self.queryset.query.order_by or (self.is_limited and self.counts_by_key):
            cursor = None
        place = self.target.alias, self.target.columns.owner
        claims_made[place] += 1
        is_turn = claims_made[place] % TURN == 0 or (cursor is not None and cursor.thorough)
        rows = self._take_quarantined() if is_turn else []
        rows = rows or self._scan(limit, cursor)
        return rows or ([] if is_turn else self._take_quarantined())

    def _take_quarantined(self) -> list[ClaimedRow]:
        """Claim one row that may have killed its worker, so that its next crash is charged to nobody else."""
        rows: list[ClaimedRow] = []
        for scan in quarantined_scans(self.target):
            rows = rows or self.claim_from(scan, 1)
        return rows

    def _scan(self, limit: int, cursor: Cursor | None) -> list[ClaimedRow]:
        """Claim up to *limit* rows, from one place after the other where a cursor says so, and return them in order."""
        rows: list[ClaimedRow] = []
        scan = EVERYTHING
        for scan in [EVERYTHING] if cursor is None else cursor.scans(self.target):
            rows += self.claim_from(scan, limit - len(rows))
            if len(rows) == limit:
                break
        if not self.queryset.query.order_by:
            # In an order of the caller's they are read again.
            rows = self._in_order(rows)
        if cursor is not None:
            cursor.advance(rows, scan, full=len(rows) == limit)
        return rows

    def _in_order(self, rows: list[ClaimedRow]) -> list[ClaimedRow]:
        """Put rows into the model's claim order; RETURNING has none.

        Text is compared by the database alone, which costs one statement.
        """
        target = self.target
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

    def claim_from(self, scan: Scan, limit: int) -> list[ClaimedRow]:
        """Claim up to *limit* rows that *scan* finds."""
        if self.refused is not None:
            return claim_isolated(self, scan, limit)
        if self.is_limited and self.counts_by_key:
            return claim_by_keys(self, scan, limit)
        return self.send(self._statement(scan), limit, scan)

    # The statement

    @property
    def switch(self) -> SwitchIsOn:
        """What stops this claim; where it looks at no limits, a stored limit does, too."""
        return SwitchIsOn(stop_scopes(self.queryset.model), unlimited=not self.is_limited)

    def rows(self, scan: Scan) -> Rows:
        """Return the rows that may be claimed and that *scan* finds, in claim order."""
        columns = self.target.columns
        rows = on_claim_table(self.queryset, self.target)
        rows = rows.filter(is_open(columns) & scan.condition(columns), self.switch)
        if scan.name == "quarantined":
            # In no order of the caller's: such a row is claimed alone, and an index finds it in this one.
            return rows.order_by(*columns.order)
        return in_claim_order(rows, self.queryset, self.target)

    def _statement(self, scan: Scan) -> ClaimStatement | None:
        query, target = self.queryset.query, self.target
        simple = not query.where and not query.order_by and target.is_owner
        if not simple or ("key" in scan.values and len(target.columns.key) > 1):
            return self.prepare(scan, self.rows(scan), simple=simple)
        lease, notes = self.request.lease, self.request.notes_start
        shape = self.plain, self.is_limited, settings.USE_TZ
        kind = (scan.name, *scan.values, *shape, lease, notes)
        if kind not in target.statements:
            if len(target.statements) >= MOST_STATEMENTS:
                target.statements.clear()
            candidates = self.rows(scan.with_places())
            target.statements[kind] = self.prepare(scan, candidates, simple=True)
        return target.statements[kind]

    def prepare(self, scan: Scan, candidates: Rows, *, simple: bool) -> ClaimStatement | None:
        target, mark = self.target, None
        ours = EVERYTHING
        if scan.name == "quarantined":
            # The mark says, should the claim expire, whether the row had been started.
            mark = QUARANTINED_UNSTARTED if self.request.notes_start else QUARANTINED
            ours = QUARANTINED_SCAN
        claimable = target.rows.order_by().filter(
            is_open(target.columns) & ours.condition(target.columns), self.switch
        )
        return target.dialect.prepare_claim(
            target.table,
            candidates,
            claimable,
            self.fields,
            self.request.lease,
            simple=simple,
            mark=mark,
        )

    # The rows in hand

    def instances(self, claimed: Sequence[ClaimedRow]) -> list[Any]:
        """Return the rows claimed as the queryset asks for them, each with its claim."""
        if not claimed:
            return []
        target, request = self.target, self.request
        rows = build(self.queryset, claimed) if self.plain else []
        claims = claims_of(claimed, request.holder, target.alias, request.lease, self.started)
        if len(claimed) == 1:
            claims[0].quarantined = is_quarantine_mark(claimed[0].not_before)
        if not self.plain:
            by_key = {one.pk: one for one in claims}
            rows = self.read(by_key)
            claims = [by_key[target.columns.key_of(row)] for row in rows]
        attach_all(rows, claims)
        return rows

    def read(self, claims: dict[Any, Claim]) -> list[Any]:
        """Read the rows that were claimed as the queryset asks."""
        return self.read_keys([*claims]) if self.refused is None else read_isolated(self, claims)

    def read_keys(self, keys: Sequence[Any]) -> list[Any]:
        """Read the rows with these keys as the queryset asks."""
        return read_again(self.queryset, self.target, [*keys])


def _committed(rows: list[R]) -> list[R]:
    """Return what was found of a claim that was not answered; OperationalError where that is nothing."""
    if not rows:
        raise OperationalError("The claim was not committed.")
    return rows
