"""The fenced write: a statement that changes claimed rows has their token in its WHERE, and its row count is compared.

Every verb that ends or changes claims goes through ``write``. ``Given.write`` then updates the instances and sends the
signal.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from django.db import models
from django.dispatch import Signal

from django_taskclaim.claim import (
    GIVEN_UP,
    Ended,
    attach,
    carried_claim,
    carried_claims,
    end_claims,
    standing_claim,
)
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import SKIP, WAIT, Change, Key, OwnValues
from django_taskclaim.guard import show
from django_taskclaim.querysets.assignments import Columns
from django_taskclaim.querysets.losses import judge_ambiguous_commit, raise_unless_all
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.transactions import (
    AmbiguousCommit,
    autocommit,
    can_autocommit,
    no_transaction,
    send,
)
from django_taskclaim.signals import send_of_rows
from django_taskclaim.states import Status, Token

Rows = Sequence[Any]

#: One statement writes the rows of so many claims at most: each adds to its text.
MOST_CLAIMS = 10


# What a verb is given


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows of one model under one token, in key order: so two workers take row locks alike and cannot deadlock."""

    target: ClaimTarget
    token: Token
    #: By the keys under which they were claimed.
    by_key: dict[Key, Any]

    @property
    def keys(self) -> list[Key]:
        return list(self.by_key)

    @property
    def rows(self) -> list[Any]:
        return list(self.by_key.values())

    def parts(self, per_row: int = 0) -> list["HeldRows"]:
        """Cut them into what one statement takes, with so many values *per_row*."""
        parts = self.target.dialect.chunks(self.keys, self.target.table, per_row)
        return [self if len(part) == len(self.by_key) else self.only(part) for part in parts]

    def standing(self, keys: Sequence[Key], lock: str = "") -> "HeldRows":
        """Read, or lock, those with one of *keys* whose claim stands, and return them."""
        table = self.target.table
        stand = self.target.dialect.select_keys(table, keys, table.standing(self.token), lock)
        return self.only(stand)

    def only(self, keys: Collection[Key]) -> "HeldRows":
        """Return those with one of *keys*."""
        found = set(keys)
        return replace(self, by_key={key: self.by_key[key] for key in self.by_key if key in found})


class Given:
    """The rows that a verb was given: one instance of each, and what of them carries a claim that was not ended."""

    def __init__(self, rows: Any) -> None:
        """Sort one row or many; TypeError for what is no instance of a claimable model."""
        given = [rows] if isinstance(rows, models.Model) else list(rows)
        for kind in set(map(type, given)):
            if not issubclass(kind, models.Model):
                wrong = next(row for row in given if type(row) is kind)
                raise TypeError(f"Expected rows of a model, not {wrong!r}.")
            claim_columns(kind)
        #: In the order in which they are written: by database, table and token.
        self.held, doubles = _sorted_by_token(given)
        self.rows = [row for row in given if id(row) not in doubles] if doubles else given
        self._written: list[Any] = []

    def write(self, held: Iterable[HeldRows], verb: "Write") -> None:
        """Write *held*, which are some of these rows, and let the instances show what *verb* has made of them.

        Each database is a transaction of its own. What one has committed is noted on its rows before the next is
        written to, which may fail.
        """
        for _, same in groupby(held, attrgetter("target.alias")):
            written = write(list(same), verb)
            _finish(written, verb)
            self._written += written

    def end(self) -> int:
        """Return how many rows were written; ClaimLost naming the others if these are not all."""
        if len(self._written) < len(self.rows):
            raise_unless_all(self.rows, self._written)
        return len(self._written)


def write_all(rows: object, verb: "Write") -> int:
    """Write one row or many, of any database, and return how many; ClaimLost naming those whose claim was lost."""
    given = Given(rows)
    given.write(given.held, verb)
    return given.end()


def rows_of(held: Iterable[HeldRows]) -> list[models.Model]:
    """Return all the rows."""
    return [row for one in held for row in one.by_key.values()]


