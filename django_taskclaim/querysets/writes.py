"""The fenced write: a statement that changes claimed rows has their token in its WHERE, and its row count is compared.

Every verb that ends or changes claims goes through ``Given.write``, which then updates the instances and sends the
signal.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

from django.db import models
from django.dispatch import Signal

from django_taskclaim.claim import (
    GIVEN_UP,
    Ended,
    attach,
    carried_claim,
    carried_claims,
    claim_of,
    clock,
    end_claims,
    show,
    standing_claim,
)
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import SKIP, WAIT, Change, Key, OwnValues
from django_taskclaim.error_text import redact
from django_taskclaim.exceptions import ClaimLost, CommitUnknown
from django_taskclaim.querysets.isolating import RefusedRows
from django_taskclaim.querysets.scope import NOW, ClaimTarget, Columns
from django_taskclaim.querysets.transactions import (
    AmbiguousCommit,
    autocommit,
    can_autocommit,
    in_transaction,
    judge_ambiguous_commit,
    no_transaction,
    send,
)
from django_taskclaim.signals import claim_lost, rows_renewed, send_of_rows
from django_taskclaim.states import Status, Token

logger = logging.getLogger("django_taskclaim")

Rows = Sequence[models.Model]

#: One statement writes the rows of at most so many claims: each claim adds to its text.
MOST_CLAIMS = 10


# What a verb is given


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows of one model under one token, in key order: so two workers take row locks alike and cannot deadlock."""

    target: ClaimTarget
    token: Token
    #: The keys under which they were claimed, and the instance of each.
    keys: list[Key]
    rows: list[models.Model]

    def parts(self, per_row: int = 0) -> list["HeldRows"]:
        """Cut them into what one statement takes, with so many values *per_row*."""
        size, count = self.target.dialect.chunk_size(self.target.table, per_row), len(self.keys)
        cuts = [slice(start, start + size) for start in range(0, count, size)]
        return [replace(self, keys=self.keys[cut], rows=self.rows[cut]) for cut in cuts]

    def standing(self, keys: Sequence[Key], lock: str = "") -> "HeldRows":
        """Read, or lock, those with one of *keys* whose claim stands, and return them."""
        table = self.target.table
        stand = self.target.dialect.select_keys(table, keys, table.standing(self.token), lock)
        return self.only(stand)

    def only(self, keys: Collection[Key]) -> "HeldRows":
        """Return those with one of *keys*."""
        found, by_key = set(keys), dict(zip(self.keys, self.rows, strict=True))
        kept = [key for key in self.keys if key in found]
        return replace(self, keys=kept, rows=[by_key[key] for key in kept])


class Given:
    """The rows that a verb was given: one instance of each, and what of them carries a claim that was not ended."""

    def __init__(self, rows: Any) -> None:
        """Sort one row or many; TypeError for what is no instance of a claimable model."""
        given = [rows] if isinstance(rows, models.Model) else list(rows)
        owners: dict[Any, type[models.Model]] = {}
        for kind in set(map(type, given)):
            if not issubclass(kind, models.Model):
                wrong = next(row for row in given if type(row) is kind)
                raise TypeError(f"Expected rows of a model, not {wrong!r}.")
            owners[kind] = claim_columns(kind).owner
        #: One instance of each row. Other instances of the row share its claim, and show nothing of what a verb writes.
        self.rows: list[models.Model] = []
        firsts: dict[Any, models.Model] = {}
        groups: dict[Any, dict[Key, models.Model]] = {}
        for row in given:
            kind = type(row)
            if (claim := standing_claim(row)) is not None:
                of_token = claim.alias, owners[kind], claim.token
                first = firsts.setdefault((*of_token, claim.pk), row)
                if first is not row:
                    attach(row, carried_claim(first))
                    show([row], dict.fromkeys(claim_columns(kind).guarded, models.DEFERRED))
                    continue
                groups.setdefault((*of_token, kind), {})[claim.pk] = row
            self.rows.append(row)
        held: list[HeldRows] = []
        for (alias, _, token, kind), by_key in groups.items():
            keys = sorted(by_key)
            rows = [by_key[key] for key in keys]
            held.append(HeldRows(ClaimTarget.of(kind, alias), token, keys, rows))
        #: Sorted by database, table and token, the order in which they are written.
        self.held = sorted(
            held, key=attrgetter("target.alias", "target.columns.owner._meta.label", "token")
        )
        self._written: list[models.Model] = []

    def write(self, held: Iterable[HeldRows], verb: "Write") -> None:
        """Write *held*, which are some of these rows, and let the instances show what *verb* has made of them.

        Each database is a transaction of its own. What one has committed is noted on its rows before the next is
        written to, which may fail.
        """
        for _, same in groupby(held, attrgetter("target.alias")):
            written = _write(list(same), verb)
            if verb.how is not None:
                end_claims(carried_claims(written), verb.how)
                show_state(written, verb.shown)
            if verb.signal is not None and verb.signal.receivers:
                send_of_rows(verb.signal, written, **verb.facts)
            self._written += written

    def end(self) -> int:
        """Return how many rows were written; ClaimLost naming the others if these are not all."""
        written = set(map(id, self._written))
        if lost := [row for row in self.rows if id(row) not in written]:
            raise_lost(lost, self._written)
        return len(self._written)


