"""Verbs over querysets: the reaper and the operator's acts. They lock keys first, never wait, and go chunk by chunk."""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import DatabaseError, models
from django.db.models import Q

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns, has_ranges, range_columns, unit_of
from django_taskclaim.connecting import is_refusal
from django_taskclaim.db import DatabaseNow
from django_taskclaim.db.sql import SQL, sql
from django_taskclaim.error_text import escape_to_ascii, text_to_store
from django_taskclaim.formatting import counted
from django_taskclaim.policy import fault_of, policy_for, refuse_no_number
from django_taskclaim.querysets.assignments import (
    as_new,
    crash_mark,
    failed,
    in_state,
    one_more,
    one_more_attempt,
    open_again,
    pass_on,
    to_null,
)
from django_taskclaim.querysets.claiming import is_crash_mark, is_unbegun
from django_taskclaim.querysets.refusals import Search
from django_taskclaim.querysets.scope import ClaimTarget, Rows, on_claim_table, refuse_unclaimable
from django_taskclaim.querysets.transactions import transactionally
from django_taskclaim.querysets.waking import call_workers
from django_taskclaim.signals import (
    after_commit,
    rows_acted_on,
    rows_expired,
    send_after_commit,
)
from django_taskclaim.states import WORKER_MARK, Status

logger = logging.getLogger("django_taskclaim")

#: The error class of a row that an operator failed by word alone.
OPERATOR = "FailedByOperator"

#: What the log says of rows whose lease has ended, by the outcome.
EXPIRED = {
    "charged": "put back, one try counted",
    "uncharged": "put back, no try counted",
    "crashed": "put back for the last try, to be claimed alone",
    "failed": "failed, no try is left",
}

#: The acts after which there is something to do.
OPENING = frozenset({"reset", "resumed"})

#: What of a row decides what an expired claim makes of it.
_JUDGED_BY = ("attempts", "claimed_by", "not_before", "iteration")

#: Where an error that ends a verb between two chunks keeps what the chunks before it came to.
_WRITTEN = "_taskclaim_written"

#: Given the locked rows (the columns asked for), writes them and returns how many.
Write = Callable[[ClaimTarget, list[list[Any]]], int]

#: Told after each chunk's commit how many rows have been written so far.
Told = Callable[[int], None]


def expired_condition(target: ClaimTarget, cutoff: datetime | None = None) -> Q:
    """Match rows whose lease has ended by the database's clock; a processing row without expiry counts as expired.

    With *cutoff*, those alone whose lease had ended by then.
    """
    columns, expiry = target.columns, target.columns.expires_at.name
    ended = Q(**{f"{expiry}__lte": DatabaseNow()})
    if cutoff is not None:
        ended &= Q(**{f"{expiry}__lte": cutoff})
    never = Q(**{f"{expiry}__isnull": True})
    return Q(**{columns.status.name: Status.PROCESSING}) & (never | ended)


def in_chunks(
    queryset: Rows,
    condition: Callable[[ClaimTarget], Q],
    write: Write,
    fields: Sequence[str] = (),
    limit: int | None = None,
    progress: Told | None = None,
) -> int:
    """Lock, write and commit chunk by chunk what matches, and return how many rows were written.

    *limit* bounds them, in the order of their keys but on SQLite; *progress* hears of each chunk. Rows that another
    transaction has locked are left alone, and a few that the database refuses to have written, each with an ERROR in
    the log. Inside a caller's transaction all chunks are part of it. Of an error that ends it half-way
    ``written_before`` says how many rows were written.
    """
    refuse_no_number(limit, "limit")
    refuse_unclaimable(queryset)
    if queryset.query.is_empty():
        return 0
    target = ClaimTarget.of(queryset.model, queryset.db)
    rows = on_claim_table(queryset, target).filter(condition(target))
    key = [field.attname for field in target.columns.key]
    total, refused = 0, list[Any]()
    while limit is None or total < limit:
        size = (
            int(conf.setting("CHUNK_SIZE"))
            if limit is None
            else min(int(conf.setting("CHUNK_SIZE")), limit - total)
        )
        ordered, locked = rows.order_by(*key), None
        try:
            try:
                locked, written = transactionally(
                    target, partial(_chunk, target, ordered, size, write, fields)
                )
            except DatabaseError as error:
                search = Search(target, error, refused)
                written = _write_apart(target, ordered, size, write, fields, search)
                refused = search.refused
                rows = rows.exclude(pk__in=refused)
        except BaseException as error:
            # Ctrl-C among them: what was committed before it stays.
            setattr(error, _WRITTEN, total)
            raise
        total += written
        if progress is not None:
            progress(total)
        if locked is None:
            continue
        if len(locked) < size:
            break
        if target.dialect.locks_in_key_order:
            # Else each chunk would walk past all that the ones before it have done.
            rows = rows.filter(pk__gt=target.table.key_of(locked[-1]))
    return total


