"""Taking rows: what ``claim_batch`` promises, from the caller's words to the instances in hand."""

import os
import random
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, cached_property, partial
from typing import Any

from django.db import DatabaseError, OperationalError, models
from django.db.models.query import ModelIterable

from django_taskclaim import conf
from django_taskclaim.dialects import ClaimOrder, DatabaseNow, SwitchIsOn
from django_taskclaim.dialects.statements import SQL, sql, value
from django_taskclaim.fields import CRASHED, CRASHED_UNBEGUN, NEVER_WAITED, AnyField, as_utc
from django_taskclaim.policy import policy_for, refuse_faulty
from django_taskclaim.querysets.counting import KeyLimit
from django_taskclaim.querysets.fleet import (
    Answer,
    claim_scopes,
    keeps_to_marks,
    learns_of_limits,
    take_as_limited,
)
from django_taskclaim.querysets.instances import bare, build, like, read_again
from django_taskclaim.querysets.limits import limits_over, take_within
from django_taskclaim.querysets.lost_commits import PATIENCE, judge_after_lost_commit
from django_taskclaim.querysets.lower_bound import Looks, LowerBound, Row
from django_taskclaim.querysets.refusals import Search, may_be_refused, without_refused
from django_taskclaim.querysets.scope import (
    Desk,
    Rows,
    in_claim_order,
    in_policy_order,
    on_claim_table,
    refuse_unclaimable,
    sort_claimed,
    without_conditions,
)
from django_taskclaim.querysets.transactions import (
    alone,
    belongs_to_the_caller,
    durably,
    may_stand_alone,
)
from django_taskclaim.querysets.unreadable import fail_unreadable, may_be_of_a_row, read_apart
from django_taskclaim.states import WORKER_MARK, Status, Token
from django_taskclaim.tokens import Claim, attach_all, clock

#: How often a row that may have killed its worker goes before the others it was claimed with.
CRASHED_FIRST = 0.1

#: How many rows are looked at for each one wanted, while some refuse to be claimed; others may have locked them.
LOOK_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Request:
    """One call of ``claim_batch``, checked."""

    limit: int
    holder: str
    lease: timedelta
    include_held: bool
    durable: bool
    #: Whether the holder tells the database when it begins a row that may kill it; see ``ClaimQuerySet._begin``.
    tells_beginning: bool = False
    #: Where the holder's claims before this one have come to.
    bound: LowerBound | None = None
    #: Told why limits of the whole fleet let the claim take no more than it did.
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
    if (
        isinstance(limit, bool)
        or not isinstance(limit, int)
        or not 1 <= limit <= conf.MAX_BATCH_SIZE
    ):
        raise ValueError(
            f"claim_batch() takes from 1 to {conf.MAX_BATCH_SIZE} rows, not {limit!r}."
        )
    if claimed_by is None:
        if include_held:
            raise ValueError(
                "include_held=True returns what claimed_by holds, so claimed_by must be given."
            )
        holder = new_holder()
    else:
        holder = checked_name(claimed_by)
    refuse_faulty(model)
    duration = policy_for(model).lease if lease is None else conf.positive_duration(lease, "lease")
    return Request(limit, holder, duration, include_held, durable)


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
    """Claim rows of *queryset* and return them, committed, in claim order."""
    refuse_unclaimable(queryset)
    desk = Desk.of(queryset.model, queryset.db)
    if queryset.query.is_empty():
        return []
    one = _Call(in_policy_order(without_refused(queryset)), desk, request)
    rows = _claim(one)
    # A worker hears of it when it reads the switch.
    if not rows and request.answer is None and learns_of_limits(desk):
        rows = _claim(replace(one))
    return rows


def _claim(one: "_Call") -> list[Any]:
    try:
        return _claim_at_once(one)
    except Exception as error:
        if not _may_be_of_rows(error, one):
            raise
    # Again, with our columns first, so that rows which cannot be read keep nobody from the others.
    unreadable: dict[Any, tuple[models.Model, Exception]] = {}
    again = replace(one, unreadable=unreadable, order_begun=None)
    try:
        rows = _claim_at_once(again)
    except DatabaseError as error:
        # Again, without the rows that refuse to be claimed.
        rows = _claim_at_once(replace(again, search=Search(one.desk, error)))
    fail_unreadable(unreadable.values())
    return rows


