"""Verbs over querysets: what operators call, and what becomes of claims whose lease has ended.

They lock keys first, never wait, and commit chunk by chunk.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.db import models, transaction
from django.db.models import Max, Q
from django.db.models.deletion import Collector

from django_taskclaim import conf
from django_taskclaim.claim import checked_name
from django_taskclaim.columns import has_ranges
from django_taskclaim.db import DatabaseLater
from django_taskclaim.db.notify import call_workers
from django_taskclaim.db.sql import SKIP, SQL, Change, Key, sql
from django_taskclaim.error_text import text_to_store
from django_taskclaim.fields import (
    NEVER_WAITED,
    QUARANTINED,
    before_marks,
    is_quarantine_mark,
    is_unstarted_mark,
)
from django_taskclaim.formatting import counted
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import scope
from django_taskclaim.querysets.isolating import send_around
from django_taskclaim.querysets.scope import ClaimTarget, Columns, Rows, run
from django_taskclaim.querysets.writes import Write, store_text
from django_taskclaim.signals import (
    rows_expired,
    rows_handed_over,
    send_acted_on,
    send_after_commit,
)
from django_taskclaim.states import WORKER_MARK, Status

logger = logging.getLogger("django_taskclaim")

Lease = float | timedelta | None

#: The error class of a row that an operator failed with a text, not with an exception.
OPERATOR = "FailedByOperator"

#: So many keys are read at once, for SQLite sorts all rows that match to return the first ones.
KEYS_AT_ONCE = 50_000

#: Called after each chunk's commit with the number of rows written so far.
Progressed = Callable[[int], None]


# Chunk by chunk


class LockedRow(NamedTuple):
    """One row as it was read under the lock."""

    key: Key
    status: str
    claimed_by: str | None
    #: How many tries have failed; a model without ``attempts`` counts how often the row was put back.
    tried: int
    not_before: datetime | None = None


class BulkVerb:
    """What one verb does to the rows of a queryset."""

    def condition(self, target: ClaimTarget) -> Q:
        """Return which rows it is about."""
        raise NotImplementedError

    def outcome(self, target: ClaimTarget, row: LockedRow) -> str:
        """Return what becomes of a row, as it was read under the lock; rows with one outcome are written together."""
        return ""

    def write(self, target: ClaimTarget, rows: list[LockedRow], outcome: str) -> int:
        """Write rows that the open transaction has locked, repeating the condition, and return how many it wrote."""
        raise NotImplementedError


def in_chunks(
    queryset: Rows, verb: BulkVerb, limit: int | None = None, progress: Progressed | None = None
) -> int:
    """Find rows in the order of their keys; lock, write and commit them chunk by chunk, and return how many.

    *limit* bounds how many; *progress* hears of each chunk. Rows that another transaction has locked are left alone,
    and a few that the database refuses to have written, each with an ERROR in the log. Inside a caller's transaction
    all chunks are part of it.
    """
    conf.NUMBER_OR_NONE.check(limit, "limit")
    target = ClaimTarget.over(queryset)
    table = target.table
    rows = target.rows_of(queryset).filter(verb.condition(target))
    condition = table.where_of(rows)
    if condition is None:
        return 0

    def write(keys: Sequence[Key]) -> int:
        matching = sql("{} AND {}", table.keyed(keys), table.beside_key(condition))
        return run(target, partial(_write_chunk, target, matching, verb))

    left = rows = rows.order_by(*[field.attname for field in target.columns.key])
    size = min(conf.setting("CHUNK_SIZE"), target.dialect.chunk_size(table))
    total = 0
    while limit is None or total < limit:
        most = KEYS_AT_ONCE if limit is None else min(KEYS_AT_ONCE, limit - total)
        keys = list(left.values_list("pk", flat=True)[:most])
        for start in range(0, len(keys), size):
            for written in send_around(target, keys[start : start + size], write):
                total += written
            if progress is not None:
                progress(total)
        if len(keys) < most:
            break
        left = rows.filter(pk__gt=keys[-1])
    return total


def _write_chunk(target: ClaimTarget, matching: SQL, verb: BulkVerb) -> int:
    """Lock the rows that match and that nobody else has locked, and write them."""
    columns, table = target.columns, target.table
    tried = columns.attempts or columns.iteration
    waits = [] if columns.not_before is None else [columns.not_before]
    fields = [*columns.key, columns.status, columns.claimed_by, tried, *waits]
    by_outcome: dict[str, list[LockedRow]] = {}
    for values in target.dialect.select(table, fields, matching, SKIP):
        row = LockedRow(table.key_of(values), *values[len(table.key) :])
        by_outcome.setdefault(verb.outcome(target, row), []).append(row)
    return sum(verb.write(target, rows, outcome) for outcome, rows in by_outcome.items())


def write_locked(
    target: ClaimTarget, keys: Sequence[Key], condition: Q, sets: Columns | None
) -> int:
    """Write, or delete (None), a chunk of rows that this transaction has locked, and return how many.

    The statement repeats the condition of the SELECT.
    """
    repeated = target.table.where_of(target.rows.order_by().filter(condition))
    assert repeated is not None, "rows were found by it"
    change = None if sets is None else Change(target.setting(sets))
    return target.dialect.write(target.table, keys, change, target.table.beside_key(repeated))


# Changes of state


@dataclass(frozen=True, kw_only=True)
class StateChange(BulkVerb):
    """Brings rows from some states into another one."""

    #: How signals and the audit name it.
    act: str
    states: Sequence[Status]
    sets: Columns
    #: Whether workers find rows to claim afterwards.
    opens: bool = False
    #: Rows of this holder stay as they are.
    except_held_by: str = ""
    #: What the signal carries beside the keys and the act.
    facts: Mapping[str, str] = field(default_factory=dict)
    #: Class and text of an error, of which the rows keep as much as the database stores.
    error: tuple[str, str] | None = None

    def condition(self, target: ClaimTarget) -> Q:
        columns = target.columns
        found, name = scope.in_state(columns, *self.states), self.except_held_by
        return found & ~Q(**{columns.claimed_by.name: name}) if name else found

    def write(self, target: ClaimTarget, rows: list[LockedRow], outcome: str) -> int:
        keys, sets = [row.key for row in rows], {**self.sets, **_RESETS.get(outcome, {})}
        write = partial(write_locked, target, keys, self.condition(target))

        def write_as(name: str, text: str) -> int:
            stored = {**sets, "error_class": name, "last_error": text}
            return run(target, partial(write, stored))

        # The text is tried here: a text that no row can store must not be taken for rows that are refused.
        written = write(sets) if self.error is None else store_text(write_as, self.error, OPERATOR)
        if written:
            send_acted_on(target.model, target.alias, keys, self.act, **self.facts)
            if self.opens:
                call_workers(target.columns.owner, target.alias)
        return written


PAUSE = StateChange(act="paused", states=[Status.OPEN], sets={"status": Status.PAUSED})
# A token from before the pause must not stand again.
RESUME = StateChange(act="resumed", states=[Status.PAUSED], sets=scope.OPEN_AGAIN, opens=True)
TAKE_BACK = StateChange(
    act="taken back", states=[Status.PROCESSING], sets=scope.OPEN_AGAIN, opens=True
)


class RunAt(StateChange):
    """Makes rows due that wait; those that are claimed alone keep their mark."""

    def condition(self, target: ClaimTarget) -> Q:
        columns = target.columns
        found = super().condition(target) & scope.is_waiting(columns)
        if columns.not_before is None or not has_ranges(columns.owner):
            return found
        # A range that nobody has worked on may wait for rows that are committed late.
        has_failed = {} if columns.attempts is None else {f"{columns.attempts.name}__gt": 0}
        return found & (Q(checkpoint__isnull=False) | Q(**has_failed))


def run_at(at: datetime | None) -> StateChange:
    """Return what makes waiting rows due at a moment, or with None now."""
    if at is not None and at.year <= NEVER_WAITED.year:
        # Long due, and the row would count as one that never waited. The first years of all have no moment in UTC.
        at = None
    sets = {"not_before": scope.NOW if at is None else before_marks(at)}
    return RunAt(act="rescheduled", states=[Status.OPEN], sets=sets, opens=True)


def _states(*always: Status, complete: bool, running: bool) -> list[Status]:
    """Return the states *always* meant, and those that a caller has to name."""
    named = {Status.COMPLETE: complete, Status.PROCESSING: running}
    return [*always, *[status for status, is_named in named.items() if is_named]]


#: What a reset makes of rows beside, by outcome.
_RESETS: dict[str, Columns] = {
    "due": {"not_before": NEVER_WAITED},
    "from the start": {"not_before": NEVER_WAITED, "checkpoint": None, "rows_done": 0},
}


class Reset(StateChange):
    """Makes rows as good as new, but for their iteration."""

    def outcome(self, target: ClaimTarget, row: LockedRow) -> str:
        """A complete range begins again, any other goes on behind what was committed.

        A range that nobody has held yet may wait for rows that are committed late.
        """
        if not has_ranges(target.columns.owner):
            return "due"
        if row.status == Status.COMPLETE:
            return "from the start"
        return "waits" if row.claimed_by is None else "due"


def reset(*, complete: bool, running: bool) -> StateChange:
    """Return the reset of failed rows, and of those in the states that are named."""
    states = _states(Status.FAILED, complete=complete, running=running)
    sets = {**scope.AS_NEW, "completed_at": None, **scope.OPEN_AGAIN}
    return Reset(act="reset", states=states, sets=sets, opens=True)


def fail_rows(error: BaseException | str, *, complete: bool, running: bool) -> StateChange:
    """Return what fails rows by an operator's word, without charging a try."""
    error_class, text = text_to_store(error)
    return StateChange(
        act="failed",
        states=_states(Status.OPEN, Status.PAUSED, complete=complete, running=running),
        sets={**scope.FAILED, "completed_at": None, "iteration": scope.ONE_MORE},
        error=(error_class or OPERATOR, text),
    )


