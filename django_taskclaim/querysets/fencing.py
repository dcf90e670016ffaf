"""Ending and extending claims: every write here carries the token in its WHERE and counts what it wrote."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import DatabaseError, connections, models

from django_taskclaim.columns import claim_columns
from django_taskclaim.connecting import is_refusal
from django_taskclaim.dialects import Renewal
from django_taskclaim.failures import in_ascii
from django_taskclaim.guard import show
from django_taskclaim.querysets.assignments import Assignments, failure_assignments
from django_taskclaim.querysets.lost_commits import judge_after_lost_commit
from django_taskclaim.querysets.refusals import Search
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.querysets.telling import tell
from django_taskclaim.querysets.transactions import (
    alone,
    joins,
    may_stand_alone,
    no_transaction,
    transactionally,
)
from django_taskclaim.signals import rows_renewed
from django_taskclaim.states import Status, Token
from django_taskclaim.tokens import (
    GIVEN_UP,
    Claim,
    Ended,
    attach,
    carried_claim,
    carried_claims,
    claim_of,
    clock,
    end_claims,
    standing_claim,
)

#: Claims whose rows one statement writes, at most: each adds to its text.
MOST_CLAIMS = 10


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that share database, table and token, so that one statement can write them."""

    desk: Desk
    token: Token
    rows: list[Any]


def as_rows(rows: Any) -> list[Any]:
    """Return the rows given, one or many; TypeError for what is no instance of a claimable model."""
    found = [rows] if isinstance(rows, models.Model) else list(rows)
    for kind in set(map(type, found)):
        if not issubclass(kind, models.Model):
            wrong = next(row for row in found if type(row) is kind)
            raise TypeError(f"Expected rows of a model, not {wrong!r}.")
        claim_columns(kind)
    keys = {claim and claim.pk for claim in map(claim_of, found)}
    return found if len(keys) == len(found) else _one_of_each(found)


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


def by_database(rows: Sequence[Any]) -> list[list[Any]]:
    """Group rows that carry claims by database, in the same order for all: each database is a transaction of its own.

    What one has committed is noted on its rows before the next is written to, which may fail.
    """
    aliases = {claim.alias for claim in carried_claims(rows)}
    if len(aliases) < 2:
        return [list(rows)] if rows else []
    return [[row for row in rows if carried_claim(row).alias == one] for one in sorted(aliases)]