def _may_be_of_rows(error: Exception, one: "_Call") -> bool:
    """Say whether *error* may come from some rows of the claim: they cannot be read, or refuse to be written."""
    if one.request.durable and belongs_to_the_caller(one.desk.dialect.connection):
        return False
    return may_be_of_a_row(error, one.desk.alias) or may_be_refused(error, one.desk)


def _claim_at_once(one: "_Call") -> list[Any]:
    started, request = clock(), one.request
    begun = one.begin()
    if len(begun) == request.limit:
        return _carrying(one.instances(begun), request, started)
    # A name that a caller gave may have claimed the same rows by another call, so such rows tell nothing.
    look_again = partial(_claimed_after_all, request) if WORKER_MARK in request.holder else None
    return durably(
        one.desk,
        lambda: _carrying(one.finish(begun), request, started),
        look_again,
        durable=request.durable,
    )


def _claimed_after_all(request: Request, rows: list[Any]) -> list[Any]:
    """Return the rows of a claim whose COMMIT was not answered; OperationalError where it claimed none of them."""
    # Whoever is told soon that nobody knows can still give the rows back in time.
    patience = min(PATIENCE, request.lease.total_seconds() / 4)
    still = judge_after_lost_commit(rows, patience=patience).still_held
    if rows and not still:
        raise OperationalError("The claim was not committed.")
    return still


def _carrying(taken: "Taken", request: Request, started: float) -> list[Any]:
    rows, claims = taken
    ends = started + request.lease.total_seconds()
    for claimed in claims:
        claimed.local_deadline = ends
    attach_all(rows, claims)
    return rows


#: Rows, and what each is to remember of its claim.
Taken = tuple[list[Any], list[Claim]]


