"""How rows end badly, and how they are given back unfinished."""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TypeVar

from django.db import DatabaseError, models
from django.db.models import Case, F, Q, When

from django_taskclaim.claim import Ended, carried_claim, clock
from django_taskclaim.connecting import is_refusal
from django_taskclaim.contention import retry_on_contention
from django_taskclaim.db import DatabaseLater, DatabaseNow
from django_taskclaim.db.sql import SQL, Key, OwnValues
from django_taskclaim.error_text import describe, escape_to_ascii, text_to_store
from django_taskclaim.exceptions import ClaimLost, Permanent
from django_taskclaim.fields import QUARANTINED
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.scope import FAILED, NOW, ONE_MORE, OPEN_AGAIN
from django_taskclaim.querysets.writes import Given, HeldRows, Write, write_all
from django_taskclaim.signals import rows_failed, rows_released
from django_taskclaim.tables import Switch, scope_of, throttle_scope

R = TypeVar("R")

logger = logging.getLogger("django_taskclaim")


def fail(rows: object, error: BaseException | str, *, retry: bool) -> int:
    """End rows badly as their policy judges *error*; see ``ClaimQuerySet.fail``."""
    given, text = Given(rows), text_to_store(error)
    for held in given.held:
        model = held.target.model
        judge = cache(partial(policy_for(model).judge, error, retry=retry))
        verdicts = {claim.pk: judge(claim.attempts + 1) for claim in held.claims}
        first = verdicts[held.keys[0]]
        if not first.counted:
            # RetryLater is the same for each row.
            wait = first.wait()
            if first.everyone:
                stop_everyone(model, held.target.alias, wait, describe(error))
            given.write(held, _giving_back(wait))
            continue
        waits = {key: one.wait() for key, one in verdicts.items() if not one.final}
        for part in (held.but_for(waits), held.only(waits)):
            if part.rows:
                is_final = part.keys[0] not in waits
                verb = _failure(error, text, None if is_final else waits)
                store_text(partial(_write_failure, given, part, verb), text)
    return given.end()


def _failure(
    error: BaseException | str, text: tuple[str, str], waits: Mapping[Key, timedelta] | None
) -> Write:
    """Return what writes a failure that counts: the last one of its rows where they have no *waits*, by key."""
    return Write(
        sets={"attempts": ONE_MORE, **(FAILED if waits is None else OPEN_AGAIN)},
        own=None if waits is None else partial(_waits, waits),
        per_row=int(waits is not None),
        how=Ended(failure=text, permanent=isinstance(error, Permanent)),
        signal=rows_failed,
        facts={"error": error},
    )


def _waits(waits: Mapping[Key, timedelta], held: HeldRows) -> list[OwnValues]:
    """Return the waiting time of each row, where the model has one."""
    waiting = held.target.columns.not_before
    seconds = [SQL("%s", (waits[key].total_seconds(),)) for key in held.keys]
    moment = held.target.dialect.moment_after
    return [] if waiting is None else [OwnValues(waiting, seconds, moment)]


def _write_failure(
    given: Given, held: HeldRows, verb: Write, error_class: str, last_error: str
) -> None:
    """Write a failure with as much of its text as the row is to keep."""
    verb.sets = {**verb.sets, "error_class": error_class, "last_error": last_error}
    verb.shown = verb.sets if verb.own is None else {**verb.sets, "not_before": NOW}
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
    return Write(sets={**waiting, **OPEN_AGAIN}, signal=rows_released)


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
    end, holds = DatabaseLater(lasting), Q(until__gt=DatabaseNow(), paused_at__isnull=False)

    @retry_on_contention(using=using)
    def store() -> None:
        row = Switch.row(throttle_scope(scope_of(model)), using)
        row.filter(Q(until=None) | Q(until__lt=end)).update(
            paused_at=Case(When(holds, then=F("paused_at")), default=DatabaseNow()),
            until=end,
            reason=reason[:500],
            by=by[:200],
        )

    store()
