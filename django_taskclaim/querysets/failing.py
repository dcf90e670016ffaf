"""How rows end badly, and how they are given back unfinished."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from typing import NamedTuple, TypeVar

from django.db import DatabaseError, models

from django_taskclaim.claim import Ended, carried_claim, clock
from django_taskclaim.connecting import is_refusal
from django_taskclaim.db.sql import SQL, Key, OwnValues
from django_taskclaim.error_text import describe, escape_to_ascii, text_to_store
from django_taskclaim.exceptions import Permanent
from django_taskclaim.fields import QUARANTINED
from django_taskclaim.policy import known_policy
from django_taskclaim.querysets.assignments import FAILED, NOW, ONE_MORE, OPEN_AGAIN
from django_taskclaim.querysets.everyone import stop_everyone
from django_taskclaim.querysets.losses import raise_unless_all
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import (
    Given,
    HeldRows,
    Rows,
    Write,
    write,
    write_all,
)
from django_taskclaim.signals import rows_failed, rows_released

R = TypeVar("R")


def fail(rows: object, error: BaseException | str, *, retry: bool) -> int:
    """End rows badly as their policy judges *error*; see ``ClaimQuerySet.fail``."""
    given, text = Given(rows), text_to_store(error)
    endings: dict[_Ending, list[HeldRows]] = {}
    waits: dict[int, timedelta] = {}
    for held in given.held:
        judge = cache(partial(known_policy(held.target.model).judge, error, retry=retry))
        keys: dict[_Ending, list[Key]] = {}
        for key, row in held.by_key.items():
            verdict = judge(carried_claim(row).attempts + 1)
            wait = timedelta() if verdict.final else verdict.wait()
            ending = _Ending(verdict.final, verdict.everyone, None if verdict.counted else wait)
            keys.setdefault(ending, []).append(key)
            waits[id(row)] = wait
        for ending, those in keys.items():
            endings.setdefault(ending, []).append(held.only(those))
    for (final, everyone, put_off), ended in endings.items():
        if put_off is None:
            write_as = partial(_write_failure, given, ended, error, text, None if final else waits)
            store_text(write_as, text)
            continue
        for model, alias in {(one.target.model, one.target.alias) for one in ended if everyone}:
            stop_everyone(model, alias, put_off, describe(error))
        given.write(ended, _giving_back(put_off))
    return given.end()


class _Ending(NamedTuple):
    """What a failure makes of rows that are written together."""

    final: bool
    #: Whether nobody is to claim rows of the model meanwhile.
    everyone: bool
    #: How long rows wait that are charged no try.
    put_off: timedelta | None


def _write_failure(
    given: Given,
    held: list[HeldRows],
    error: BaseException | str,
    text: tuple[str, str],
    waits: dict[int, timedelta] | None,
    *stored: str,
) -> None:
    given.write(held, Failing(error, text, stored, waits))


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


class Failing(Write):
    """Writes a failure that counts: the last one of its row where no *waits* are given, by ``id()`` of the instance."""

    def __init__(
        self,
        error: BaseException | str,
        text: tuple[str, str],
        stored: tuple[str, ...],
        waits: dict[int, timedelta] | None,
    ) -> None:
        """*stored* is what the row gets of *text*, which is class and text of *error*."""
        state = FAILED if waits is None else OPEN_AGAIN
        why = dict(zip(("error_class", "last_error"), stored, strict=True))
        sets = {**why, "attempts": ONE_MORE, **state}
        how = Ended(failure=text, permanent=isinstance(error, Permanent))
        super().__init__(sets, rows_failed, how=how, error=error)
        self.waits = waits
        if waits is not None:
            self.per_row, self.shown = 1, {**sets, "not_before": NOW}

    def own_values(self, target: ClaimTarget, rows: Rows) -> Sequence[OwnValues]:
        waiting = target.columns.not_before
        if self.waits is None or waiting is None:
            return ()
        seconds = [SQL("%s", (self.waits[id(row)].total_seconds(),)) for row in rows]
        return [OwnValues(waiting, seconds, target.dialect.moment_after)]


def release(rows: object, wait: timedelta | None = None, *, quarantined: bool = False) -> int:
    """Give rows back uncounted; see ``ClaimQuerySet.release``.

    *quarantined* rows are claimed alone from now on: one of them held up, or broke, all the others.
    """
    return write_all(rows, _giving_back(QUARANTINED if quarantined else wait))


def _giving_back(later: timedelta | datetime | None) -> Write:
    """Return what puts rows back uncounted, to be due at a moment or so much later; None leaves their places."""
    waiting = {} if later is None else {"not_before": later}
    return Write({**waiting, **OPEN_AGAIN}, rows_released)


def note_start(row: models.Model) -> None:
    """Note that a quarantined row is started: if its claim expires now, it has killed its worker.

    Its whole lease runs from here, so that it cannot expire before the handler is called. ClaimLost where the claim
    stands no more.
    """
    started, claim = clock(), carried_claim(row)
    beginning = Write({"not_before": QUARANTINED, "expires_at": claim.lease})
    raise_unless_all([row], write(Given([row]).held, beginning))
    claim.extend(started)