@dataclass
class _Call:
    """One claim, from the checked request to the rows fresh from the table."""

    queryset: Rows
    desk: Desk
    request: Request
    #: What was asked for by what has begun, if it has.
    order_begun: ClaimOrder | None = None
    #: The rows claimed that cannot be read, by key, each with the error; None where that is not looked for.
    unreadable: "dict[Any, tuple[models.Model, Exception]] | None" = None
    #: Claims part by part, because the database refuses to have some rows written; None where it does not.
    search: Search | None = None

    @cached_property
    def limits(self) -> Sequence[KeyLimit]:
        return limits_over(self.queryset.model)

    @cached_property
    def fields(self) -> list[AnyField]:
        """The columns that the claim must give back."""
        fields = _all_columns(self.desk.columns.owner) if self.is_plain else _facts(self.desk)
        if not self.limits:
            return fields
        return list(dict.fromkeys([*fields, *(one.field for one in self.limits)]))

    @cached_property
    def is_plain(self) -> bool:
        """Whether the columns that the claim gives back make the instances."""
        return self.unreadable is None and _is_plain(self.queryset, self.desk)

    @cached_property
    def bound(self) -> LowerBound | None:
        """Where the claims before have come to, if that is any help for one in this order."""
        in_own_order = bool(self.queryset.query.order_by)
        return None if self.limits or in_own_order else self.request.bound

    @cached_property
    def looks(self) -> Looks:
        return Looks() if self.bound is None else self.bound.next_looks(self.desk)

    def begin(self) -> list[Row]:
        """Claim by one statement that commits by itself, where one may be enough; none of its rows has ever waited.

        What it takes is the holder's from then on: a worker that gets an error, now or from the rest of the claim, has
        them given back by that name.
        """
        desk, order = self.desk, self._order(self.request.limit)
        if (
            self.bound is None
            or not keeps_to_marks(order, desk)
            or not self.looks.beyond
            or not desk.dialect.claims_in_one_statement
            or not self.is_plain
            or not may_stand_alone(desk)
        ):
            return []
        bound, looks = self.bound, self.looks
        if (looks.urgent or looks.waited) and alone(
            desk, lambda: bound.anything_beside(looks, order, desk)
        ):
            return []
        self.looks, self.order_begun = Looks(), order
        return alone(desk, lambda: bound.claim_beyond(order, desk))

    def finish(self, begun: list[Row]) -> Taken:
        """Claim, in the transaction that is open, what is still wanted beside the rows *begun*."""
        held: Taken = ([], [])
        request, desk = self.request, self.desk
        if self.unreadable is not None:
            self.unreadable.clear()
        if request.include_held:
            desk.queue(request.holder)
            held = self._extend_held(self.queryset)
        elif self.unreadable is not None and self.bound is not None:
            # The first try may have committed rows, and a claimed row need not match the conditions any more.
            held = self._extend_held(without_conditions(self.queryset))
        rows, claims = held
        wanted = request.limit - len(rows)
        if self.search is not None:
            raw = self._take_apart(wanted, self.search)
            self.search.end(rows or raw)
        elif wanted <= 0:
            return held
        else:
            raw = self._take(wanted, begun)
        more, their_claims = self.instances(raw)
        return [*rows, *more], [*claims, *their_claims]

    def _take_apart(self, limit: int, search: Search) -> list[Row]:
        """Claim the first rows by their keys, each part as a claim of its own, without those that are refused."""
        if limit <= 0:
            return []
        desk, most = self.desk, LOOK_AHEAD * limit
        order = self._order(most)
        found = desk.dialect.first(order.candidates, desk.table, most, desk.columns.key)
        keys = list(dict.fromkeys(map(desk.table.key_of, found)))
        raw: dict[Any, Row] = {}

        def take(part: Sequence[Any]) -> list[Row]:
            alike = replace(self.request, bound=None)
            call = replace(self, queryset=self.queryset.filter(pk__in=part), request=alike)
            return call._take(limit - len(raw), [], all_parts=False)

        parts = (keys[start : start + limit] for start in range(0, len(keys), limit))
        for rows in search.send(parts, take):
            # By key: some strategies return all that the holder has.
            raw |= {desk.table.key_of(row): row for row in rows}
            if len(raw) >= limit:
                break
        return _keep_apart_what_crashed(list(raw.values()), desk, self.request, self.fields)

    def _take(self, limit: int, begun: list[Row], *, all_parts: bool = True) -> list[Row]:
        desk, bound = self.desk, self.bound

        def take(order: ClaimOrder) -> list[Row]:
            if bound is not None:
                raw = bound.claim(order, desk, self.looks, begun)
            else:
                raw = self._claim_within_limits(order)
            if not all_parts:
                return raw
            kept = _keep_apart_what_crashed(raw, desk, self.request, self.fields)
            if bound is not None and len(kept) < len(raw):
                bound.look_in_full()
            # A rate is charged for these alone.
            return kept

        if begun and self.order_begun is not None:
            return take(self.order_begun)
        return take_as_limited(self._order(limit), desk, take, self.request.answer)

    def _claim_within_limits(self, order: ClaimOrder) -> list[Row]:
        queryset, desk = self.queryset, self.desk
        if self.limits:
            due, undo = _due(queryset, desk), partial(_undo, desk, self.request.holder)
            raw = take_within(self.limits, order, due, desk, undo)
        else:
            raw = desk.dialect.claim(order, desk.columns)
        # In an order of the caller's they are read again.
        return raw if queryset.query.order_by else sort_claimed(raw, self.fields, desk)

    def instances(self, raw: list[Row]) -> Taken:
        """Return the rows claimed, each with what it is to remember of its claim."""
        places = {field: place for place, field in enumerate(self.fields)}
        claims = _claims_of(self.desk, self.request, places, raw)
        if not self.is_plain:
            return self._read(claims)
        rows = build(self.queryset, self.fields, raw)
        self._prefetch(rows)
        return rows, claims

    def _read(self, claims: Sequence[Claim]) -> Taken:
        """Read claimed rows again as the queryset asks; those that cannot be read are noted instead, if asked for."""
        queryset, desk = self.queryset, self.desk
        by_key = {claim.pk: claim for claim in claims}

        def read(keys: Sequence[Any]) -> list[Any]:
            rows = read_again(queryset, desk, list(keys))
            self._prefetch(rows)
            return rows

        keys = list(by_key)
        if self.unreadable is not None:
            for key, error in read_apart(keys, read, like(queryset, desk)):
                self.unreadable[key] = bare(queryset.model, by_key[key]), error
            keys = [key for key in keys if key not in self.unreadable]
        rows = read(keys)
        return rows, [by_key[desk.columns.key_of(row)] for row in rows]

    def _prefetch(self, rows: list[Any]) -> None:
        prefetches = self.queryset._prefetch_related_lookups  # type: ignore[attr-defined]
        if prefetches:
            models.prefetch_related_objects(rows, *prefetches)

    def _extend_held(self, queryset: Rows) -> Taken:
        """Return what the holder has among *queryset*, ``limit`` rows at most, each lease extended and none shortened.

        Rows are found without locks and waited for: a row passed over because it is locked would be handed out twice.
        """
        desk, request = self.desk, self.request
        columns = desk.columns
        rows = on_claim_table(queryset, desk).filter(
            **{columns.status.name: Status.PROCESSING, columns.claimed_by.name: request.holder}
        )
        fields = _facts(desk)
        ordered = in_claim_order(rows, queryset, desk)
        places = {field: place for place, field in enumerate(fields)}
        found = desk.dialect.first(ordered, desk.table, request.limit, fields)
        claims = {claim.pk: claim for claim in _claims_of(desk, request, places, found)}
        by_token: dict[Token, list[Any]] = {}
        for claim in claims.values():
            by_token.setdefault(claim.token, []).append(claim.pk)
        extension = [desk.dialect.extension(desk.table, request.lease)]
        still: set[Any] = set()
        for token, keys in by_token.items():
            parts = desk.dialect.chunks(sorted(keys), desk.table)
            extend = partial(desk.dialect.update_held, desk.table, token, assignments=extension)
            sent = map(extend, parts) if self.search is None else self.search.send(parts, extend)
            for extended in sent:
                still.update(extended)
        for claim in claims.values():
            claim.held_before = True
        return self._read([claim for key, claim in claims.items() if key in still])

    def _order(self, limit: int) -> ClaimOrder:
        queryset, desk = self.queryset, self.desk
        scopes = claim_scopes(queryset.model, desk.alias)
        return ClaimOrder(
            rows=lambda: _due(queryset, desk).filter(SwitchIsOn(scopes)),
            never_waited=lambda: _never_waited(queryset, desk).filter(SwitchIsOn(scopes)),
            simple=not queryset.query.where
            and not queryset.query.order_by
            and desk.columns.owned_by(queryset.model),
            limit=limit,
            holder=self.request.holder,
            lease=self.request.lease,
            scopes=scopes,
            returning=self.fields,
        )


