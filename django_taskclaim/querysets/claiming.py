"""Taking rows: what ``claim_batch`` promises, from the caller's words to the instances in hand."""

import os
import random
import secrets
import socket
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import OperationalError, models
from django.db.models.query import ModelIterable

from django_taskclaim import conf
from django_taskclaim.dialects import ClaimOrder, DatabaseNow, SwitchIsOn
from django_taskclaim.dialects.statements import SQL, sql, value
from django_taskclaim.fields import CRASHED, CRASHED_UNBEGUN, AnyField, as_utc
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.limits import limits_over, take_within
from django_taskclaim.querysets.lost_commits import PATIENCE, judge_after_lost_commit
from django_taskclaim.querysets.lower_bound import LowerBound
from django_taskclaim.querysets.scope import (
    Desk,
    Rows,
    in_claim_order,
    in_policy_order,
    on_claim_table,
    refuse_unclaimable,
    without_conditions,
)
from django_taskclaim.querysets.transactions import durably
from django_taskclaim.states import WORKER_MARK, Status, Token
from django_taskclaim.switch_reading import scopes_over
from django_taskclaim.tokens import Claim, attach, clock

#: How often a row that may have killed its worker goes before the others it was claimed with.
CRASHED_FIRST = 0.1


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
    queryset = in_policy_order(queryset)
    started = clock()
    # A name that a caller gave may have claimed the same rows by another call, so such rows tell nothing.
    return durably(
        desk,
        lambda: _claim(queryset, desk, request, started),
        partial(_claimed_after_all, request) if WORKER_MARK in request.holder else None,
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


def _claim(queryset: Rows, desk: Desk, request: Request, started: float) -> list[Any]:
    held: list[Any] = []
    if request.include_held:
        # By the owner of the table: a proxy or a child reaches the same rows.
        desk.dialect.queue(f"{desk.columns.owner._meta.label_lower}:{request.holder}")
        held = _extend_held(queryset, desk, request)
    wanted = request.limit - len(held)
    rows = _take(queryset, desk, request, wanted) if wanted > 0 else []
    for row, facts in [*held, *rows]:
        key = desk.columns.key_of(row)
        claimed = Claim(facts.token, desk.alias, key, lease=request.lease, attempts=facts.attempts)
        claimed.suspect = facts.suspect
        claimed.extend(started)
        attach(row, claimed)
    return [row for row, _ in [*held, *rows]]


class Facts(NamedTuple):
    """What a claim keeps of a row beside the instance."""

    token: Token
    #: How often it failed before.
    attempts: int
    #: Whether it may have killed the worker that had it on its last try.
    suspect: bool


# Rows fresh from the table

Taken = tuple[Any, Facts]


def _take(queryset: Rows, desk: Desk, request: Request, limit: int) -> list[Taken]:
    limits = limits_over(queryset.model)
    fields = _wanted_columns(queryset, desk)
    fields = list(dict.fromkeys([*fields, *(one.field for one in limits)]))
    due = _due(queryset, desk)
    order = ClaimOrder(
        candidates=due.filter(SwitchIsOn(scopes_over(queryset.model))),
        simple=not queryset.query.where
        and not queryset.query.order_by
        and desk.columns.owned_by(queryset.model),
        limit=limit,
        holder=request.holder,
        lease=request.lease,
        scopes=scopes_over(queryset.model),
        returning=fields,
    )
    if limits:
        raw = take_within(limits, order, due, desk, partial(_undo, desk, request.holder))
    elif request.bound is not None and not queryset.query.order_by:
        raw = request.bound.claim(order, desk)
    else:
        raw = desk.dialect.claim(order, desk.columns)
    raw = _keep_apart_what_crashed(raw, desk, request, fields)
    return _instances(queryset, desk, request.holder, fields, raw)


def _due(queryset: Rows, desk: Desk) -> Rows:
    """Return the open, due rows of *queryset* in claim order."""
    columns = desk.columns
    rows = on_claim_table(queryset, desk).filter(**{columns.status.name: Status.OPEN})
    if columns.not_before is not None:
        rows = rows.filter(**{f"{columns.not_before.name}__lte": DatabaseNow()})
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


def _wanted_columns(queryset: Rows, desk: Desk) -> list[AnyField]:
    """Return the columns that the claim must give back: the key first, then what tokens and instances need."""
    columns = desk.columns
    key = columns.key
    if _is_plain(queryset, desk):
        return [*key, *(field for field in columns.owner._meta.concrete_fields if field not in key)]
    return _facts(desk)


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
    marked = [row for row in raw if is_crash_mark(row[position])]
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


def _instances(
    queryset: Rows, desk: Desk, holder: str, fields: Sequence[AnyField], raw: list[list[Any]]
) -> list[Taken]:
    columns = desk.columns
    places = {field: place for place, field in enumerate(fields)}
    tokens = _facts_of(desk, holder, places, raw)
    if _is_plain(queryset, desk):
        found = _build(queryset, fields, _sorted(raw, desk, places))
        _set_fetch_mode(queryset, found)
    else:
        found = _read_again(
            queryset, desk, [desk.table.key_of(row) for row in _sorted(raw, desk, places)]
        )
    prefetches = queryset._prefetch_related_lookups  # type: ignore[attr-defined]
    if prefetches:
        models.prefetch_related_objects(found, *prefetches)
    return [(row, tokens[columns.key_of(row)]) for row in found]


def _facts_of(
    desk: Desk, holder: str, places: dict[AnyField, int], raw: list[list[Any]]
) -> dict[Any, Facts]:
    """Return what the claim keeps of each row, by key."""
    columns = desk.columns
    iteration = places[columns.iteration]
    failures = iteration if columns.attempts is None else places[columns.attempts]
    waiting = None if columns.not_before is None else places[columns.not_before]
    return {
        desk.table.key_of(row): Facts(
            Token(holder, row[iteration]),
            row[failures],
            waiting is not None and is_crash_mark(row[waiting]),
        )
        for row in raw
    }


def _sorted(raw: list[list[Any]], desk: Desk, places: dict[Any, int]) -> list[list[Any]]:
    """Put returned rows into the model's claim order again; RETURNING has none."""
    columns = desk.columns

    def rank(row: list[Any]) -> tuple[Any, ...]:
        priority = -row[places[columns.priority]] if columns.priority is not None else 0
        moment = row[places[columns.not_before]] if columns.not_before is not None else None
        return (priority, *([moment] if moment is not None else []), *row[: len(columns.key)])

    return sorted(raw, key=rank)


def _build(queryset: Rows, fields: Sequence[AnyField], raw: list[list[Any]]) -> list[Any]:
    model = queryset.model
    places = {field: place for place, field in enumerate(fields)}
    concrete = model._meta.concrete_fields
    names = [field.attname for field in concrete]
    pick = [places[field] for field in concrete]
    return [model.from_db(queryset.db, names, [row[place] for place in pick]) for row in raw]


def _set_fetch_mode(queryset: Rows, rows: Sequence[Any]) -> None:
    """Let the rows fetch what they lack as the queryset asks, which Django can be told since 6.1."""
    mode = getattr(queryset, "_fetch_mode", None)
    if mode is None:
        return
    peers = [weakref.ref(row) for row in rows] if mode.track_peers else ()
    for row in rows:
        row._state.fetch_mode = mode
        row._state.peers = peers


def _read_again(queryset: Rows, desk: Desk, keys: list[Any]) -> list[Any]:
    """Read claimed rows with the joins, annotations and columns asked for, in the order asked for."""
    if not keys:
        return []
    path = f"{desk.columns.key_path(queryset.model)}__in"
    query = queryset.query
    computed = query.annotations or query.extra
    rows = without_conditions(queryset) if computed else _fresh_like(queryset)
    rows = rows.using(desk.alias).prefetch_related(None).filter(**{path: keys})
    ordered = (
        rows.order_by(*queryset.query.order_by) if queryset.query.order_by else rows.order_by()
    )
    if not queryset.query.standard_ordering:
        ordered = ordered.reverse()
    by_key: dict[Any, Any] = {}
    for row in ordered:
        # A join of the user's may show a row more than once.
        by_key.setdefault(desk.columns.key_of(row), row)
    missing = [key for key in keys if key not in by_key]
    if missing:
        # … or not at all, if what it joins to has gone; the row is claimed all the same, and read without the joins.
        for row in (
            _fresh_like(queryset).select_related(None).using(desk.alias).filter(**{path: missing})
        ):
            by_key[desk.columns.key_of(row)] = row
    return list(by_key.values()) if queryset.query.order_by else [by_key[key] for key in keys]


def _fresh_like(queryset: Rows) -> Rows:
    """Return an unfiltered queryset of the same class with the same columns and joins."""
    fresh = type(queryset)(queryset.model, using=queryset.db).order_by()
    fresh.query.select_related = queryset.query.select_related
    fresh.query.deferred_loading = queryset.query.deferred_loading
    if hasattr(queryset, "_fetch_mode"):
        fresh._fetch_mode = queryset._fetch_mode  # type: ignore[attr-defined]
    return fresh


# Rows that the holder has already


def _extend_held(queryset: Rows, desk: Desk, request: Request) -> list[Taken]:
    """Return what the holder has among *queryset*, ``limit`` rows at most, each lease extended and none shortened.

    Rows are found without locks and waited for: a row passed over because it is locked would be handed out twice.
    """
    columns = desk.columns
    rows = on_claim_table(queryset, desk).filter(
        **{columns.status.name: Status.PROCESSING, columns.claimed_by.name: request.holder}
    )
    fields = _facts(desk)
    ordered = in_claim_order(rows, queryset, desk)
    places = {field: place for place, field in enumerate(fields)}
    found = _sorted(desk.dialect.first(ordered, desk.table, request.limit, fields), desk, places)
    tokens = _facts_of(desk, request.holder, places, found)
    by_iteration: dict[Token, list[Any]] = {}
    for key, facts in tokens.items():
        by_iteration.setdefault(facts.token, []).append(key)
    extension = [desk.dialect.extension(desk.table, request.lease)]
    still: set[Any] = set()
    for token, keys in by_iteration.items():
        for part in desk.dialect.chunks(sorted(keys), desk.table):
            still.update(desk.dialect.update_held(desk.table, token, part, extension))
    again = _read_again(queryset, desk, [key for key in tokens if key in still])
    return [(row, tokens[columns.key_of(row)]) for row in again]
