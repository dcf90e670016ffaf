"""How rows end badly, and how they are given back unfinished."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from django.db import DatabaseError, models

from django_taskclaim.claim import Ended, carried_claim, carried_claims, clock
from django_taskclaim.connecting import is_refusal
from django_taskclaim.db.sql import Change, Key, OwnValues, value
from django_taskclaim.error_text import describe, escape_to_ascii, text_to_store
from django_taskclaim.exceptions import Permanent
from django_taskclaim.policy import known_policy
from django_taskclaim.querysets.assignments import (
    due_later,
    failed,
    one_more_attempt,
    open_again,
    quarantine_mark,
    why_failed,
)
from django_taskclaim.querysets.everyone import stop_everyone
from django_taskclaim.querysets.losses import raise_unless_all
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import (
    Given,
    HeldRows,
    Rows,
    Write,
    held_rows,
    write,
    write_all,
)
from django_taskclaim.signals import rows_failed, rows_released
from django_taskclaim.states import Status

R = TypeVar("R")


def fail(rows: Any, error: BaseException | str, *, retry: bool) -> int:
    """End rows badly as their policy judges *error*; see ``ClaimQuerySet.fail``."""
    given = Given(rows)
    # By whether no try is left, and by the wait of rows that are charged none.
    endings: dict[tuple[bool, timedelta | None], list[HeldRows]] = {}
    waits: dict[int, timedelta] = {}
    for held in given.held:
        policy = known_policy(held.target.model)
        keys: dict[tuple[bool, timedelta | None], list[Key]] = {}
        for attempts, same in _by_attempts(held).items():
            verdict = policy.judge(error, attempts + 1, retry=retry)
            put_off = None if verdict.counted else verdict.wait()
            keys.setdefault((verdict.final, put_off), []).extend(same)
            if verdict.counted and not verdict.final:
                waits.update({id(held.by_key[key]): verdict.wait() for key in same})
            if verdict.everyone and put_off is not None:
                stop_everyone(held.target.model, held.target.alias, put_off, describe(error))
        for ending, those in keys.items():
            endings.setdefault(ending, []).append(held.only(those))
    for (final, put_off), ended in endings.items():
        if put_off is None:
            _write_failure(given, ended, error, None if final else waits)
        else:
            given.write(ended, GivingBack(put_off))
    return given.end()


def _by_attempts(held: HeldRows) -> dict[int, list[Key]]:
    """Group rows by how often they had failed when they were claimed: those are judged alike."""
    groups: dict[int, list[Key]] = {}
    for key, claim in zip(held.by_key, carried_claims(held.by_key.values()), strict=True):
        groups.setdefault(claim.attempts, []).append(key)
    return groups


def _write_failure(
    given: Given,
    held: list[HeldRows],
    error: BaseException | str,
    waits: dict[int, timedelta] | None,
) -> None:
    text = text_to_store(error)

    def write_as(*stored: str) -> None:
        given.write(held, Failing(error, text, stored, waits))

    store_text(write_as, text)


def store_text(write_as: Callable[[str, str], R], text: tuple[str, str], last: str = "") -> R:
    """Return what *write_as* returns of class and text of an error.

    What the database refuses, for its encoding lacks a character of the text or for any other reason, is written again
    in escapes, and then with the class *last* and no text.
    """
    for stored in (text, escape_to_ascii(text)):
        try:
            return write_as(*stored)
        except (DatabaseError, UnicodeError) as error:
            if not is_refusal(error):
                raise
    return write_as(last, "")


class Failing(Write):
    """Writes a failure that counts: the last one of its row where no *waits* are given, by ``id()`` of the instance."""

    signal = rows_failed

    def __init__(
        self,
        error: BaseException | str,
        text: tuple[str, str],
        stored: tuple[str, ...],
        waits: dict[int, timedelta] | None,
    ) -> None:
        """*stored* is what the row gets of *text*, which is class and text of *error*."""
        self.stored, self.waits = stored, waits
        self.how = Ended(failure=text, permanent=isinstance(error, Permanent))
        self.facts = {"error": error}
        self.unknown = ("attempts", "last_error", "error_class")
        if waits is None:
            self.status = Status.FAILED
            self.finished = (Status.FAILED,)
        else:
            self.status = Status.OPEN
            self.unknown += ("not_before", "iteration")
            self.per_row = 1

    def change(self, target: ClaimTarget, rows: Rows) -> Change:
        charge, waiting = one_more_attempt(target), target.columns.not_before
        if self.waits is None:
            return Change([*failed(target, *self.stored), *charge])
        shared = [*why_failed(target, *self.stored), *charge, *open_again(target)]
        if waiting is None:
            return Change(shared)
        seconds = [value(self.waits[id(row)].total_seconds()) for row in rows]
        return Change(shared, [OwnValues(waiting, seconds, target.dialect.moment_after)])


class GivingBack(Write):
    """Puts rows back uncounted, to wait so long, or, *quarantined*, to be claimed alone."""

    status = Status.OPEN
    signal = rows_released

    def __init__(self, wait: timedelta | None, *, quarantined: bool = False) -> None:
        self.wait, self.quarantined = wait, quarantined
        self.unknown = ("iteration", "not_before")

    def change(self, target: ClaimTarget, rows: Rows) -> Change:
        later = quarantine_mark(target) if self.quarantined else due_later(target, self.wait)
        return Change([*later, *open_again(target)])


def release(rows: Any, wait: timedelta | None = None, *, quarantined: bool = False) -> int:
    """Give rows back uncounted; see ``ClaimQuerySet.release``.

    *quarantined* rows are claimed alone from now on: one of them held up, or broke, all the others.
    """
    return write_all(rows, GivingBack(wait, quarantined=quarantined))


class Beginning(Write):
    """Marks a row again that may kill its worker, and gives it a new lease."""

    def __init__(self, lease: timedelta) -> None:
        self.lease = lease

    def change(self, target: ClaimTarget, rows: Rows) -> Change:
        return Change(
            [*quarantine_mark(target), target.dialect.extension(target.table, self.lease)]
        )


def note_start(row: models.Model) -> None:
    """Note that a quarantined row is started: if its claim expires now, it has killed its worker.

    Its whole lease runs from here, so that it cannot expire before the handler is called. ClaimLost where the claim
    stands no more.
    """
    started, claim = clock(), carried_claim(row)
    raise_unless_all([row], write(held_rows([row]), Beginning(claim.lease)))
    claim.extend(started)