def _due(queryset: Rows, desk: Desk) -> Rows:
    """Return the open, due rows of *queryset* in claim order."""
    return _open(queryset, desk, "__lte", DatabaseNow())


def _never_waited(queryset: Rows, desk: Desk) -> Rows:
    """Return those of them that have never waited; that they are due is left unsaid, lest an index be sought for it."""
    return _open(queryset, desk, "", NEVER_WAITED)


def _open(queryset: Rows, desk: Desk, lookup: str, moment: Any) -> Rows:
    columns = desk.columns
    rows = on_claim_table(queryset, desk).filter(**{columns.status.name: Status.OPEN})
    if columns.not_before is not None:
        rows = rows.filter(**{f"{columns.not_before.name}{lookup}": moment})
    return in_claim_order(rows, queryset, desk)


def _is_plain(queryset: Rows, desk: Desk) -> bool:
    """Say whether the claim statement's own columns make the instances, so that no second read is needed."""
    query = queryset.query
    return (
        desk.columns.owned_by(queryset.model)
        and not desk.columns.owner._meta.parents
        and queryset._iterable_class is ModelIterable
        and not query.select_related
        and not query.annotations
        and not query.extra
        and query.deferred_loading == (frozenset(), True)
        and not query.order_by
    )


@cache
def _all_columns(owner: Any) -> list[AnyField]:
    key = owner._meta.pk_fields
    return [*key, *(field for field in owner._meta.concrete_fields if field not in key)]