def write_all(rows: object, verb: "Write") -> int:
    """Write one row or many, of any database, and return how many; ClaimLost naming those whose claim was lost."""
    given = Given(rows)
    given.write(given.held, verb)
    return given.end()


def rows_of(held: Iterable[HeldRows]) -> list[models.Model]:
    """Return all the rows."""
    return [row for one in held for row in one.rows]


# Writing


class Write:
    """What one verb does to claimed rows; one that does more than set columns overrides ``own_values`` and ``then``."""

    #: How many values of its own each row adds to the statement.
    per_row = 0
    #: Whether ``then`` writes more in the same transaction.
    has_more = False
    #: Whether rows are deleted.
    deletes = False
    #: Whether the statement only locks the rows, and ``then`` writes them.
    only_locks = False
    #: Whether an error leaves the caller's transaction usable.
    savepoint = True

    def __init__(
        self,
        sets: Columns,
        signal: Signal | None = None,
        *,
        how: Ended | None = GIVEN_UP,
        **facts: object,
    ) -> None:
        #: What the statement sets in all rows alike.
        self.sets = sets
        #: The columns that the instances show as changed.
        self.shown = sets
        #: How the verb ends the claims; None if they go on and the instances show no change.
        self.how = how
        self.signal, self.facts = signal, facts

    def own_values(self, target: ClaimTarget, rows: Rows) -> Sequence[OwnValues]:
        """Return what the statement sets in each row."""
        return ()

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        """Do what belongs to the same transaction, with the rows of one table that were just written."""


def _write(held: list[HeldRows], verb: Write) -> list[models.Model]:
    """Write rows, of one database, whose claims stand and return them; nothing is raised for the others.

    One statement that needs no transaction commits by itself. Otherwise all are written in one transaction.

    If the COMMIT was not answered, the rows tell its outcome: those in the verb's state under their token count
    as written, those still held are written again, and those that have moved on are marked as ambiguous. A database
    that stays away is its own error; the next try begins by asking the rows.
    """
    written: list[models.Model] = []
    may_autocommit = True
    while held:
        unsure = [claim for claim in carried_claims(rows_of(held)) if claim.unanswered]
        # Inside the caller's transaction nothing can be waited for. The fence is enough there.
        if unsure and no_transaction(held[0].target.dialect.connection):
            held = _ask_unanswered(held, verb, written)
        try:
            return written + rows_of(_send_all(held, verb, may_autocommit) if held else [])
        except AmbiguousCommit as error:
            held = held if error.result is None else error.result
            for claim in carried_claims(rows_of(held)):
                claim.unanswered = True
            # The next try is a transaction: a statement that ends its session would be sent for ever.
            may_autocommit = False
    return written


def _send_all(held: list[HeldRows], verb: Write, may_autocommit: bool) -> list[HeldRows]:
    """Write rows in the cheapest way, and return the rows written."""
    target, parts = held[0].target, _statements(held, verb)
    knows_keys = target.dialect.returns_updated
    is_plain = len(parts) == 1 and not verb.has_more and (knows_keys or len(rows_of(held)) == 1)
    if may_autocommit and is_plain and can_autocommit(target):
        sent = autocommit(target, _send, parts[0], verb)
        if sent is not None:
            return sent
    block = partial(target.dialect.own_transaction, savepoint=verb.savepoint)
    # If the count is short and does not say which rows were written, they are rolled back, which needs a savepoint.
    if not verb.only_locks and (knows_keys or verb.savepoint):
        with suppress(_SomeAreLost):
            return send(target, partial(_send_parts, parts, verb), block)
    return send(target, partial(_send_parts, parts, verb, lock=True), block)


class _SomeAreLost(Exception):
    """Fewer rows were written than were to be, and what was written must be rolled back: a count does not say which."""


