"""Verbs over querysets, as operators call them. They lock keys first, never wait, and commit chunk by chunk."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import DatabaseError, models
from django.db.models import Q

from django_taskclaim import conf
from django_taskclaim.claim import GIVEN_UP, carried_claims, end_claims
from django_taskclaim.columns import claim_columns, has_ranges, range_columns
from django_taskclaim.connecting import is_refusal
from django_taskclaim.db.sql import SQL, Change, Key, sql
from django_taskclaim.error_text import escape_to_ascii, text_to_store
from django_taskclaim.guard import show
from django_taskclaim.policy import policy_for, refuse_no_number
from django_taskclaim.querysets.assignments import (
    as_new,
    failed,
    in_state,
    one_more,
    open_again,
    pass_on,
    to_null,
)
from django_taskclaim.querysets.claiming import checked_name
from django_taskclaim.querysets.isolating import RefusedRows
from django_taskclaim.querysets.scope import ClaimTarget, Rows, on_claim_table, refuse_unclaimable
from django_taskclaim.querysets.transactions import in_transaction
from django_taskclaim.querysets.waking import call_workers
from django_taskclaim.querysets.writes import Given, Write, by_database, send_of_rows, write
from django_taskclaim.signals import rows_acted_on, rows_handed_over, send_after_commit
from django_taskclaim.states import Status

Lease = float | timedelta | None

#: The error class of a row that an operator failed by word alone.
OPERATOR = "FailedByOperator"

#: Where an error that ends a verb between two chunks keeps what the chunks before it came to.
_WRITTEN = "_taskclaim_written"

#: Called after each chunk's commit with the number of rows written so far.
Progressed = Callable[[int], None]


# Chunk by chunk


class LockedRow(NamedTuple):
    """One row as it was read under the lock."""

    key: Key
    claimed_by: str | None
    not_before: datetime | None
    #: How many tries have failed; a model without ``attempts`` counts how often the row was put back.
    tried: int


class BulkVerb:
    """What one verb does to the rows of a queryset."""

    def condition(self, target: ClaimTarget) -> Q:
        """Return which rows it is about."""
        raise NotImplementedError

    def write(self, target: ClaimTarget, rows: list[LockedRow]) -> int:
        """Write rows that the open transaction has locked, repeating the condition, and return how many it wrote."""
        raise NotImplementedError

    def committed(self) -> None:
        """Take note that the last chunk has been committed."""


def in_chunks(
    queryset: Rows,
    verb: BulkVerb,
    limit: int | None = None,
    progress: Progressed | None = None,
) -> int:
    """Lock, write and commit chunk by chunk, and return how many rows were written.

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
    rows = on_claim_table(queryset, target).filter(verb.condition(target))
    rows = rows.order_by(*[field.attname for field in target.columns.key])
    total, refused = 0, RefusedRows[Key](target)
    while limit is None or total < limit:
        size = int(conf.setting("CHUNK_SIZE"))
        if limit is not None:
            size = min(size, limit - total)
        locked: list[LockedRow] | None = None
        try:
            try:
                chunk = partial(_chunk, target, rows, size, verb)
                locked, written = in_transaction(target, chunk)
            except DatabaseError as error:
                written = _write_around(rows, size, verb, refused, error)
                rows = rows.exclude(pk__in=[key for key, _ in refused.found])
        except BaseException as error:
            # Ctrl-C among them: what was committed before it stays.
            setattr(error, _WRITTEN, total)
            raise
        verb.committed()
        total += written
        if progress is not None:
            progress(total)
        if locked is None:
            continue
        if len(locked) < size:
            break
        if target.dialect.locks_in_order:
            # Else each chunk would walk past all that the ones before it have done.
            rows = rows.filter(pk__gt=locked[-1].key)
    return total