def _sorted_by_token(given: Rows) -> tuple[list[HeldRows], set[int]]:
    """Group rows that carry claims; further instances of a row share the claim of the first, and are left out."""
    owners = {kind: claim_columns(kind).owner for kind in set(map(type, given))}
    groups: dict[tuple[str, type[models.Model], Token], dict[Key, models.Model]] = {}
    doubles: set[int] = set()
    for row in given:
        if (claim := standing_claim(row)) is None:
            continue
        by_key = groups.setdefault((claim.alias, owners[type(row)], claim.token), {})
        first = by_key.setdefault(claim.pk, row)
        if first is not row:
            attach(row, carried_claim(first))
            # What a verb writes, only the first shows.
            show([row], dict.fromkeys(claim_columns(type(row)).guarded, models.DEFERRED))
            doubles.add(id(row))
    found: list[HeldRows] = []
    for (alias, _, token), by_key in groups.items():
        ordered = {key: by_key[key] for key in sorted(by_key)}
        for model in dict.fromkeys(map(type, by_key.values())):
            same = {key: row for key, row in ordered.items() if type(row) is model}
            found.append(HeldRows(ClaimTarget.of(model, alias), token, same))
    found.sort(key=attrgetter("target.alias", "target.columns.owner._meta.label", "token"))
    return found, doubles


def keys_of(rows: Rows) -> list[Key]:
    """Return the keys under which *rows* were claimed."""
    return [claim.pk for claim in carried_claims(rows)]


# Writing


class Write:
    """What one verb does to claimed rows; one that does more than set columns overrides ``own_values`` and ``then``."""

    #: How many values of its own each row adds to the statement.
    per_row = 0
    #: Whether more than the statement belongs to the transaction: what ``then`` does.
    has_more = False
    #: Whether rows are deleted.
    deletes = False
    #: Whether rows are locked and nothing is written to them but by ``then``.
    only_locks = False
    #: Whether an error leaves the caller's transaction usable.
    savepoint = True

    def __init__(
        self, sets: Columns, signal: Signal | None = None, *, how: Ended = GIVEN_UP, **facts: object
    ) -> None:
        #: What the statement sets in all rows alike.
        self.sets = sets
        #: The columns that the instances show as changed.
        self.shown = sets
        #: How the verb ends their claims.
        self.how = how
        self.signal, self.facts = signal, facts

    def own_values(self, target: ClaimTarget, rows: Rows) -> Sequence[OwnValues]:
        """Return what the statement sets in each row."""
        return ()

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        """Do what belongs to the same transaction, with the rows of one table that were just written."""


def write(held: list[HeldRows], verb: Write) -> list[Any]:
    """Write rows, of one database, whose claims stand and return them; nothing is raised for the others.

    One statement that needs no transaction commits by itself. Otherwise all are written in one transaction.

    If the COMMIT was not answered, the rows tell its outcome: those in the verb's state under their token count
    as written, those still held are written again, and those that have moved on are marked as ambiguous. A database
    that stays away is its own error; the next try begins by asking the rows.
    """
    written: list[Any] = []
    may_autocommit = True
    while held:
        unsure = [claim for claim in carried_claims(rows_of(held)) if claim.unanswered]
        # Inside a transaction of the caller's the fence alone must do: nothing can be waited for there.
        if unsure and no_transaction(held[0].target.dialect.connection):
            held = _ask_unanswered(held, verb, written)
        try:
            return written + rows_of(_write(held, verb, may_autocommit) if held else [])
        except AmbiguousCommit as error:
            held = held if error.result is None else error.result
            for claim in carried_claims(rows_of(held)):
                claim.unanswered = True
            # Not by itself again: a statement that its session does not survive would be sent for ever.
            may_autocommit = False
    return written


def _write(held: list[HeldRows], verb: Write, may_autocommit: bool) -> list[HeldRows]:
    """Send what writes rows in the cheapest way there is, and return those written."""
    target, parts = held[0].target, _statements(held, verb)
    knows_keys = target.dialect.returns_updated
    is_plain = len(parts) == 1 and not verb.has_more and (knows_keys or len(rows_of(held)) == 1)
    if may_autocommit and is_plain and can_autocommit(target):
        sent = autocommit(target, _send, parts[0], verb)
        if sent is not None:
            return sent
    block = partial(target.dialect.own_transaction, savepoint=verb.savepoint)
    # What is written without knowing which rows is rolled back, which takes a savepoint.
    if not verb.only_locks and (knows_keys or verb.savepoint):
        with suppress(_SomeAreLost):
            return send(target, partial(_send_all, parts, verb), block)
    return send(target, partial(_send_all, parts, verb, lock=True), block)


class _SomeAreLost(Exception):
    """Fewer rows were written than were to be, and what was written must be rolled back: a count does not say which."""


def _statements(held: list[HeldRows], verb: Write) -> list[list[HeldRows]]:
    """Return the rows that each statement writes: those of several claims in one, where it takes all of them."""
    parts = [part for one in held for part in one.parts(verb.per_row)]
    if verb.has_more or not 1 < len(parts) <= MOST_CLAIMS:
        return [[part] for part in parts]
    target, keys = held[0].target, [key for one in held for key in one.by_key]
    fits = len(keys) <= target.dialect.chunk_size(target.table, verb.per_row)
    is_one_model = all(one.target.model is target.model for one in held)
    # Of a row that is there twice one claim is over: each statement tells of its own.
    if fits and is_one_model and len(set(keys)) == len(keys):
        return [held]
    return [[part] for part in parts]