def _statements(held: list[HeldRows], verb: Write) -> list[list[HeldRows]]:
    """Return the rows of each statement; one statement writes the rows of several claims, if it can take them all."""
    parts = [part for one in held for part in one.parts(verb.per_row)]
    if verb.has_more or not 1 < len(parts) <= MOST_CLAIMS:
        return [[part] for part in parts]
    target, keys = held[0].target, [key for one in held for key in one.keys]
    fits = len(keys) <= target.dialect.chunk_size(target.table, verb.per_row)
    is_one_model = all(one.target.model is target.model for one in held)
    # If a row is there twice, one of the claims is over. Two statements tell which.
    if fits and is_one_model and len(set(keys)) == len(keys):
        return [held]
    return [[part] for part in parts]


def _send_parts(parts: list[list[HeldRows]], verb: Write, *, lock: bool = False) -> list[HeldRows]:
    """Write the rows of each statement; with *lock* the rows are locked first, and only held ones are written."""
    written: list[HeldRows] = []
    for part in parts:
        sent: list[HeldRows] | None
        if lock:
            locked = [one.standing(one.keys, WAIT) for one in part]
            sent = [one for one in locked if one.keys]
            if sent and not verb.only_locks:
                # The rows are locked, so the count does not matter: a server may not count a row that has not changed.
                _send(sent, verb)
        else:
            sent = _send(part, verb)
        if sent is None:
            raise _SomeAreLost
        written += sent
    # From here on nothing is rolled back.
    for one in written if verb.has_more else ():
        if one.keys:
            verb.then(one.target, one.rows)
    return written


def _send(part: list[HeldRows], verb: Write) -> list[HeldRows] | None:
    """Send one statement and return the rows written; None where the count was short and does not say which."""
    target = part[0].target
    change = None
    if not verb.deletes:
        own = verb.own_values(target, rows_of(part)) if verb.per_row else ()
        change = Change(target.setting(verb.sets), own)
    claims = [(one.token, one.keys) for one in part]
    keys = target.dialect.write_held(target.table, claims, change)
    if keys is None or len(keys) == sum([len(one.keys) for one in part]):
        return None if keys is None else part
    return [one.only(keys) for one in part]


def _ask_unanswered(
    held: list[HeldRows], verb: Write, written: list[models.Model]
) -> list[HeldRows]:
    """Return the rows that are still to be written; what an earlier try has written goes to *written*."""
    unsure = [row for row in rows_of(held) if carried_claim(row).unanswered]
    judged = judge_ambiguous_commit(unsure, finished=verb.sets.get("status"))
    written += judged.committed
    # Instances are compared: if a row is there twice, one claim is over and the other may stand.
    settled = {id(row) for row in (*judged.committed, *judged.ambiguous)}
    return Given([row for row in rows_of(held) if id(row) not in settled]).held


# What a write leaves behind

#: Values that are known without the database, as instances show them.
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


def lock_free(rows: Rows) -> tuple[list[models.Model], list[models.Model]]:
    """Lock, in the current transaction, those claims that stand and that nobody else has locked.

    Returns the rows locked, and those that stand but are locked by somebody else; lost ones are in neither.
    """
    free: list[models.Model] = []
    busy: list[models.Model] = []
    for held in (part for one in Given(rows).held for part in one.parts()):
        locked = held.standing(held.keys, SKIP)
        free += locked.rows
        busy += held.standing(sorted(set(held.keys).difference(locked.keys))).rows
    return free, busy


def lock_claims(rows: Iterable[models.Model]) -> list[models.Model]:
    """Lock the claims of *rows* in the current transaction, and return the rows without one."""
    given = list(rows)
    parts = [part for one in Given(given).held for part in one.parts()]
    held = rows_of([part.standing(part.keys, WAIT) for part in parts])
    # Claims are compared: instances of one row share the claim, and only the first is asked about.
    standing = set(map(id, carried_claims(held)))
    return [row for row in given if id(carried_claim(row)) not in standing]


# Claims that stand no more


def raise_lost(lost: Sequence[models.Model], written: Sequence[models.Model]) -> NoReturn:
    """Log, send as a signal and raise which claims stand no more; CommitUnknown where a COMMIT is ambiguous."""
    ambiguous: list[models.Model] = []
    for row in lost:
        if (claim := claim_of(row)) is not None:
            claim.lost = True
            ambiguous += [row] if claim.ambiguous else []
    reason = _why_none_is_carried(lost)
    error = ClaimLost(lost, written, reason=reason)
    if ambiguous:
        error = CommitUnknown(lost, written, ambiguous, reason=reason)
    _log(error)
    send_of_rows(claim_lost, lost)
    raise error