def _write_apart(
    target: ClaimTarget, rows: Rows, size: int, write: Write, fields: Sequence[str], search: Search
) -> int:
    """Write a chunk without the rows that the database refuses, part by part, and return how many were written."""

    def attempt(keys: Sequence[Any]) -> int:
        return _chunk(target, rows.filter(pk__in=keys), len(keys), write, fields)[1]

    found = target.dialect.first(rows, target.table, size, target.columns.key)
    written = sum(search.send([target.table.keys_of(found)], attempt))
    search.end(written)
    return written


def written_before(error: BaseException) -> int:
    """Return how many rows a verb over a queryset had written, chunk by chunk, when *error* ended it."""
    return int(getattr(error, _WRITTEN, 0))


def _chunk(
    target: ClaimTarget, rows: Rows, size: int, write: Write, roles: Sequence[str]
) -> tuple[list[list[Any]], int]:
    extra = [field for role in roles if (field := getattr(target.columns, role)) is not None]
    locked = target.dialect.lock_first(rows, target.table, size, [*target.columns.key, *extra])
    return locked, write(target, locked) if locked else 0


def state_write(
    act: str, *states: Status, assignments: Callable[[ClaimTarget], list[SQL]]
) -> Write:
    """Return a write of *assignments* to rows that are still in one of *states*, which is told of as *act*."""

    def write(target: ClaimTarget, locked: list[list[Any]]) -> int:
        keys = [target.table.key_of(row) for row in locked]
        written = sum(
            target.dialect.update_where(
                target.table, part, target.table.in_state(*states), assignments(target)
            )
            for part in target.dialect.chunks(keys, target.table)
        )
        if written:
            send_after_commit(rows_acted_on, target.model, target.alias, keys=keys, act=act)
            if act in OPENING:
                call_workers(target.columns.owner, target.alias)
        return written

    return write


def reset_assignments(target: ClaimTarget) -> list[SQL]:
    """Return what makes a row as good as new, but for its iteration."""
    return [
        *_from_the_start(target),
        *_due_again(target),
        *as_new(target),
        *_not_completed(target),
        *open_again(target),
    ]


def _not_completed(target: ClaimTarget) -> list[SQL]:
    field = target.columns.completed_at
    return [] if field is None else [to_null(target, field)]


def _from_the_start(target: ClaimTarget) -> list[SQL]:
    """Return what lets a complete range begin again; any other goes on behind what was done and committed."""
    table, fresh = target.table, {"checkpoint": "NULL", "rows_done": "0"}
    complete = table.in_state(Status.COMPLETE)
    return [
        table.assign(
            field,
            sql(
                "CASE WHEN {} THEN {} ELSE {} END", complete, fresh[field.name], table.column(field)
            ),
        )
        for field in range_columns(target.columns.owner)
        if field.name in fresh
    ]


def _due_again(target: ClaimTarget) -> list[SQL]:
    """Return what makes a row due; a range that nobody has held yet may wait for rows that are committed late."""
    table, field = target.table, target.columns.not_before
    if field is None:
        return []
    due = table.bound(field, field.get_default())
    if not has_ranges(target.model):
        return [table.assign(field, due)]
    holder, wait = table.column(target.columns.claimed_by), table.column(field)
    kept = sql("CASE WHEN {} IS NULL THEN {} ELSE {} END", holder, wait, due)
    return [table.assign(field, kept)]


def pause_assignments(target: ClaimTarget) -> list[SQL]:
    """Return what takes an open row out of the queue."""
    return [in_state(target, Status.PAUSED)]