def _send_all(parts: list[list[HeldRows]], verb: Write, *, lock: bool = False) -> list[HeldRows]:
    """Write the rows of each statement; with *lock* those that are still held once they are locked."""
    written: list[HeldRows] = []
    for part in parts:
        sent: list[HeldRows] | None
        if lock:
            locked = [one.standing(one.keys, WAIT) for one in part]
            sent = [one for one in locked if one.by_key]
            if sent and not verb.only_locks:
                # The count says nothing more: a server may count none that it has not changed.
                _send(sent, verb)
        else:
            sent = _send(part, verb)
        if sent is None:
            raise _SomeAreLost
        written += sent
    # Nothing is rolled back any more.
    for one in written if verb.has_more else ():
        if one.by_key:
            verb.then(one.target, one.rows)
    return written


def _send(part: list[HeldRows], verb: Write) -> list[HeldRows] | None:
    """Send one statement and return the rows written; None where the count was short and does not say which."""
    target = part[0].target
    change = None
    if not verb.deletes:
        change = Change(target.setting(verb.sets), verb.own_values(target, rows_of(part)))
    claims = [(one.token, one.keys) for one in part]
    keys = target.dialect.write_held(target.table, claims, change)
    if keys is None or len(keys) == sum([len(one.by_key) for one in part]):
        return None if keys is None else part
    return [one.only(keys) for one in part]


def _ask_unanswered(
    held: list[HeldRows], verb: Write, written: list[models.Model]
) -> list[HeldRows]:
    """Return the rows that are still to be written; what an earlier try has written goes to *written*."""
    unsure = [row for row in rows_of(held) if carried_claim(row).unanswered]
    judged = judge_ambiguous_commit(unsure, finished=verb.sets.get("status"))
    written += judged.committed
    # By instance: of a row that is there twice one claim is over, and the other may stand.
    settled = {id(row) for row in (*judged.committed, *judged.ambiguous)}
    left = [
        one.only([key for key, row in one.by_key.items() if id(row) not in settled]) for one in held
    ]
    return [one for one in left if one.by_key]


# What a write leaves behind


def _finish(rows: Rows, verb: Write) -> None:
    end_claims(carried_claims(rows), verb.how)
    show_state(rows, verb.shown)
    if verb.signal is not None and verb.signal.receivers:
        send_of_rows(verb.signal, rows, **verb.facts)


#: What instances show of a value that is known without the database.
_SHOWN: dict[Any, str | None] = {None: None, **{status: status.value for status in Status}}


def show_state(rows: Rows, columns: Columns) -> None:
    """Let instances show their new state; columns whose new value only the database knows are read when asked."""
    models_of: set[Any] = set(map(type, rows))
    for model in models_of:
        ours = claim_columns(model)
        values = {
            getattr(ours, role): _SHOWN.get(to, models.DEFERRED) for role, to in columns.items()
        }
        show([row for row in rows if type(row) is model], values)


# Locking


def lock_free(rows: Rows) -> tuple[list[Any], list[Any]]:
    """Lock, in the current transaction, those claims that stand and that nobody else has locked.

    Returns the rows locked, and those that stand but are locked by somebody else; lost ones are in neither.
    """
    free: list[Any] = []
    busy: list[Any] = []
    for held in (part for one in Given(rows).held for part in one.parts()):
        locked = held.standing(held.keys, SKIP)
        free += locked.rows
        busy += held.standing([key for key in held.by_key if key not in locked.by_key]).rows
    return free, busy


def lock_claim(row: models.Model, using: str) -> bool:
    """Lock the row's claim in the current transaction and say whether it stands."""
    claim, target = carried_claim(row), ClaimTarget.of(type(row), using)
    fence = target.table.standing(claim.token)
    return bool(target.dialect.select_keys(target.table, [claim.pk], fence, WAIT))


def lock_claims(rows: Iterable[models.Model]) -> list[models.Model]:
    """Lock the claims of *rows* in the current transaction, and return the rows without one."""
    given = list(rows)
    parts = [part for one in Given(given).held for part in one.parts()]
    held = rows_of([part.standing(part.keys, WAIT) for part in parts])
    # By claim: instances of one row share it, and only the first of them is asked about.
    standing = set(map(id, carried_claims(held)))
    return [row for row in given if id(carried_claim(row)) not in standing]