def carrying(rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Split *rows* into those that carry a claim of their own and those that carry none, or ended it."""
    standing = [row for row in rows if standing_claim(row) is not None]
    if len(standing) == len(rows):
        return standing, []
    return standing, [row for row in rows if standing_claim(row) is None]


def _alike(row: Any) -> bool:
    return True


def grouped(rows: Iterable[Any], kind: Callable[[Any], Any] = _alike) -> list[Group]:
    """Group rows by database, table, token and *kind*; inside a group they are in key order, the order of row locks."""
    given = list(rows)
    alike: dict[Any, list[Any]] = {}
    if kind is _alike and (place := _of_one_claim(given)) is not None:
        alike[place] = given
    else:
        for row in given:
            claim = carried_claim(row)
            alike.setdefault((claim.alias, type(row), claim.token, kind(row)), []).append(row)
    groups: dict[Any, Group] = {}
    for (alias, model, token, what), same in alike.items():
        # A proxy's rows are those of the same table.
        table = (alias, claim_columns(model).owner._meta.label, token, what)
        if table not in groups:
            groups[table] = Group(Desk.of(model, alias), token, [])
        groups[table].rows.extend(same)
    for group in groups.values():
        keys = keys_of(group.rows)
        if keys != sorted(keys):
            group.rows.sort(key=_claimed_key)
    # Always in the same order, so that calls that meet take their row locks alike.
    return [groups[table] for table in sorted(groups)]


def _of_one_claim(rows: list[Any]) -> tuple[Any, ...] | None:
    """Return what rows have in common that came from one claim, as those that a worker writes did; else None."""
    if not rows:
        return None
    claims, kind = carried_claims(rows), type(rows[0])
    alias, token = claims[0].alias, claims[0].token
    if any(claim.token is not token or claim.alias != alias for claim in claims):
        return None
    return (alias, kind, token, True) if all(type(row) is kind for row in rows) else None


def _claimed_key(row: Any) -> Any:
    return carried_claim(row).pk


#: Given the rows of one statement, writes those that the token still holds and returns their keys.
Send = Callable[[Desk, Token, Sequence[Any]], list[Any]]

#: Given the rows just written, does what else belongs to their transaction.
Also = Callable[[Desk, list[Any]], None]


def write_held(
    rows: Sequence[Any],
    assignments: Assignments,
    *,
    per_row: int = 0,
    also: Also | None = None,
    kind: Callable[[Any], Any] = _alike,
    finished: Collection[Status] = (),
) -> list[Any]:
    """Update the rows, of one database, whose claims stand and return them; see ``send_held``."""
    return write_standing(
        rows, held_write(assignments, per_row=per_row, also=also, kind=kind, finished=finished)
    )


def held_write(
    assignments: Assignments,
    *,
    per_row: int = 0,
    also: Also | None = None,
    kind: Callable[[Any], Any] = _alike,
    finished: Collection[Status] = (),
) -> "Write":
    """Return the update of rows whose claims stand, to be made again and again; see ``send_held``."""

    def update(desk: Desk, token: Token, rows: Sequence[Any]) -> list[Any]:
        return desk.dialect.update_held(desk.table, token, keys_of(rows), assignments(desk, rows))

    def update_together(desk: Desk, groups: Sequence[Group]) -> list[Any] | None:
        rows = [row for group in groups for row in group.rows]
        claims = [(group.token, keys_of(group.rows)) for group in groups]
        keys = desk.dialect.update_together(desk.table, claims, assignments(desk, rows))
        return None if keys is None else _with_keys(rows, keys)

    together = update_together if also is None else None
    return Write(update, per_row, also, kind, finished, together)


class _SomeAreLost(Exception):
    """Fewer rows were written than were to be, and what was written must be rolled back: a count does not say which."""


def keys_of(rows: Sequence[Any]) -> list[Any]:
    """Return the keys under which *rows* were claimed."""
    return [claim.pk for claim in carried_claims(rows)]


def send_held(
    rows: Sequence[Any],
    send: Send,
    *,
    per_row: int = 0,
    also: Also | None = None,
    kind: Callable[[Any], Any] = _alike,
    finished: Collection[Status] = (),
) -> list[Any]:
    """Write the rows, of one database, whose claims stand and return them; nothing is raised for the others.

    They are written in one transaction. *also* run in it, with the rows just written. *per_row* is
    how many values of its own each row adds to the statement, *kind* tells rows apart that one statement cannot write.

    If the COMMIT of a transaction of ours was not answered, the rows tell what came of it: those in one of the states
    *finished* under their token count as written, those still held are written again, and those that have moved on
    are marked as undecided. A database that stays away is its own error; the next try begins by asking the rows.
    """
    return write_standing(rows, Write(send, per_row, also, kind, finished))


@dataclass(frozen=True, slots=True)
class Write:
    """What one verb writes; see ``send_held``."""

    send: Send
    per_row: int
    also: Also | None
    kind: Callable[[Any], Any]
    finished: Collection[Status]
    #: Writes the rows of several claims by one statement and returns those that stood; None where it cannot tell.
    together: "Callable[[Desk, Sequence[Group]], list[Any] | None] | None" = None
    #: Whether that statement may stand outside of a transaction.
    may_be_alone: bool = True


def write_standing(rows: Sequence[Any], write: Write) -> list[Any]:
    """Write the rows, of one database, whose claims stand and return them; see ``send_held``."""
    if len(rows) == 1 and not (claim := carried_claim(rows[0])).unanswered:
        desk = Desk.of(type(rows[0]), claim.alias)
        return _write_to_one([Group(desk, claim.token, list(rows))], write)
    held, written = _asked_again(rows, write)
    groups = grouped(held, write.kind)
    return [*written, *_write_to_one(groups, write)] if groups else written


def _write_to_one(groups: list[Group], write: Write) -> list[Any]:
    """Write the rows of one database."""
    desk, look_again = groups[0].desk, partial(_look_again, write)
    if write.together is not None:
        statements = _statements(groups, write)
        if write.may_be_alone and _fits_alone(statements):
            (rows,) = statements
            sent = alone(
                desk,
                lambda: write.together(desk, rows),  # type: ignore[misc]
                lambda: look_again([row for group in rows for row in group.rows]),
            )
            if sent is not None:
                return sent
        elif desk.dialect.returns_updated or not joins(desk):
            try:
                return transactionally(
                    desk, partial(_write_together, statements, write), look_again
                )
            except _SomeAreLost:
                pass
    return transactionally(desk, partial(_write_groups, groups, write), look_again)


def _statements(groups: list[Group], write: Write) -> list[list[Group]]:
    """Return what each statement writes: all at once, as a worker's batches nearly always can, or part by part."""
    if len(groups) == 1 and len(groups[0].rows) == 1:
        return [groups]
    desk = groups[0].desk
    keys = [key for group in groups for key in keys_of(group.rows)]
    parts = desk.dialect.chunks(keys, desk.table, write.per_row)
    if (
        len(next(parts)) == len(keys)
        and len(groups) <= MOST_CLAIMS
        # Of a row that is there twice one claim is over: each statement tells of its own.
        and (len(groups) == 1 or len(set(keys)) == len(keys))
        and (len(groups) == 1 or write.kind is _alike)
        and all(group.desk.table is desk.table for group in groups)
    ):
        return [groups]
    return [
        [Group(group.desk, group.token, list(part))]
        for group in groups
        for part in desk.dialect.chunks(group.rows, group.desk.table, write.per_row)
    ]


def _fits_alone(statements: list[list[Group]]) -> bool:
    """Say whether one statement outside of a transaction writes all, and tells of each row whether it did."""
    if len(statements) > 1:
        return False
    desk = statements[0][0].desk
    is_single = len(statements[0]) == 1 and len(statements[0][0].rows) == 1
    return (is_single or desk.dialect.returns_updated) and may_stand_alone(desk)


def _write_together(statements: list[list[Group]], write: Write) -> list[Any]:
    written: list[Any] = []
    for groups in statements:
        assert write.together is not None
        rows = write.together(groups[0].desk, groups)
        if rows is None:
            raise _SomeAreLost
        written += rows
    return written


def _asked_again(rows: Sequence[Any], write: Write) -> tuple[list[Any], list[Any]]:
    """Return the rows that are to be written, and those that an earlier try has written without knowing it."""
    if not any(claim.unanswered for claim in carried_claims(rows)):
        return list(rows), []
    unsure = [row for row in rows if (one := carried_claim(row)).unanswered and _may_ask(one)]
    if not unsure:
        return list(rows), []
    judged = judge_after_lost_commit(unsure, finished=write.finished)
    sure = [row for row in rows if all(row is not one for one in unsure)]
    return [*sure, *judged.still_held], judged.ours_complete


def _may_ask(claim: Claim) -> bool:
    # Inside a transaction of the caller's the fence alone must do: nothing can be waited for there.
    return no_transaction(connections[claim.alias])


def _look_again(write: Write, sent: list[Any]) -> list[Any]:
    """Return those of the rows *sent* with a COMMIT that was not answered that are written after all, or now."""
    for row in sent:
        carried_claim(row).unanswered = True
    # Not alone again: a statement that its session does not survive would be sent for ever.
    return write_standing(sent, replace(write, may_be_alone=False))


def _write_groups(groups: list[Group], write: Write) -> list[Any]:
    return [row for group in groups for row in _write_group(group, write)]


def _write_group(group: Group, write: Write) -> list[Any]:
    desk = group.desk
    written: list[Any] = []
    for part in desk.dialect.chunks(group.rows, desk.table, write.per_row):
        written += _with_keys(part, write.send(desk, group.token, part))
    if write.also is not None and written:
        write.also(desk, written)
    return written


def _with_keys(rows: Sequence[Any], keys: Iterable[Any]) -> list[Any]:
    standing = set(keys)
    if len(standing) == len(rows):
        return list(rows)
    return [row for row in rows if _claimed_key(row) in standing]


def end(rows: Sequence[Any], how: Ended = GIVEN_UP) -> None:
    """Note on each instance how a verb has ended its claim."""
    end_claims(carried_claims(rows), how)


def write_failed(
    rows: Sequence[Any], waits: dict[int, timedelta | None], told: tuple[str, str]
) -> list[Any]:
    """Write the failure of rows of one database, final or not, and return those that were still held.

    *waits* says by ``id()`` how long each waits for its next try, or None. What the database refuses, for its encoding
    lacks a character of the text or for any other reason, is written again in escapes, and then without the text.
    """
    write = partial(
        write_held,
        rows,
        per_row=2,
        kind=lambda row: waits[id(row)] is None,
        finished=(Status.FAILED,),
    )
    for words in (told, in_ascii(told)):
        try:
            return write(failure_assignments(waits, *words))
        except (DatabaseError, UnicodeError) as error:
            if not is_refusal(error):
                raise
    return write(failure_assignments(waits, "", ""))


# Renewal


@dataclass(frozen=True, slots=True)
class Renewed:
    """What became of the rows of one renewal."""

    renewed: list[Any]
    #: Locked by another transaction at that moment: neither renewed nor lost.
    skipped: list[Any]
    lost: list[Any]
    #: Not renewed, because the database refuses to have them, or some among them, written.
    refused: list[Any]


def renew(rows: Sequence[Any], lease: timedelta | None) -> Renewed:
    """Extend the leases that stand, never wait for a locked row, and shorten none."""
    started = clock()
    result = Renewed([], [], [], [])
    try:
        for group in grouped(rows):
            by_lease: dict[timedelta, list[Any]] = {}
            for row in group.rows:
                by_lease.setdefault(lease or carried_claim(row).lease, []).append(row)
            for duration, same in by_lease.items():
                _renew_group(Group(group.desk, group.token, same), duration, result)
    finally:
        # Each group is a transaction: an error in one takes nothing back of those before it.
        for row in result.renewed:
            carried_claim(row).extend(started, lease)
        tell(rows_renewed, result.renewed)
        for row in result.lost:
            carried_claim(row).lost = True
    return result


def _renew_group(group: Group, lease: timedelta, result: Renewed) -> None:
    for part in group.desk.dialect.chunks(group.rows, group.desk.table):
        by_key = {carried_claim(row).pk: row for row in part}
        send = partial(_renew_keys, group.desk, group.token, lease)
        try:
            _sort_out([send(list(by_key))], by_key, result)
        except DatabaseError as error:
            extend = partial(
                group.desk.dialect.renew_held, group.desk.table, group.token, lease=lease
            )
            search = Search(group.desk, error)
            _sort_out(search.send([list(by_key)], extend), by_key, result)
            result.refused.extend(by_key.values())


def _renew_keys(desk: Desk, token: Token, lease: timedelta, keys: list[Any]) -> Renewal:
    send = partial(desk.dialect.renew_held, desk.table, token, keys, lease)
    # It is sent again where its COMMIT was not answered: it shortens no lease, and the fence stands.
    return transactionally(desk, send, lambda unknown: transactionally(desk, send))


def _sort_out(outcomes: Iterable[Renewal], by_key: dict[Any, Any], result: Renewed) -> None:
    for outcome in outcomes:
        result.renewed.extend(by_key.pop(key) for key in outcome.renewed)
        result.skipped.extend(by_key.pop(key) for key in outcome.skipped)
        result.lost.extend(by_key.pop(key) for key in outcome.lost)


def lock_free(rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Lock, in the current transaction, those claims that stand and that nobody else has locked.

    Returns the rows locked, and those that stand but are locked by somebody else; lost ones are in neither.
    """
    free: list[Any] = []
    busy: list[Any] = []
    for group in grouped(carrying(rows)[0]):
        desk = group.desk
        by_key = {carried_claim(row).pk: row for row in group.rows}
        for part in desk.dialect.chunks(list(by_key), desk.table):
            locked = desk.dialect.lock_standing(desk.table, group.token, part, wait=False)
            rest = [key for key in part if key not in set(locked)]
            free += [by_key[key] for key in locked]
            busy += [
                by_key[key] for key in desk.dialect.still_standing(desk.table, group.token, rest)
            ]
    return free, busy


def lock_claim(row: Any, using: str) -> bool:
    """Lock the row's claim in the current transaction and say whether it stands."""
    claim = carried_claim(row)
    desk = Desk.of(type(row), using)
    return bool(desk.dialect.lock_standing(desk.table, claim.token, [claim.pk]))


def lock_claims(rows: Iterable[Any]) -> list[Any]:
    """Lock the claims of *rows* in the current transaction, one statement a token, and return the rows without one."""
    lost: list[Any] = []
    for group in grouped(rows):
        desk = group.desk
        for part in desk.dialect.chunks(group.rows, desk.table):
            keys = [carried_claim(row).pk for row in part]
            standing = set(desk.dialect.lock_standing(desk.table, group.token, keys))
            lost += [row for row in part if carried_claim(row).pk not in standing]
    return lost