def resume_assignments(target: ClaimTarget) -> list[SQL]:
    """Return what opens a paused row; a token of before must not stand again."""
    return open_again(target)


def fail_assignments(told: tuple[str, str]) -> Callable[[ClaimTarget], list[SQL]]:
    """Return what ends rows badly by an operator's word, error class and text *told*; no try is charged."""

    def assignments(target: ClaimTarget) -> list[SQL]:
        return [
            *failed(target, *told),
            *_not_completed(target),
            one_more(target, target.columns.iteration),
        ]

    return assignments


def fail_rows(queryset: Rows, states: Sequence[Status], error: BaseException | str) -> int:
    """Fail what is in one of *states*; a text that the database refuses is written in escapes, or left out."""
    error_class, text = text_to_store(error)
    told = (error_class or OPERATOR, text)
    for words in (told, escape_to_ascii(told)):
        try:
            return change(queryset, "failed", states, fail_assignments(words))
        except (DatabaseError, UnicodeError) as error:
            if not is_refusal(error):
                raise
    return change(queryset, "failed", states, fail_assignments((OPERATOR, "")))


def change(
    queryset: Rows,
    act: str,
    states: Sequence[Status],
    assignments: Callable[[ClaimTarget], list[SQL]],
    limit: int | None = None,
    progress: Told | None = None,
) -> int:
    """Write *assignments* to the rows that are in one of *states*, chunk by chunk, and return how many."""
    status = claim_columns(queryset.model).status.name
    write = state_write(act, *states, assignments=assignments)
    in_states = Q(**{f"{status}__in": states})
    return in_chunks(queryset, lambda target: in_states, write, limit=limit, progress=progress)


def take_back(queryset: Rows) -> int:
    """Put back running rows, whoever holds them; see ``ClaimQuerySet.take_back``."""
    write = _write_taken("taken back", open_again)
    return in_chunks(queryset, _is_running, write, ("claimed_by",))


def take_over(queryset: Rows, by: str, reason: str, lease: timedelta) -> int:
    """Give running rows of others to *by*; see ``ClaimQuerySet.take_over``."""

    def is_of_others(target: ClaimTarget) -> Q:
        return _is_running(target) & ~Q(**{target.columns.claimed_by.name: by})

    def assignments(target: ClaimTarget) -> list[SQL]:
        return pass_on(target, by, lease)

    write = _write_taken("taken over", assignments, by=by, reason=reason)
    return in_chunks(queryset, is_of_others, write, ("claimed_by",))


def _is_running(target: ClaimTarget) -> Q:
    return Q(**{target.columns.status.name: Status.PROCESSING})


def _write_taken(act: str, assignments: Callable[[ClaimTarget], list[SQL]], **facts: Any) -> Write:
    """Return a write to the locked rows of each holder, if they are still that holder's."""

    def write(target: ClaimTarget, locked: list[list[Any]]) -> int:
        by_holder: dict[str | None, list[Any]] = {}
        for row in locked:
            by_holder.setdefault(row[len(target.columns.key)], []).append(target.table.key_of(row))
        written = sum(
            _take_from(target, holder, keys, assignments(target))
            for holder, keys in by_holder.items()
        )
        if written:
            taken = [key for keys in by_holder.values() for key in keys]
            told = {"keys": taken, "act": act, **facts}
            send_after_commit(rows_acted_on, target.model, target.alias, **told)
        return written

    return write


def _take_from(
    target: ClaimTarget, holder: str | None, keys: list[Any], assignments: list[SQL]
) -> int:
    column = target.table.qualified(target.columns.claimed_by)
    state = target.table.in_state(Status.PROCESSING)
    held = SQL(f"{column} IS NULL") if holder is None else SQL(f"{column} = %s", (holder,))
    condition = SQL.join(" AND ", [state, held])
    return sum(
        target.dialect.update_where(target.table, part, condition, assignments)
        for part in target.dialect.chunks(keys, target.table)
    )


# The reaper


