"""The fenced write: a statement that changes claimed rows has their token in its WHERE, and its row count is compared.

Every verb that ends or changes claims goes through ``write_held``. Then ``finish`` updates the instances and sends the
signal.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connections, models
from django.dispatch import Signal

from django_taskclaim.claim import (
    Ended,
    attach,
    carried_claim,
    carried_claims,
    end_claims,
    standing,
    standing_claim,
)
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import Change, Key
from django_taskclaim.guard import show, show_written, told_apart
from django_taskclaim.querysets.lost_commits import judge_after_lost_commit
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.transactions import (
    alone,
    joins,
    may_stand_alone,
    no_transaction,
    transactionally,
)
from django_taskclaim.signals import send_after_commit
from django_taskclaim.states import Status, Token

Rows = Sequence[Any]

#: Claims whose rows one statement writes, at most: each adds to its text.
MOST_CLAIMS = 10

#: Given the rows just written, does what else belongs to their transaction.
Also = Callable[[ClaimTarget, list[Any]], None]


class Write(NamedTuple):
    """What one verb does to claimed rows."""

    #: Given the rows of one statement, what that sets; None where they are deleted.
    change: Callable[[ClaimTarget, Rows], Change] | None
    #: How many values of its own each row adds to the statement.
    per_row: int = 0
    also: Also | None = None
    #: The states in which this verb leaves a row under its token.
    finished: Collection[Status] = ()
    #: Whether rows are locked and nothing else: what is to be done, *also* does.
    only_locks: bool = False


class Statement(NamedTuple):
    """The rows of one table that one statement writes: those of each token, in key order."""

    target: ClaimTarget
    rows_of: list[tuple[Token, list[Any]]]

    @property
    def rows(self) -> list[Any]:
        """All rows, in the order of their tokens."""
        return [row for _, rows in self.rows_of for row in rows]

    def send(self, write: Write) -> list[Any] | None:
        """Write the rows that are still held and return them; None where the count was short and does not say which."""
        target, rows = self.target, self.rows
        claims = [(token, keys_of(same)) for token, same in self.rows_of]
        change = None if write.change is None else write.change(target, rows)
        keys = target.dialect.write_held(target.table, claims, change)
        return None if keys is None else with_keys(rows, keys)

    def locked(self) -> "Statement":
        """Lock the rows that are still held, and return the statement that writes those."""
        target = self.target
        held = [
            (
                token,
                with_keys(rows, target.dialect.lock_standing(target.table, token, keys_of(rows))),
            )
            for token, rows in self.rows_of
        ]
        return Statement(target, [(token, rows) for token, rows in held if rows])


# What a verb is given


def as_rows(rows: Any) -> list[Any]:
    """Return the rows given, one or many; TypeError for what is no instance of a claimable model."""
    found = [rows] if isinstance(rows, models.Model) else list(rows)
    for kind in set(map(type, found)):
        if not issubclass(kind, models.Model):
            wrong = next(row for row in found if type(row) is kind)
            raise TypeError(f"Expected rows of a model, not {wrong!r}.")
        claim_columns(kind)
    claimed = standing(found)
    if len(set(keys_of(claimed))) == len(claimed) == len(found):
        return found
    return _one_of_each(found)


def _one_of_each(rows: list[Any]) -> list[Any]:
    """Return one instance of each row; others of the same claim share it from now on, and read its columns again."""
    first: dict[Any, Any] = {}
    for row in rows:
        claim, columns = standing_claim(row), claim_columns(type(row))
        key = (claim.alias, columns.owner, claim.pk, claim.token) if claim else id(row)
        chosen = first.setdefault(key, row)
        if chosen is not row:
            attach(row, carried_claim(chosen))
            show([row], dict.fromkeys(columns.guarded, models.DEFERRED))
    return list(first.values())


def by_database(rows: Rows) -> list[list[Any]]:
    """Group rows that carry claims by database, in the same order for all: each database is a transaction of its own.

    What one has committed is noted on its rows before the next is written to, which may fail.
    """
    aliases = {claim.alias for claim in carried_claims(rows)}
    if len(aliases) < 2:
        return [list(rows)] if rows else []
    return [[row for row in rows if carried_claim(row).alias == one] for one in sorted(aliases)]


def keys_of(rows: Rows) -> list[Key]:
    """Return the keys under which *rows* were claimed."""
    return [claim.pk for claim in carried_claims(rows)]


def with_keys(rows: list[Any], keys: Sequence[Key]) -> list[Any]:
    """Return those of *rows* that were claimed under one of *keys*."""
    if len(keys) == len(rows):
        return rows
    found = set(keys)
    return [row for row in rows if carried_claim(row).pk in found]


# Writing


def statements(rows: Rows, per_row: int = 0, *, merge: bool = False) -> list[Statement]:
    """Return which statements write *rows*, of one database: one for each token and chunk.

    With *merge* one statement writes the rows of several claims, if it can write all. Tokens and keys are in order, so
    that two workers take row locks in the same order and cannot deadlock.
    """
    tables = {kind: claim_columns(kind).owner._meta.label for kind in set(map(type, rows))}
    groups: dict[Any, list[Any]] = {}
    for row, claim in zip(rows, carried_claims(rows), strict=True):
        # A proxy's rows are those of the same table.
        groups.setdefault((tables[type(row)], claim.token), []).append(row)
    found: list[Statement] = []
    for (_, token), same in sorted(groups.items(), key=itemgetter(0)):
        keys = keys_of(same)
        if keys != sorted(keys):
            same = [row for _, row in sorted(zip(keys, same, strict=True), key=itemgetter(0))]
        target = ClaimTarget.of(type(same[0]), carried_claim(same[0]).alias)
        for part in target.dialect.chunks(same, target.table, per_row):
            found.append(Statement(target, [(token, list(part))]))
    if merge and 1 < len(found) <= MOST_CLAIMS and len(set(tables.values())) == 1:
        target, keys = found[0].target, keys_of(rows)
        fits = len(keys) <= target.dialect.chunk_size(target.table, per_row)
        # Of a row that is there twice one claim is over: each statement tells of its own.
        if fits and len(set(keys)) == len(keys):
            return [Statement(target, [held for one in found for held in one.rows_of])]
    return found


def write_held(rows: Rows, write: Write) -> list[Any]:
    """Write the rows, of one database, whose claims stand and return them; nothing is raised for the others.

    One statement that needs no transaction commits by itself. Otherwise all are written in one transaction, and
    *also* runs in it with the rows just written.

    If the COMMIT of a transaction of ours was not answered, the rows tell what came of it: those in one of the states
    *finished* under their token count as written, those still held are written again, and those that have moved on
    are marked as undecided. A database that stays away is its own error; the next try begins by asking the rows.
    """
    return _write(rows, write, autocommit=True)


def _write(rows: Rows, write: Write, *, autocommit: bool) -> list[Any]:
    held, written = _asked(rows, write)
    if not held:
        return written
    parts = statements(held, write.per_row, merge=write.also is None)
    target = parts[0].target

    knows_keys = target.dialect.returns_updated

    def look_again(sent: list[Any]) -> list[Any]:
        for row in sent:
            carried_claim(row).unanswered = True
        # Not by itself again: a statement that its session does not survive would be sent for ever.
        return _write(sent, write, autocommit=False)

    is_plain = len(parts) == 1 and write.also is None and (knows_keys or len(held) == 1)
    if autocommit and is_plain and may_stand_alone(target):
        sent = alone(target, partial(parts[0].send, write), lambda: look_again(held))
        if sent is not None:
            return [*written, *sent]
    if not write.only_locks and (knows_keys or not joins(target)):
        try:
            return [*written, *transactionally(target, partial(_send, parts, write), look_again)]
        except _SomeAreLost:
            pass
    return [*written, *transactionally(target, partial(_send_locked, parts, write), look_again)]


class _SomeAreLost(Exception):
    """Fewer rows were written than were to be, and what was written must be rolled back: a count does not say which."""


def _send(parts: list[Statement], write: Write) -> list[Any]:
    sent: list[tuple[ClaimTarget, list[Any]]] = []
    for part in parts:
        rows = part.send(write)
        if rows is None:
            raise _SomeAreLost
        sent.append((part.target, rows))
    return _finished(sent, write)


def _send_locked(parts: list[Statement], write: Write) -> list[Any]:
    """Lock the rows that are still held, then write those."""
    sent: list[tuple[ClaimTarget, list[Any]]] = []
    for part in parts:
        locked = part.locked()
        if locked.rows_of and not write.only_locks:
            # The count says nothing more: a server may count none that it has not changed.
            locked.send(write)
        sent.append((part.target, locked.rows))
    return _finished(sent, write)


def _finished(sent: list[tuple[ClaimTarget, list[Any]]], write: Write) -> list[Any]:
    """Do what belongs to the same transaction, once nothing is rolled back any more, and return all rows."""
    for target, rows in sent:
        if write.also is not None and rows:
            write.also(target, rows)
    return [row for _, rows in sent for row in rows]


def _asked(rows: Rows, write: Write) -> tuple[list[Any], list[Any]]:
    """Return the rows that are to be written, and those that an earlier try has written without knowing it."""
    unsure = [
        row
        for row, claim in zip(rows, carried_claims(rows), strict=True)
        # Inside a transaction of the caller's the fence alone must do: nothing can be waited for there.
        if claim.unanswered and no_transaction(connections[claim.alias])
    ]
    if not unsure:
        return list(rows), []
    judged = judge_after_lost_commit(unsure, finished=write.finished)
    asked = set(map(id, unsure))
    sure = [row for row in rows if id(row) not in asked]
    return [*sure, *judged.still_held], judged.ours_complete


# What a write leaves behind


def finish(
    rows: Rows, how: Ended, status: Status, unknown: Sequence[str], signal: Signal, **facts: Any
) -> None:
    """Note on each instance how a verb has ended its claim, show its new state, and send *signal*.

    Columns of the roles *unknown* have values that only the database knows: they are read when asked for.
    """
    end_claims(carried_claims(rows), how)
    show_state(rows, status, *unknown)
    send_of_rows(signal, rows, **facts)


def show_state(rows: Rows, status: Status, *unknown: str) -> None:
    """Let instances show their new state; columns whose new value only the database knows are read when asked."""
    models_of: set[Any] = set(map(type, rows))
    for model in models_of:
        same: list[Any] = [row for row in rows if type(row) is model]
        show_written(same, *_values_in(model, status, unknown))


@cache
def _values_in(
    model: type[models.Model], status: Status, unknown: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    columns = claim_columns(model)
    values: dict[Any, Any] = {columns.status: status.value, columns.expires_at: None}
    if status == Status.OPEN:
        values |= {columns.claimed_by: None, columns.claimed_at: None}
    return told_apart(values | {getattr(columns, role): models.DEFERRED for role in unknown})


def send_of_rows(signal: Signal, rows: Rows, **facts: Any) -> None:
    """Send a signal about rows that carry claims, by model and database, once the current transaction has committed."""
    if not signal.receivers:
        return
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault((type(row), carried_claim(row).alias), []).append(row)
    for (model, alias), same in groups.items():
        send_after_commit(signal, model, alias, rows=same, **facts)


# Locking


def lock_free(rows: Rows) -> tuple[list[Any], list[Any]]:
    """Lock, in the current transaction, those claims that stand and that nobody else has locked.

    Returns the rows locked, and those that stand but are locked by somebody else; lost ones are in neither.
    """
    free: list[Any] = []
    busy: list[Any] = []
    for target, rows_of in statements(standing(rows)):
        ((token, same),) = rows_of
        locked = target.dialect.lock_standing(target.table, token, keys_of(same), wait=False)
        rest = [key for key in keys_of(same) if key not in set(locked)]
        free += with_keys(same, locked)
        busy += with_keys(same, target.dialect.still_standing(target.table, token, rest))
    return free, busy


def lock_claim(row: Any, using: str) -> bool:
    """Lock the row's claim in the current transaction and say whether it stands."""
    claim, target = carried_claim(row), ClaimTarget.of(type(row), using)
    return bool(target.dialect.lock_standing(target.table, claim.token, [claim.pk]))


def lock_claims(rows: Iterable[Any]) -> list[Any]:
    """Lock the claims of *rows* in the current transaction, and return the rows without one."""
    given = list(rows)
    held = {id(row) for part in statements(given) for row in part.locked().rows}
    return [row for row in given if id(row) not in held]