def _log(error: ClaimLost) -> None:
    """Log the losses that are not in the log yet, and will not be once their worker learns of them."""
    rows = [
        row
        for row in error.lost
        if (claim := standing_claim(row)) is None or not (claim.watched or claim.loss_logged)
    ]
    if not rows:
        return
    described = error if len(rows) == len(error.lost) else ClaimLost(rows, reason=error.reason)
    facts = {"model": rows[0]._meta.label, "keys": [str(row.pk) for row in rows], "rows": len(rows)}
    logger.warning("%s", redact(str(described)), extra={"event": "lost", **facts})
    for row in rows:
        if (claim := claim_of(row)) is not None:
            claim.loss_logged = True


def _why_none_is_carried(lost: Sequence[models.Model]) -> str:
    without = [row for row in lost if standing_claim(row) is None]
    if without and all(claim_of(row) is not None for row in without):
        return "it carries no claim any more: a verb of its own has ended it"
    if len(without) == len(lost):
        return "it carries no claim; only rows that claim_batch() or with_token() returned do, until a verb ends them"
    return ""


# Renewing: leases are extended without waiting for a row that somebody has locked, and none is shortened


class Renewed(NamedTuple):
    """What became of the rows of one renewal."""

    renewed: list[models.Model]
    #: Locked by another transaction at that moment: neither renewed nor lost.
    skipped: list[models.Model]
    lost: list[models.Model]
    #: Not renewed, because the database refuses to have them, or some among them, written.
    refused: list[models.Model]


#: Keys of the claims of one statement: those renewed, those skipped and those that are lost.
_Outcome = tuple[Sequence[Key], Sequence[Key], Sequence[Key]]


def renew_all(rows: object, lease: timedelta | None) -> int:
    """Renew rows of any database, and raise ClaimLost for those that are lost; see ``ClaimQuerySet.renew``."""
    given = Given(rows)
    outcome = renew(given, lease)
    show_state(outcome.renewed, {"expires_at": NOW})
    # Skipped and refused rows are not lost.
    known = set(map(id, [*outcome.renewed, *outcome.skipped, *outcome.refused]))
    if len(known) < len(given.rows):
        raise_lost([row for row in given.rows if id(row) not in known], outcome.renewed)
    return len(outcome.renewed)


def renew(given: Given, lease: timedelta | None = None) -> Renewed:
    """Extend the leases that stand, of rows of any database; by default for as long as they were asked for."""
    started = clock()
    result = Renewed([], [], [], [])
    try:
        for part in [part for one in given.held for part in one.parts()]:
            # The rows of one claim were asked for together, so their leases are nearly always alike.
            longest = lease or max([claim.lease for claim in carried_claims(part.rows)])
            search, left = RefusedRows(part.target), dict(zip(part.keys, part.rows, strict=True))
            for outcome in search.send(part.keys, partial(_send_renewal, part, longest)):
                for rows, keys in zip(result, outcome, strict=False):
                    rows += [left.pop(key) for key in keys]
            result.refused.extend(left.values())
    finally:
        # Each part is a transaction: an error in one takes nothing back of those before it.
        for claim in carried_claims(result.renewed):
            claim.extend(started, lease)
        send_of_rows(rows_renewed, result.renewed)
        for row in result.lost:
            carried_claim(row).lost = True
    return result


def _send_renewal(part: HeldRows, lease: timedelta, keys: Sequence[Key]) -> _Outcome:
    target, extend = part.target, partial(_extend, part, lease, keys)
    try:
        if target.dialect.returns_updated and can_autocommit(target):
            return autocommit(target, extend)
        return in_transaction(target, extend)
    except AmbiguousCommit:
        # A renewal may be repeated: it shortens no lease, and it is fenced.
        return in_transaction(target, extend)


def _extend(part: HeldRows, lease: timedelta, keys: Sequence[Key]) -> _Outcome:
    target, token = part.target, part.token
    renewed = target.dialect.renew_held(target.table, token, keys, lease)
    if len(renewed) == len(keys):
        return renewed, (), ()
    rest = [key for key in keys if key not in set(renewed)]
    # A token that does not stand now never stands again; one that does was locked.
    skipped = target.dialect.select_keys(target.table, rest, target.table.standing(token))
    return renewed, skipped, [key for key in rest if key not in set(skipped)]
