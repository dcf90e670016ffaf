"""How rows end badly, and how they are given back unfinished."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

from django.db import DatabaseError, models

from django_taskclaim.claim import GIVEN_UP, Ended, carried_claim, carried_claims, clock, standing
from django_taskclaim.connecting import is_refusal
from django_taskclaim.db.sql import Change, OwnValues, value
from django_taskclaim.error_text import describe, escape_to_ascii, text_to_store
from django_taskclaim.exceptions import Permanent
from django_taskclaim.policy import Verdict, policy_for, refuse_faulty
from django_taskclaim.querysets.assignments import (
    crash_mark,
    due_later,
    failed,
    one_more_attempt,
    open_again,
    why_failed,
)
from django_taskclaim.querysets.everyone import stop_everyone
from django_taskclaim.querysets.losses import raise_unless_all
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import Rows, Write, by_database, finish, write_held
from django_taskclaim.signals import rows_failed, rows_released
from django_taskclaim.states import Status

M = TypeVar("M", bound=models.Model)

#: What a row is judged to be worth, and how long it waits where that is another try.
Judged = tuple[Verdict, timedelta]


def fail(given: Sequence[M], error: BaseException | str, *, retry: bool) -> int:
    """End rows badly as their policy judges *error*; see ``ClaimQuerySet.fail``."""
    rows = standing(given)
    verdicts = _verdicts(rows, error, retry=retry)
    waits = {
        id(row): timedelta() if verdict.final else verdict.wait()
        for row, verdict in zip(rows, verdicts, strict=True)
    }
    final: list[M] = []
    waiting: list[M] = []
    uncounted: dict[timedelta, list[M]] = {}
    for row, verdict in zip(rows, verdicts, strict=True):
        if not verdict.counted:
            uncounted.setdefault(waits[id(row)], []).append(row)
            if verdict.everyone:
                stop_everyone(type(row), carried_claim(row).alias, waits[id(row)], describe(error))
        else:
            (final if verdict.final else waiting).append(row)
    written = [*_end_badly(final, error, None), *_end_badly(waiting, error, waits)]
    for wait, same in uncounted.items():
        written += _give_back(same, wait)
    raise_unless_all(given, written)
    return len(written)


def _verdicts(rows: Rows, error: object, *, retry: bool) -> list[Verdict]:
    """Say what the error makes of each row; rows of a model that have failed as often are judged alike."""
    known: dict[Any, Verdict] = {}
    verdicts: list[Verdict] = []
    for row, claim in zip(rows, carried_claims(rows), strict=True):
        alike = type(row), claim.attempts
        if alike not in known:
            refuse_faulty(type(row))
            policy = policy_for(type(row))
            known[alike] = policy.judge(error, claim.attempts + 1, retry=retry)
        verdicts.append(known[alike])
    return verdicts


def _end_badly(
    rows: list[M], error: BaseException | str, waits: dict[int, timedelta] | None
) -> list[M]:
    """Write a counted failure, final where no *waits* are given, and return the rows that were still held."""
    if not rows:
        return []
    words = text_to_store(error)
    how = Ended(failure=words, permanent=isinstance(error, Permanent))
    unknown = ["attempts", "last_error", "error_class"]
    if waits is not None:
        unknown += ["not_before", "iteration"]
    status = Status.FAILED if waits is None else Status.OPEN
    written: list[M] = []
    for part in by_database(rows):
        done: list[M] = _write_failed(part, waits, words)
        finish(done, how, status, unknown, rows_failed, error=error)
        written += done
    return written


def _write_failed(
    rows: Rows, waits: dict[int, timedelta] | None, words: tuple[str, str]
) -> list[Any]:
    """Write the failure of rows of one database.

    What the database refuses, for its encoding lacks a character of the text or for any other reason, is written again
    in escapes, and then without the text.
    """
    said = words
    for plainer in (escape_to_ascii, _nothing):
        try:
            return write_held(rows, _failing(waits, said))
        except (DatabaseError, UnicodeError) as error:
            if not is_refusal(error):
                raise
            said = plainer(words)
    return write_held(rows, _failing(waits, said))


def _nothing(words: tuple[str, str]) -> tuple[str, str]:
    return "", ""


def _failing(waits: dict[int, timedelta] | None, words: tuple[str, str]) -> Write:
    def change(target: ClaimTarget, rows: Rows) -> Change:
        charge = one_more_attempt(target)
        if waits is None:
            return Change([*failed(target, *words), *charge])
        waiting, amount = target.columns.not_before, target.dialect.amount
        amounts = [value(amount(waits[id(row)])) for row in rows]
        own = (
            []
            if waiting is None
            else [OwnValues(waiting, amounts, stored=target.dialect.moment_after)]
        )
        return Change([*why_failed(target, *words), *charge, *open_again(target)], own)

    return Write(change, 1, finished=() if waits is not None else (Status.FAILED,))


def release(given: Sequence[Any], wait: timedelta | None) -> int:
    """Give rows back uncounted, to wait so long; see ``ClaimQuerySet.release``."""
    written = _give_back(standing(given), wait)
    raise_unless_all(given, written)
    return len(written)


def give_back_apart(given: Sequence[Any]) -> int:
    """Give rows back uncounted, each to be claimed alone, where their model has a mark for that."""
    written = _give_back(standing(given), None, alone=True)
    raise_unless_all(given, written)
    return len(written)


def _give_back(rows: Sequence[M], wait: timedelta | None, *, alone: bool = False) -> list[M]:
    """Put rows back uncounted, and return those that were still held."""

    def change(target: ClaimTarget, same: Rows) -> Change:
        return Change(
            [*(crash_mark(target) if alone else due_later(target, wait)), *open_again(target)]
        )

    written: list[M] = []
    for part in by_database(rows):
        done: list[M] = write_held(part, Write(change))
        unknown = ["iteration"] if wait is None and not alone else ["iteration", "not_before"]
        finish(done, GIVEN_UP, Status.OPEN, unknown, rows_released)
        written += done
    return written


def begin(row: models.Model) -> None:
    """Give a row that may kill its worker its whole lease from here; ClaimLost where the claim stands no more."""
    started, claim = clock(), carried_claim(row)

    def change(target: ClaimTarget, rows: Rows) -> Change:
        return Change([*crash_mark(target), target.dialect.extension(target.table, claim.lease)])

    raise_unless_all([row], write_held([row], Write(change)))
    claim.extend(started)