def _facts(desk: Desk) -> list[AnyField]:
    """Return the columns that tokens and the order of rows are made of, the key first."""
    columns = desk.columns
    extra = (columns.iteration, columns.attempts, columns.not_before, columns.priority)
    return [*columns.key, *(field for field in extra if field is not None)]


def _keep_apart_what_crashed(
    raw: list[list[Any]], desk: Desk, request: Request, fields: Sequence[AnyField]
) -> list[list[Any]]:
    """Let a row that may have killed its worker be claimed alone, so that its next crash charges nobody else."""
    if desk.columns.not_before is None:
        return raw
    position = list(fields).index(desk.columns.not_before)
    marked = _marked(raw, position)
    if not marked:
        return raw
    others = [row for row in raw if not is_crash_mark(row[position])]
    alone = not others or random.random() < CRASHED_FIRST
    keep = marked[:1] if alone else others
    if back := [desk.table.key_of(row) for row in raw if row not in keep]:
        _undo(desk, request.holder, back)
    if alone:
        _mark(desk, request, desk.table.key_of(keep[0]))
    return keep


def _marked(raw: list[list[Any]], place: int) -> list[list[Any]]:
    """Return the rows that may have killed their worker; *place* is where their ``not_before`` stands."""
    marked, last, is_mark = [], None, False
    for row in raw:
        # Most never waited, so the answer is that of the row before.
        if row[place] != last:
            last = row[place]
            is_mark = is_crash_mark(last)
        if is_mark:
            marked.append(row)
    return marked


def is_crash_mark(moment: Any) -> bool:
    """Say whether a ``not_before`` is the mark of a row whose worker died on its last try."""
    return moment is not None and as_utc(moment) in (CRASHED, CRASHED_UNBEGUN)


def is_unbegun(moment: Any) -> bool:
    """Say whether a ``not_before`` is the mark of such a row that its holder has not begun."""
    return moment is not None and as_utc(moment) == CRASHED_UNBEGUN


def _mark(desk: Desk, request: Request, key: Any) -> None:
    """Write down whether the expiry of this claim, of a row that may kill its holder, is to tell that it did."""
    waiting = desk.columns.not_before
    assert waiting is not None, "only a model that has it marks its rows"
    mark = CRASHED_UNBEGUN if request.tells_beginning else CRASHED
    assignment = desk.table.assign(waiting, desk.table.bound(waiting, mark))
    desk.dialect.update_where(desk.table, [key], _just_claimed(desk, request.holder), [assignment])


def _undo(desk: Desk, holder: str, keys: Sequence[Any]) -> None:
    """Open rows again that this transaction has just claimed; nobody else has seen them claimed."""
    table, columns = desk.table, desk.columns
    null = SQL("NULL")
    assignments = [
        table.assign(columns.status, SQL(f"'{Status.OPEN.value}'")),
        *(
            table.assign(f, null)
            for f in (columns.claimed_at, columns.expires_at, columns.claimed_by)
        ),
    ]
    desk.dialect.update_where(table, keys, _just_claimed(desk, holder), assignments)


def _just_claimed(desk: Desk, holder: str) -> SQL:
    return sql(
        "{} AND {} = {}",
        desk.table.in_state(Status.PROCESSING),
        desk.table.qualified(desk.columns.claimed_by),
        value(holder),
    )


def _claims_of(
    desk: Desk, request: Request, places: dict[AnyField, int], raw: list[list[Any]]
) -> list[Claim]:
    """Return what each row is to remember of its claim."""
    columns = desk.columns
    iteration = places[columns.iteration]
    failures = iteration if columns.attempts is None else places[columns.attempts]
    tokens = {n: Token(request.holder, n) for n in {row[iteration] for row in raw}}
    alias, lease = desk.alias, request.lease
    claims = [
        Claim(tokens[row[iteration]], alias, key, lease=lease, attempts=row[failures])
        for key, row in zip(desk.table.keys_of(raw), raw, strict=True)
    ]
    if columns.not_before is not None:
        marked = _marked(raw, places[columns.not_before])
        suspects = {id(row) for row in marked}
        for row, claim in zip(raw, claims, strict=True) if marked else ():
            claim.suspect = id(row) in suspects
    return claims