# Other holders


def take_over(model: type[models.Model], by: str, reason: str, lease: Lease) -> StateChange:
    """Return what lets *by* hold what others hold."""
    holder = checked_name(by, "by")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("take_over() needs a reason, for those who lose the rows.")
    return StateChange(
        act="taken over",
        states=[Status.PROCESSING],
        sets=_held_by(holder, model, lease),
        except_held_by=holder,
        facts={"by": holder, "reason": reason.strip()},
    )


def _held_by(holder: str, model: type[models.Model], lease: Lease) -> Columns:
    """Return what makes a row a claim of *holder* that nobody else has the token of."""
    duration = policy_for(model).lease if lease is None else conf.DURATION.check(lease, "lease")
    token = {"claimed_by": holder, "iteration": scope.ONE_MORE}
    return {**token, "claimed_at": scope.NOW, "expires_at": duration}


def hand_over(model: type[models.Model], to: str, lease: Lease) -> Write:
    """Return what gives rows to another holder, as claims of their own."""
    sets = _held_by(checked_name(to, "to"), model, lease)
    return Write(sets=sets, signal=rows_handed_over, facts={"to": to})


# Deleting rows


def can_fast_delete(target: ClaimTarget) -> bool:
    """Say whether nothing goes with a row that is deleted, no signal is sent of it, and it has one table."""
    rows: Rows = models.QuerySet(target.model, using=target.alias)
    return Collector(using=target.alias).can_fast_delete(rows)


