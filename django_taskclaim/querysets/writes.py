"""The fenced write: a statement that changes claimed rows has their token in its WHERE, and its row count is compared.

Every verb that ends or changes claims goes through ``Given.write``, which then updates the instances and sends the
signal.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn, TypeVar

from django.db import DatabaseError, models
from django.db.models import Q
from django.dispatch import Signal

from django_taskclaim.claim import (
    GIVEN_UP,
    Claim,
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
from django_taskclaim.contention import is_refusal, retry_on_contention
from django_taskclaim.db import DatabaseLater, DatabaseNow
from django_taskclaim.db.sql import SKIP, SQL, WAIT, Change, Key, Keys, Row, sql
from django_taskclaim.error_text import describe, escape_to_ascii, redact, text_to_store
from django_taskclaim.exceptions import ClaimLost, CommitUnknown, Permanent
from django_taskclaim.fields import QUARANTINED, AnyField
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import scope
from django_taskclaim.querysets.isolating import send_around
from django_taskclaim.querysets.scope import AmbiguousCommit, ClaimTarget, Columns, run
from django_taskclaim.signals import claim_lost, rows_failed, rows_released, send_of_rows
from django_taskclaim.states import WORKER_MARK, Status, Token
from django_taskclaim.tables import Switch, scope_of, throttle_scope

R = TypeVar("R")

logger = logging.getLogger("django_taskclaim")

Rows = Sequence[models.Model]


# What a verb is given


class HeldRows:
    """Rows of one model that carry claims, each row once, in the order of their tokens and keys.

    The order is always the same, so two workers take row locks alike and cannot deadlock.
    """

    def __init__(self, target: ClaimTarget, pairs: Sequence[tuple[Claim, models.Model]]) -> None:
        self.target, self.pairs = target, pairs
        self.claims = [claim for claim, _ in pairs]
        self.rows = [row for _, row in pairs]
        #: The keys under which they were claimed.
        self.keys: list[Key] = [claim.pk for claim in self.claims]

    def parts(self, per_row: int = 0) -> list["HeldRows"]:
        """Cut them into what one statement takes, with so many values *per_row*."""
        table = self.target.table
        if self.claims[0].token != self.claims[-1].token:
            # The fence names each key once more, and its token.
            per_row += len(table.key) + 2
        parts = [*self.target.dialect.chunks(self.pairs, table, per_row)]
        return [self] if len(parts) == 1 else [HeldRows(self.target, pairs) for pairs in parts]

    def fence(self) -> SQL:
        """Return the condition that holds, among rows with their keys, while their claims stand."""
        table = self.target.table
        if self.claims[0].token == self.claims[-1].token:
            return table.standing(self.claims[0].token)
        keys_of: dict[Token, list[Key]] = {}
        for claim in self.claims:
            keys_of.setdefault(claim.token, []).append(claim.pk)
        each = [
            sql("{} AND {}", table.keyed(keys), table.standing(token))
            for token, keys in keys_of.items()
        ]
        return sql("(({}))", SQL.join(") OR (", each))

    def standing(self, lock: str = "") -> "HeldRows":
        """Read, or lock, those whose claims stand, and return them."""
        if not self.pairs:
            return self
        target = self.target
        found = target.dialect.select_keys(target.table, self.keys, self.fence(), lock)
        return self.only(set(found))

    def only(self, keys: Set[Key]) -> "HeldRows":
        """Return those with one of *keys*, which are keys of theirs."""
        if len(keys) == len(self.keys):
            return self
        return HeldRows(self.target, [pair for pair in self.pairs if pair[0].pk in keys])

    def but_for(self, keys: Collection[Key]) -> "HeldRows":
        """Return those with none of *keys*."""
        return HeldRows(self.target, [pair for pair in self.pairs if pair[0].pk not in keys])


#: Values that are known without the database, as instances show them.
_KNOWN: dict[Any, str | None] = {None: None, **{status: status.value for status in Status}}


class Given:
    """The rows that a verb was given: one instance of each, and what of them carries a claim that was not ended."""

    def __init__(self, rows: Any) -> None:
        """Sort one row or many; TypeError for what is no instance of a claimable model."""
        each = [rows] if isinstance(rows, models.Model) else rows
        #: One instance of each row. Other instances of the row share its claim, and show nothing of what a verb writes.
        self.rows: list[models.Model] = []
        kind: Any = None
        columns: Any = None
        firsts: dict[Any, Claim] = {}
        groups: dict[Any, dict[Claim, models.Model]] = {}
        for row in {id(row): row for row in each}.values():
            if type(row) is not kind:
                if not isinstance(row, models.Model):
                    raise TypeError(f"Expected rows of a model, not {row!r}.")
                kind, columns = type(row), claim_columns(type(row))
            if (claim := standing_claim(row)) is not None:
                first = firsts.setdefault((claim.pk, claim.alias, columns.owner), claim)
                if first is not claim and first.token == claim.token:
                    attach(row, first)
                    show([row], dict.fromkeys(columns.guarded, models.DEFERRED))
                    continue
                # Of two tokens of a row one is over. Two statements tell which.
                other = None if first is claim else claim.token
                groups.setdefault((claim.alias, kind, other), {})[claim] = row
            self.rows.append(row)
        #: What one verb writes in one transaction, sorted by database and table.
        self.held: list[HeldRows] = []
        for (alias, kind, _), of_claim in groups.items():
            claims = sorted(of_claim, key=attrgetter("token", "pk"))
            pairs = [(claim, of_claim[claim]) for claim in claims]
            self.held.append(HeldRows(ClaimTarget.of(kind, alias), pairs))
        self.held.sort(key=attrgetter("target.alias", "target.columns.owner._meta.label"))
        self._written: list[models.Model] = []

    def parts(self) -> list[HeldRows]:
        """Return what carries a claim, cut into what one statement takes."""
        return [part for held in self.held for part in held.parts()]

    def write(self, held: HeldRows, verb: "Write") -> None:
        """Write *held*, which are some of these rows, as far as their claims stand, and let the instances show it.

        This is a transaction of its own. What it has committed is noted before the next rows are written, which may
        fail. If the COMMIT was not answered, the rows are written once more. Rows that this finds held were not written
        before. Of the others, those in the verb's state under their token count as written; the rest is marked as
        ambiguous.
        """
        try:
            written = _send(held, verb)
        except AmbiguousCommit:
            for claim in held.claims:
                claim.unanswered = True
            written = _send(held, verb)
        for claim in written.claims:
            if claim.unanswered:
                claim.unanswered = False
        unsure = [row for claim, row in held.pairs if claim.unanswered]
        # Inside the caller's transaction nothing can be waited for. The fence is enough there.
        if unsure and scope.no_transaction(held.target.dialect.connection):
            finished = finished_rows(unsure, verb.sets.get("status"))
            pairs = [(carried_claim(row), row) for row in finished]
            written = HeldRows(held.target, [*written.pairs, *pairs])
        if verb.how is not None:
            end_claims(written.claims, verb.how)
            columns, shown = held.target.columns, verb.sets if verb.shown is None else verb.shown
            # What only the database knows is read when asked for.
            values = {
                getattr(columns, role): _KNOWN.get(to, models.DEFERRED)
                for role, to in shown.items()
            }
            show(written.rows, values)
        if verb.signal is not None and verb.signal.receivers:
            send_of_rows(verb.signal, written.rows, **verb.facts)
        self._written += written.rows

    def end(self) -> int:
        """Return how many rows were written; ClaimLost naming the others if these are not all."""
        if len(self._written) < len(self.rows):
            written = set(map(id, self._written))
            raise_lost([row for row in self.rows if id(row) not in written], self._written)
        return len(self._written)


def write_all(rows: object, verb: "Write") -> int:
    """Write one row or many, of any database, and return how many; ClaimLost naming those whose claim was lost."""
    given = Given(rows)
    for held in given.held:
        given.write(held, verb)
    return given.end()


# Writing


@dataclass(kw_only=True)
class Write:
    """What one verb does to claimed rows."""

    #: What becomes of all rows alike.
    sets: Columns
    #: Columns in which each row gets a value of its own, each with what returns these.
    own: Mapping[AnyField, Callable[[HeldRows], Sequence[SQL]]] = field(default_factory=dict)
    #: Whether the statement deletes the rows.
    deletes: bool = False
    #: What else belongs to the same transaction: each step is called with the rows of one statement, just written.
    then: list[Callable[[HeldRows], object]] = field(default_factory=list)
    #: What the instances show of it, where that is something else.
    shown: Columns | None = None
    #: How the verb ends the claims; None if they go on and the instances show no change.
    how: Ended | None = GIVEN_UP
    signal: Signal | None = None
    #: What the signal carries beside the rows.
    facts: Mapping[str, object] = field(default_factory=dict)
    #: Whether an error leaves the caller's transaction usable.
    savepoint: bool = True


def finished_rows(rows: Sequence[models.Model], state: Status | None) -> list[models.Model]:
    """Return those of *rows* that are in *state* under their tokens: the COMMIT that was not answered has arrived.

    They are rows of one model, claimed on one database, that were found in the state before it no more. Of the others
    nobody can tell whether it arrived: they are gone, open again or claimed once more. That is noted on their claims.
    """
    claims = carried_claims(rows)
    target = ClaimTarget.of(type(rows[0]), claims[0].alias)
    columns, table, dialect = target.columns, target.table, target.dialect
    fields = [*columns.key, columns.status, columns.claimed_by, columns.iteration]
    keys = sorted(claim.pk for claim in claims)

    def read() -> list[Row]:
        # Under a lock: a COMMIT that is on its way only now would otherwise land after it was found missing.
        parts = dialect.chunks(keys, table)
        return [
            row for part in parts for row in dialect.select(table, fields, table.keyed(part), WAIT)
        ]

    # All rows are asked before anything is noted.
    states = {
        table.key_of(row): (row[-3], Token(*row[-2:]))
        for row in run(target, read, lock_wait=scope.COMMIT_WAIT)
    }
    found = []
    for row, claim in zip(rows, claims, strict=True):
        claim.unanswered = False
        if states.get(claim.pk) == (state, claim.token):
            found.append(row)
        else:
            claim.lost = claim.ambiguous = True
    return found


class _SomeAreLost(Exception):
    """Fewer rows were written than were to be, and what was written must be rolled back: a count does not say which."""


def _send(held: HeldRows, verb: Write) -> HeldRows:
    """Write rows in the cheapest way, and return those written.

    One statement that needs no transaction commits by itself. Otherwise all are written in one transaction: so are
    rows of an earlier COMMIT that was not answered, for a statement that ends its session would be sent for ever.
    """
    target, parts = held.target, held.parts(len(verb.own))
    unsure = [claim for claim in held.claims if claim.unanswered]
    can_wait = unsure and scope.no_transaction(target.dialect.connection)
    lock_wait = scope.COMMIT_WAIT if can_wait else 0.0
    send = partial(run, target, savepoint=verb.savepoint, lock_wait=lock_wait)
    knows_keys = target.dialect.returns_updated
    is_plain = len(parts) == 1 and not verb.then and (knows_keys or len(held.rows) == 1)
    if is_plain and not unsure and target.dialect.can_autocommit:
        keys = run(target, partial(_send_one, held, verb), autocommit=True)
        if keys is not None:
            return held.only(set(keys))
    # If the count is short and does not say which rows were written, they are rolled back, which needs a savepoint. Of
    # one row nothing was written then.
    if knows_keys or verb.savepoint or len(held.rows) == 1:
        with suppress(_SomeAreLost):
            return send(partial(_send_parts, parts, verb))
    return send(partial(_send_parts, parts, verb, lock=True))


def _send_parts(parts: list[HeldRows], verb: Write, *, lock: bool = False) -> HeldRows:
    """Write the rows of each statement; with *lock* the rows are locked first, and only held ones are written."""
    written = []
    for part in parts:
        held = part.standing(WAIT) if lock else part
        keys = _send_one(held, verb) if held.pairs else ()
        if lock:
            # The count does not matter: a server may not count a row that has not changed.
            keys = held.keys
        elif keys is None:
            raise _SomeAreLost
        written.append(held.only(set(keys)))
    # From here on nothing is rolled back.
    for held in written:
        for step in verb.then if held.rows else ():
            step(held)
    return HeldRows(parts[0].target, [pair for held in written for pair in held.pairs])


def _send_one(held: HeldRows, verb: Write) -> Keys | None:
    """Send one statement and return the keys written; None where the count was short and does not say which."""
    target, change = held.target, None
    if not verb.deletes:
        own = {column: values(held) for column, values in verb.own.items()}
        change = Change(target.setting(verb.sets), own)
    return target.dialect.write_held(target.table, held.keys, held.fence(), change)


# Locking


def lock_free(rows: Rows) -> tuple[list[models.Model], list[models.Model]]:
    """Lock, in the current transaction, those claims that stand and that nobody else has locked.

    Returns the rows locked, and those that stand but are locked by somebody else; lost ones are in neither.
    """
    free: list[models.Model] = []
    busy: list[models.Model] = []
    for part in Given(rows).parts():
        locked = part.standing(SKIP)
        free += locked.rows
        busy += part.but_for(set(locked.keys)).standing().rows
    return free, busy


def lock_claims(rows: Iterable[models.Model]) -> list[models.Model]:
    """Lock the claims of *rows* in the current transaction, and return the rows without one."""
    given = list(rows)
    locked = [part.standing(WAIT) for part in Given(given).parts()]
    # Claims are compared: instances of one row share the claim, and only the first is asked about.
    standing = {id(claim) for part in locked for claim in part.claims}
    return [row for row in given if id(carried_claim(row)) not in standing]


# Claims that stand no more

NO_CLAIM = "what was given carries no claim; rows of claim_batch() and with_token() do, until a verb ends the claim"


def raise_lost(lost: Sequence[models.Model], written: Sequence[models.Model]) -> NoReturn:
    """Log, send as a signal and raise which claims stand no more; CommitUnknown where a COMMIT is ambiguous.

    A loss is logged once. A worker logs those of its rows itself, with what it knows beside.
    """
    ambiguous: list[models.Model] = []
    for row in lost:
        if (claim := claim_of(row)) is not None:
            claim.lost = True
            ambiguous += [row] if claim.ambiguous else []
    standing = [standing_claim(row) for row in lost]
    reason = "" if any(standing) else NO_CLAIM
    error = ClaimLost(lost, written, reason=reason)
    if ambiguous:
        error = CommitUnknown(lost, written, ambiguous, reason=reason)
    if not all(one is not None and (one.watched or one.loss_logged) for one in standing):
        for one in filter(None, standing):
            one.loss_logged = True
        facts = {"model": lost[0]._meta.label, "keys": [str(row.pk) for row in lost]}
        extra = {"event": "lost", "rows": len(lost), **facts}
        logger.warning("%s", redact(str(error)), extra=extra)
    send_of_rows(claim_lost, lost)
    raise error


# Renewing: leases are extended without waiting for a row that somebody has locked, and none is shortened


class Renewed(NamedTuple):
    """What became of the rows of one renewal."""

    renewed: list[models.Model]
    #: Locked by another transaction at that moment: neither renewed nor lost.
    skipped: list[models.Model]
    lost: list[models.Model]
    #: Not renewed, because the database refuses to have them, or some among them, written.
    refused: list[models.Model]


def renew_all(rows: object, lease: timedelta | None) -> int:
    """Renew rows of any database, and raise ClaimLost for those that are lost; see ``ClaimQuerySet.renew``."""
    given = Given(rows)
    outcome = renew(given, lease)
    for row in outcome.renewed:
        show([row], {claim_columns(type(row)).expires_at: models.DEFERRED})
    known = set(map(id, [*outcome.renewed, *outcome.skipped, *outcome.refused]))
    if len(known) < len(given.rows):
        raise_lost([row for row in given.rows if id(row) not in known], outcome.renewed)
    return len(outcome.renewed)


def renew(given: Given, lease: timedelta | None = None) -> Renewed:
    """Extend the leases that stand, of rows of any database; by default for as long as they were asked for."""
    started = clock()
    result = Renewed([], [], [], [])
    try:
        for held in given.held:
            for asked in {lease or claim.lease for claim in held.claims}:
                pairs = [pair for pair in held.pairs if (lease or pair[0].lease) == asked]
                for part in HeldRows(held.target, pairs).parts():
                    left = dict(zip(part.keys, part.rows, strict=True))
                    extend = partial(_extend, part, asked)
                    # Of many rows that are refused, a few are found each time. They keep no others from being renewed.
                    for outcome in send_around(part.target, part.keys, extend, raises=False):
                        for key, name in outcome.items():
                            getattr(result, name).append(left.pop(key))
                    result.refused.extend(left.values())
    finally:
        # Each part is a transaction: an error in one takes nothing back of those before it.
        for claim in carried_claims(result.renewed):
            claim.extend(started, lease)
        for row in result.lost:
            carried_claim(row).lost = True
    return result


def _extend(part: HeldRows, lease: timedelta, keys: Sequence[Key]) -> dict[Key, str]:
    """Renew those of *part* with these keys by one statement, and return what became of each, as ``Renewed`` names it.

    Which of the others are lost is asked where not all were renewed.
    """
    held, target = part.only(set(keys)), part.target

    def send() -> dict[Key, str]:
        renewed = target.dialect.renew_held(target.table, held.keys, held.fence(), lease)
        outcome = dict.fromkeys(renewed, "renewed")
        if len(renewed) < len(keys):
            rest = held.but_for(outcome)
            # A token that does not stand now never stands again; one that does was locked.
            outcome |= dict.fromkeys(rest.keys, "lost")
            outcome |= dict.fromkeys(rest.standing().keys, "skipped")
        return outcome

    is_plain = target.dialect.returns_updated and target.dialect.can_autocommit
    try:
        return run(target, send, autocommit=is_plain)
    except AmbiguousCommit:
        # A renewal may be repeated: it shortens no lease, and it is fenced.
        return run(target, send)


# Failing rows, and giving them back unfinished


def fail(rows: object, error: BaseException | str, *, retry: bool) -> int:
    """End rows badly as their policy judges *error*; see ``ClaimQuerySet.fail``."""
    given, text = Given(rows), text_to_store(error)
    for held in given.held:
        model = held.target.model
        policy = policy_for(model)
        ended = Ended(failure=text, permanent=policy.rule(error) is Permanent)
        judge = cache(partial(policy.judge, error, retry=retry))
        verdicts = {claim.pk: judge(claim.attempts + 1) for claim in held.claims}
        first = verdicts[held.keys[0]]
        if not first.counted:
            # RetryLater is the same for each row.
            wait = first.wait()
            # A lost claim stops nobody.
            if first.everyone and held.standing().rows:
                # First, or somebody else would claim the row and ask the same in vain.
                holder, _, _ = held.claims[0].token.holder.partition(WORKER_MARK)
                stop_everyone(model, held.target.alias, wait, describe(error), holder)
            given.write(held, _giving_back(wait))
            continue
        waits = {key: one.wait() for key, one in verdicts.items() if not one.final}
        waiting = held.target.columns.not_before
        own = {} if waiting is None else {waiting: partial(_waits, waits)}
        verb = partial(Write, how=ended, signal=rows_failed, facts={"error": error})
        last = held.but_for(waits), verb(sets=scope.FAILED)
        again = held.only(waits.keys()), verb(sets=scope.OPEN_AGAIN, own=own)
        for rows, write in (last, again):
            if rows.rows:
                store_text(partial(_write_failure, given, rows, write), text)
    return given.end()


def _waits(waits: Mapping[Key, timedelta], held: HeldRows) -> list[SQL]:
    return [held.target.dialect.later(waits[key]) for key in held.keys]


def _write_failure(
    given: Given, held: HeldRows, verb: Write, error_class: str, last_error: str
) -> None:
    """Write a failure that counts, with as much of its text as the row is to keep."""
    verb.sets = {
        "attempts": scope.ONE_MORE,
        **verb.sets,
        "error_class": error_class,
        "last_error": last_error,
    }
    verb.shown = {**verb.sets, "not_before": scope.NOW} if verb.own else verb.sets
    given.write(held, verb)


def store_text(write_as: Callable[[str, str], R], text: tuple[str, str], last: str = "") -> R:
    """Return what *write_as* returns of class and text of an error.

    What the database refuses, for its encoding lacks a character of the text or for any other reason, is written again
    in escapes, and then with the class *last* and no text.
    """
    for as_stored in (tuple, escape_to_ascii):
        try:
            return write_as(*as_stored(text))
        except (DatabaseError, UnicodeError) as error:
            if not is_refusal(error):
                raise
    return write_as(last, "")


def fail_unreadable(unreadable: Iterable[tuple[models.Model, Exception]]) -> None:
    """Fail claimed rows that cannot be read, each with its error and by its policy, and log them.

    What cannot be failed either waits for the end of its lease, and keeps nobody from the other rows.
    """
    for row, error in unreadable:
        key, label = carried_claim(row).pk, row._meta.label
        outcome = "it fails by its policy"
        try:
            fail([row], error, retry=True)
        except ClaimLost:
            # The loss is logged already.
            continue
        except Exception as refused:
            outcome = f"it could not be failed ({describe(refused)})"
        facts = {"event": "unreadable", "model": label, "rows": 1, "keys": [str(key)]}
        what = label, key, outcome, describe(error).rstrip(".")
        logger.error("%s %s cannot be read, so %s: %s. The other rows go on.", *what, extra=facts)


def release(rows: object, wait: timedelta | None = None, *, quarantined: bool = False) -> int:
    """Give rows back uncounted; see ``ClaimQuerySet.release``.

    *quarantined* rows are claimed alone from now on: one of them held up, or broke, all the others.
    """
    return write_all(rows, _giving_back(QUARANTINED if quarantined else wait))


def _giving_back(later: timedelta | datetime | None) -> Write:
    """Return what puts rows back uncounted, to be due at a moment or so much later; None leaves their places."""
    waiting = {} if later is None else {"not_before": later}
    return Write(sets={**waiting, **scope.OPEN_AGAIN}, signal=rows_released)


def note_start(row: models.Model) -> None:
    """Note that a quarantined row is started: if its claim expires now, it has killed its worker.

    Its whole lease runs from here, so that it cannot expire before the handler is called. ClaimLost where the claim
    stands no more.
    """
    started, claim = clock(), carried_claim(row)
    beginning = Write(sets={"not_before": QUARANTINED, "expires_at": claim.lease}, how=None)
    write_all([row], beginning)
    claim.extend(started)


# The stop of RetryLater(everyone=True) is a row of the switch, with a scope that every claim statement looks for


def stop_everyone(
    model: type[models.Model], using: str, lasting: timedelta, reason: str, by: str = ""
) -> None:
    """Let nobody claim rows of *model* for so long, unless a longer stop holds already; committed on return.

    Inside a caller's transaction it holds once that commits.
    """
    end = DatabaseLater(lasting)

    @retry_on_contention(using=using)
    def store() -> None:
        row = Switch.row(throttle_scope(scope_of(model)), using)
        row.filter(Q(until=None) | Q(until__lt=end)).update(
            paused_at=DatabaseNow(), until=end, reason=reason[:500], by=by[:200]
        )

    store()