def _write_around(
    rows: Rows, size: int, verb: BulkVerb, refused: RefusedRows[Key], error: Exception
) -> int:
    """Write a chunk without the rows that *error* is of, and return how many rows were written."""
    if not refused.is_of_a_row(error):
        raise error
    target = refused.target

    def attempt(keys: Sequence[Key]) -> int:
        part = rows.filter(pk__in=keys)
        return in_transaction(target, _chunk, target, part, len(keys), verb)[1]

    found = target.dialect.first(rows, target.table, size, target.columns.key)
    written = sum(refused.send(target.table.keys_of(found), attempt))
    refused.end(error, written)
    return written


def written_before(error: BaseException) -> int:
    """Return how many rows a verb over a queryset had written, chunk by chunk, when *error* ended it."""
    return int(getattr(error, _WRITTEN, 0))


def _chunk(
    target: ClaimTarget, rows: Rows, size: int, verb: BulkVerb
) -> tuple[list[LockedRow], int]:
    columns, table = target.columns, target.table
    tried = columns.attempts or columns.iteration
    waits = [] if columns.not_before is None else [columns.not_before]
    fields, width = [*columns.key, columns.claimed_by, *waits, tried], len(columns.key)
    locked = [
        LockedRow(table.key_of(row), row[width], row[-2] if waits else None, row[-1])
        for row in target.dialect.lock_first(rows, table, size, fields)
    ]
    return locked, verb.write(target, locked) if locked else 0


def update_locked(
    target: ClaimTarget, keys: Sequence[Key], condition: Q, assignments: Sequence[SQL]
) -> int:
    """Write rows that this transaction has locked, repeating the condition of the SELECT, and return how many."""
    repeated = target.table.where_of(target.rows.order_by().filter(condition))
    assert repeated is not None, "rows were found by it"
    parts = target.dialect.chunks(keys, target.table)
    write_part, change = target.dialect.write, Change(assignments)
    return sum(write_part(target.table, part, change, repeated) for part in parts)


# Changes of state


class StateChange(BulkVerb):
    """Brings rows from some states into another one; *action* is how signals and the audit name it."""

    def __init__(self, action: str, states: Collection[Status], **facts: Any) -> None:
        """*facts* are what the signal carries beside the keys and the action."""
        self.action, self.states, self.facts = action, tuple(states), facts

    def condition(self, target: ClaimTarget) -> Q:
        return Q(**{f"{target.columns.status.name}__in": self.states})

    def assignments(self, target: ClaimTarget) -> list[SQL]:
        """Return what becomes of a row."""
        raise NotImplementedError

    def write(self, target: ClaimTarget, rows: list[LockedRow]) -> int:
        keys = [row.key for row in rows]
        written = update_locked(target, keys, self.condition(target), self.assignments(target))
        if written:
            facts = {"keys": keys, "act": self.action, **self.facts}
            send_after_commit(rows_acted_on, target.model, target.alias, **facts)
        return written


class Pause(StateChange):
    """Takes open rows out of the queue."""

    def __init__(self) -> None:
        super().__init__("paused", [Status.OPEN])

    def assignments(self, target: ClaimTarget) -> list[SQL]:
        return [in_state(target, Status.PAUSED)]


class Resume(StateChange):
    """Opens paused rows; a token of before must not stand again."""

    def __init__(self) -> None:
        super().__init__("resumed", [Status.PAUSED])

    def assignments(self, target: ClaimTarget) -> list[SQL]:
        return open_again(target)

    def write(self, target: ClaimTarget, rows: list[LockedRow]) -> int:
        written = super().write(target, rows)
        if written:
            call_workers(target.columns.owner, target.alias)
        return written


class Reset(Resume):
    """Makes rows as good as new, but for their iteration."""

    def __init__(self, *, complete: bool, running: bool) -> None:
        states = [
            Status.FAILED,
            *([Status.COMPLETE] if complete else []),
            *([Status.PROCESSING] if running else []),
        ]
        StateChange.__init__(self, "reset", states)

    def assignments(self, target: ClaimTarget) -> list[SQL]:
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