def delete_locked(target: ClaimTarget, keys: Sequence[Key], condition: Q) -> int:
    """Delete rows that this transaction has locked and that still match, as Django does, and return how many."""
    if can_fast_delete(target):
        return write_locked(target, keys, condition, None)
    rows: Rows = models.QuerySet(target.model, using=target.alias)
    path = target.columns.key_path(target.model)
    _, by_model = rows.filter(condition, **{f"{path}__in": keys}).delete()
    return by_model.get(target.model._meta.label, 0)


@dataclass(frozen=True)
class Delete(BulkVerb):
    """Deletes rows that have failed, or with *older_than* those that have been complete for so long."""

    older_than: timedelta | None = None

    def condition(self, target: ClaimTarget) -> Q:
        """Of ranges the last one stays: what is planned next begins where it ends, or all over again."""
        columns = target.columns
        found = scope.in_state(columns, Status.FAILED)
        if self.older_than is not None:
            if columns.completed_at is None:
                raise TypeError(
                    f"{target.model.__name__} has no completed_at, so nobody knows how long its rows have been"
                    " complete; add CompletedAtMixin."
                )
            ended = {f"{columns.completed_at.name}__lt": DatabaseLater(-self.older_than)}
            found = scope.in_state(columns, Status.COMPLETE) & Q(**ended)
        if not has_ranges(target.model):
            return found
        # Read first, since MySQL cannot delete by a subquery on the same table. Later ranges stand behind it.
        last = target.rows.aggregate(last=Max("position"))["last"]
        return found if last is None else found & Q(position__lt=last)

    def write(self, target: ClaimTarget, rows: list[LockedRow], outcome: str) -> int:
        keys, condition = [row.key for row in rows], self.condition(target)
        # Where Django's DELETE of many keys might wait for rows that others have locked, rows are deleted one by one.
        may_wait = target.dialect.walks_small_tables and not can_fast_delete(target)
        parts = [[key] for key in keys] if may_wait else [keys]
        gone = sum(delete_locked(target, part, condition) for part in parts)
        if gone:
            act = "deleted" if self.older_than is None else "pruned"
            send_acted_on(target.model, target.alias, keys, act)
        return gone


