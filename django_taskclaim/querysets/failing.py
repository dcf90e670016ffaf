"""How rows end badly, and how they are given back unfinished."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, models

from django_taskclaim.claim import GIVEN_UP, Ended, carried_claim, carried_claims, clock
from django_taskclaim.connecting import is_refusal
from django_taskclaim.db.sql import Change, Key, OwnValues, value
from django_taskclaim.error_text import describe, escape_to_ascii, text_to_store
from django_taskclaim.exceptions import Permanent
from django_taskclaim.policy import Verdict, policy_for, refuse_faulty
from django_taskclaim.querysets.assignments import (
    due_later,
    failed,
    one_more_attempt,
    open_again,
    quarantine_mark,
    why_failed,
)
from django_taskclaim.querysets.everyone import stop_everyone
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import (
    Given,
    HeldRows,
    Rows,
    Write,
    by_database,
    finish,
    write,
)
from django_taskclaim.signals import rows_failed, rows_released
from django_taskclaim.states import Status

#: How long each row waits for its next try, by ``id()`` of its instance.
Waits = dict[int, timedelta]


def fail(rows: Any, error: BaseException | str, *, retry: bool) -> int:
    """End rows badly as their policy judges *error*; see ``ClaimQuerySet.fail``."""
    given = Given.of(rows)
    final: list[HeldRows] = []
    again: list[HeldRows] = []
    uncounted: dict[timedelta, list[HeldRows]] = {}
    waits: Waits = {}
    for held in given.held:
        keys: dict[Any, list[Key]] = {}
        for row, key, verdict in _verdicts(held, error, retry=retry):
            waits[id(row)] = wait = timedelta() if verdict.final else verdict.wait()
            keys.setdefault((verdict.final, None if verdict.counted else wait), []).append(key)
            if verdict.everyone:
                stop_everyone(held.target.model, held.target.alias, wait, describe(error))
        for (is_final, wait), same in keys.items():
            ending = final if is_final else again
            (ending if wait is None else uncounted.setdefault(wait, [])).append(held.only(same))
    written = [*_end_badly(final, error, None), *_end_badly(again, error, waits)]
    for wait, same in uncounted.items():
        written += _give_back(same, GivingBack(wait))
    given.raise_unless_all(written)
    return len(written)


def _verdicts(held: HeldRows, error: object, *, retry: bool) -> Iterator[tuple[Any, Key, Verdict]]:
    """Yield what the error makes of each row; rows that have failed as often are judged alike."""
    refuse_faulty(held.target.model)
    policy = policy_for(held.target.model)
    known: dict[int, Verdict] = {}
    claims = carried_claims(held.rows)
    for row, key, claim in zip(held.rows, held.keys, claims, strict=True):
        if claim.attempts not in known:
            known[claim.attempts] = policy.judge(error, claim.attempts + 1, retry=retry)
        yield row, key, known[claim.attempts]


class Failing(Write):
    """Writes a failure that counts: the last one of its row where no *waits* are given."""

    def __init__(self, waits: Waits | None, error_class: str, text: str) -> None:
        self.waits = waits
        self.error = error_class, text
        self.per_row = 0 if waits is None else 1
        self.finished = (Status.FAILED,) if waits is None else ()

    def change(self, target: ClaimTarget, rows: Rows) -> Change:
        charge, waiting = one_more_attempt(target), target.columns.not_before
        if self.waits is None:
            return Change([*failed(target, *self.error), *charge])
        shared = [*why_failed(target, *self.error), *charge, *open_again(target)]
        if waiting is None:
            return Change(shared)
        dialect = target.dialect
        amounts = [value(dialect.amount(self.waits[id(row)])) for row in rows]
        return Change(shared, [OwnValues(waiting, amounts, stored=dialect.moment_after)])


def _end_badly(held: list[HeldRows], error: BaseException | str, waits: Waits | None) -> list[Any]:
    """Write a failure that counts, and return the rows that were still held."""
    if not held:
        return []
    text = text_to_store(error)
    how = Ended(failure=text, permanent=isinstance(error, Permanent))
    unknown = ["attempts", "last_error", "error_class"]
    if waits is not None:
        unknown += ["not_before", "iteration"]
    status = Status.FAILED if waits is None else Status.OPEN
    written: list[Any] = []
    for part in by_database(held):
        done = _write_failed(part, waits, text)
        finish(done, how, status, unknown, rows_failed, error=error)
        written += done
    return written


def _write_failed(held: list[HeldRows], waits: Waits | None, text: tuple[str, str]) -> list[Any]:
    """Write the failure of rows of one database.

    What the database refuses, for its encoding lacks a character of the text or for any other reason, is written again
    in escapes, and then without the text.
    """
    for escape in (False, True):
        error_class, words = escape_to_ascii(text) if escape else text
        try:
            return write(held, Failing(waits, error_class, words))
        except (DatabaseError, UnicodeError) as error:
            if not is_refusal(error):
                raise
    return write(held, Failing(waits, "", ""))


class GivingBack(Write):
    """Puts rows back uncounted, to wait so long, or, *quarantined*, to be claimed alone."""

    def __init__(self, wait: timedelta | None, *, quarantined: bool = False) -> None:
        self.wait, self.quarantined = wait, quarantined

    def change(self, target: ClaimTarget, rows: Rows) -> Change:
        later = quarantine_mark(target) if self.quarantined else due_later(target, self.wait)
        return Change([*later, *open_again(target)])


def release(rows: Any, wait: timedelta | None) -> int:
    """Give rows back uncounted, to wait so long; see ``ClaimQuerySet.release``."""
    return _release(Given.of(rows), GivingBack(wait))


def give_back_quarantined(rows: Any) -> int:
    """Give rows back uncounted, each to be claimed alone, where their model has a mark for that."""
    return _release(Given.of(rows), GivingBack(None, quarantined=True))


def _release(given: Given, verb: GivingBack) -> int:
    written = _give_back(given.held, verb)
    given.raise_unless_all(written)
    return len(written)


def _give_back(held: list[HeldRows], verb: GivingBack) -> list[Any]:
    """Put rows back, and return those that were still held."""
    unknown = (
        ["iteration"] if verb.wait is None and not verb.quarantined else ["iteration", "not_before"]
    )
    written: list[Any] = []
    for part in by_database(held):
        done = write(part, verb)
        finish(done, GIVEN_UP, Status.OPEN, unknown, rows_released)
        written += done
    return written


class Beginning(Write):
    """Notes that a row which may kill its worker is started, and gives it its whole lease from here."""

    def __init__(self, lease: timedelta) -> None:
        self.lease = lease

    def change(self, target: ClaimTarget, rows: Rows) -> Change:
        return Change(
            [*quarantine_mark(target), target.dialect.extension(target.table, self.lease)]
        )


def note_start(row: models.Model) -> None:
    """Start a row that may kill its worker; ClaimLost where the claim stands no more."""
    started, claim = clock(), carried_claim(row)
    given = Given.of(row)
    given.raise_unless_all(write(given.held, Beginning(claim.lease)) if given.held else [])
    claim.extend(started)