class FailRows(StateChange):
    """Ends rows badly by an operator's word; no try is charged."""

    def __init__(self, states: Collection[Status], error_class: str, text: str) -> None:
        super().__init__("failed", states)
        self.error = error_class, text

    def assignments(self, target: ClaimTarget) -> list[SQL]:
        return [
            *failed(target, *self.error),
            *_not_completed(target),
            one_more(target, target.columns.iteration),
        ]


def fail_rows(
    queryset: Rows,
    states: Sequence[Status],
    error: BaseException | str,
    limit: int | None = None,
    progress: Progressed | None = None,
) -> int:
    """Fail what is in one of *states*; a text that the database refuses is written in escapes, or left out."""
    error_class, text = text_to_store(error)
    stored = (error_class or OPERATOR, text)
    for plainer in (stored, escape_to_ascii(stored)):
        try:
            return in_chunks(queryset, FailRows(states, *plainer), limit, progress)
        except (DatabaseError, UnicodeError) as refused:
            if not is_refusal(refused):
                raise
    return in_chunks(queryset, FailRows(states, OPERATOR, ""), limit, progress)


# Running rows of others


class TakeBack(StateChange):
    """Puts running rows back, uncounted."""

    def __init__(self) -> None:
        super().__init__("taken back", [Status.PROCESSING])

    def assignments(self, target: ClaimTarget) -> list[SQL]:
        return open_again(target)


class TakeOver(StateChange):
    """Gives running rows of others to *by*."""

    def __init__(self, by: str, reason: str, lease: timedelta) -> None:
        super().__init__("taken over", [Status.PROCESSING], by=by, reason=reason)
        self.by, self.lease = by, lease

    def condition(self, target: ClaimTarget) -> Q:
        return super().condition(target) & ~Q(**{target.columns.claimed_by.name: self.by})

    def assignments(self, target: ClaimTarget) -> list[SQL]:
        return pass_on(target, self.by, self.lease)


def take_over(queryset: Rows, by: str, reason: str, lease: Lease) -> int:
    """Let *by* hold what others hold of *queryset*; see ``ClaimQuerySet.take_over``."""
    holder = checked_name(by, "by")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("take_over() needs a reason, for those who lose the rows.")
    return in_chunks(queryset, TakeOver(holder, reason.strip(), _lease(queryset.model, lease)))


def _lease(model: type[models.Model], lease: Lease) -> timedelta:
    return policy_for(model).lease if lease is None else conf.positive_duration(lease, "lease")


# Rows of one's own


class HandOver(Write):
    """Gives rows to another holder, as claims of their own."""

    def __init__(self, to: str, lease: Lease) -> None:
        self.holder = checked_name(to, "to")
        self.lease = None if lease is None else conf.positive_duration(lease, "lease")

    def change(self, target: ClaimTarget, rows: Sequence[Any]) -> Change:
        return Change(pass_on(target, self.holder, _lease(target.model, self.lease)))


def hand_over(rows: Any, to: str, lease: Lease) -> int:
    """Let *to* hold *rows* from now on; see ``ClaimQuerySet.hand_over``."""
    verb = HandOver(to, lease)
    given = Given.of(rows)
    written: list[Any] = []
    for part in by_database(given.held):
        done = write(part, verb)
        end_claims(carried_claims(done), GIVEN_UP)
        for row in done:
            _show_handed_over(row, verb.holder)
        send_of_rows(rows_handed_over, done, to=verb.holder)
        written += done
    given.raise_unless_all(written)
    return len(written)


def _show_handed_over(row: models.Model, holder: str) -> None:
    columns = claim_columns(type(row))
    unknown = (columns.claimed_at, columns.expires_at, columns.iteration)
    show([row], {columns.claimed_by: holder, **dict.fromkeys(unknown, models.DEFERRED)})