# Claims whose lease has ended

_WORKER_DIED = (
    "The lease ran out on the last try: the worker died, hung or was cut off while this row ran."
)
#: What the log and a history say of rows whose lease has ended, and what is written to them, by outcome.
OUTCOMES: dict[str, tuple[str, Columns]] = {
    "uncharged": ("put back, no try counted", scope.OPEN_AGAIN),
    "charged": ("put back, one try counted", {**scope.OPEN_AGAIN, "attempts": scope.ONE_MORE}),
    "quarantined": (
        "put back for the last try, to be claimed alone",
        {**scope.OPEN_AGAIN, "not_before": QUARANTINED},
    ),
    "failed": (
        "failed, no try is left",
        {
            **scope.FAILED,
            "attempts": scope.ONE_MORE,
            "error_class": "LeaseExpired",
            "last_error": _WORKER_DIED,
        },
    ),
}


@dataclass(frozen=True)
class ReleaseExpired(BulkVerb):
    """Puts back, or fails, rows whose lease has ended, by the *cutoff* if there is one."""

    cutoff: datetime | None = None

    def condition(self, target: ClaimTarget) -> Q:
        return scope.is_expired(target.columns, self.cutoff)

    def outcome(self, target: ClaimTarget, row: LockedRow) -> str:
        """Say what an expired claim makes of its row: ``uncharged``, ``charged``, ``quarantined`` or ``failed``."""
        if WORKER_MARK not in (row.claimed_by or "") or is_unstarted_mark(row.not_before):
            return "uncharged"
        if row.tried + 1 < policy_for(target.model).max_attempts:
            return "charged"
        if target.columns.not_before is None or is_quarantine_mark(row.not_before):
            return "failed"
        return "quarantined"

    def write(self, target: ClaimTarget, rows: list[LockedRow], outcome: str) -> int:
        keys, (words, sets) = [row.key for row in rows], OUTCOMES[outcome]
        written = write_locked(target, keys, scope.is_expired(target.columns), sets)
        if not written:
            return 0
        holders, label = [row.claimed_by for row in rows], target.model._meta.label
        facts: dict[str, object] = {"keys": keys, "outcome": outcome, "holders": holders}
        send_after_commit(rows_expired, target.model, target.alias, **facts)
        level = logging.ERROR if outcome == "failed" else logging.WARNING
        what = counted(written, "row"), label, words
        extra = {"event": "expired", "outcome": outcome, "model": label, "rows": written}
        extra["keys"] = [str(key) for key in keys]
        log = partial(logger.log, level, "%s of %s expired: %s", *what, extra=extra)
        transaction.on_commit(log, using=target.alias, robust=True)
        return written