def release_expired(queryset: Rows, limit: int | None, cutoff: datetime | None = None) -> int:
    """Put back, or fail, rows whose lease has ended, by the *cutoff* if one is given; see ``ClaimQuerySet``."""
    condition = partial(expired_condition, cutoff=cutoff)
    return in_chunks(queryset, condition, _write_expired, _JUDGED_BY, limit)


class _Expired(NamedTuple):
    """What of a locked row decides what its expired claim makes of it."""

    key: Any
    claimed_by: str | None
    not_before: datetime | None
    #: How many tries have failed; a model without ``attempts`` counts how often the row was put back.
    tried: int

    @classmethod
    def of(cls, target: ClaimTarget, row: list[Any]) -> "_Expired":
        """Take apart the columns that were read under the lock."""
        roles = [role for role in _JUDGED_BY if getattr(target.columns, role) is not None]
        read = dict(zip(roles, row[len(target.columns.key) :], strict=True))
        tried = read.get("attempts", read["iteration"])
        return cls(target.table.key_of(row), read["claimed_by"], read.get("not_before"), tried)


def _write_expired(target: ClaimTarget, locked: list[list[Any]]) -> int:
    """Judge each locked row by what was read under the lock, then write those with the same outcome together."""
    outcomes: dict[str, list[_Expired]] = {}
    for raw in locked:
        row = _Expired.of(target, raw)
        outcomes.setdefault(_outcome(target, row), []).append(row)
    return sum(_write_outcome(target, outcome, rows) for outcome, rows in outcomes.items())


def _outcome(target: ClaimTarget, row: _Expired) -> str:
    """Say what an expired claim makes of its row: ``uncharged``, ``charged``, ``crashed`` or ``failed``."""
    if WORKER_MARK not in (row.claimed_by or "") or is_unbegun(row.not_before):
        return "uncharged"
    # With a handler that could not be registered, nobody knows how many tries there are.
    if fault_of(target.model) or row.tried + 1 < policy_for(target.model).max_attempts:
        return "charged"
    if target.columns.not_before is None or is_crash_mark(row.not_before):
        return "failed"
    return "crashed"


def _write_outcome(target: ClaimTarget, fate: str, rows: list[_Expired]) -> int:
    table = target.table
    assignments = {
        "uncharged": open_again,
        "charged": _charged,
        "crashed": _crashed,
        "failed": _failed,
    }[fate](target)
    keys = [row.key for row in rows]
    # The condition of the SELECT, repeated.
    condition = table.where_of(target.rows.order_by().filter(expired_condition(target)))
    assert condition is not None, "the condition can match"
    written = sum(
        target.dialect.update_where(table, part, condition, assignments)
        for part in target.dialect.chunks(keys, table)
    )
    if not written:
        return 0
    holders = [row.claimed_by for row in rows]
    told = {"keys": keys, "fate": fate, "holders": holders}
    send_after_commit(rows_expired, target.model, target.alias, **told)
    label = target.model._meta.label
    log = partial(
        logger.log,
        logging.ERROR if fate == "failed" else logging.WARNING,
        "%s of %s expired: %s",
        counted(written, unit_of([target.model])),
        label,
        EXPIRED[fate],
        extra={
            "event": "expired",
            "fate": fate,
            "model": label,
            "rows": written,
            "keys": [str(key) for key in keys],
        },
    )
    after_commit(target.alias, log)
    return written


def _charged(target: ClaimTarget) -> list[SQL]:
    return [*one_more_attempt(target), *open_again(target)]


def _crashed(target: ClaimTarget) -> list[SQL]:
    return [*crash_mark(target), *open_again(target)]


def _failed(target: ClaimTarget) -> list[SQL]:
    text = "The lease ran out on the last try: the worker died, hung or was cut off while this row ran."
    return [*one_more_attempt(target), *failed(target, "LeaseExpired", text)]


# Counting


def progress_counts(queryset: Rows) -> dict[str, int]:
    """Return how many rows are in each state."""
    refuse_unclaimable(queryset)
    if queryset.query.is_empty():
        return {}
    target = ClaimTarget.of(queryset.model, queryset.db)
    status = target.columns.status.name
    rows = (
        on_claim_table(queryset, target)
        .values_list(status)
        .annotate(n=models.Count("*"))
        .order_by()
    )
    return dict(rows.values_list(status, "n"))
