"""How rows end badly, and how they are given back unfinished."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

from django.db import models

from django_taskclaim.exceptions import Permanent
from django_taskclaim.failures import recorded, told
from django_taskclaim.policy import Verdict, policy_for, refuse_faulty
from django_taskclaim.querysets import fencing
from django_taskclaim.querysets.assignments import (
    Assignments,
    begin_assignments,
    release_assignments,
    set_apart,
)
from django_taskclaim.querysets.completing import show_state
from django_taskclaim.querysets.everyone import stop_everyone
from django_taskclaim.querysets.losses import raise_unless_all
from django_taskclaim.querysets.telling import tell
from django_taskclaim.signals import rows_failed, rows_released
from django_taskclaim.states import Status
from django_taskclaim.tokens import Ended, carried_claim, clock, standing_claim

M = TypeVar("M", bound=models.Model)


def fail(given: Sequence[M], error: BaseException | str, *, retry: bool) -> int:
    """End rows badly as their policy judges *error*; see ``ClaimQuerySet.fail``."""
    carrying, _ = fencing.carrying(given)
    verdicts = [(row, _verdict(row, error, retry)) for row in carrying]
    written = _end_badly([(row, one) for row, one in verdicts if one.counted], error)
    uncounted: dict[timedelta, list[M]] = {}
    for row, verdict in verdicts:
        if not verdict.counted:
            wait = verdict.wait()
            uncounted.setdefault(wait, []).append(row)
            if verdict.everyone:
                stop_everyone(type(row), carried_claim(row).alias, wait, told(error))
    for wait, same in uncounted.items():
        chosen = release_assignments(wait)
        written += _open_again(same, chosen, ["iteration", "not_before"])
    raise_unless_all(given, written)
    return len(written)


def _verdict(row: models.Model, error: object, retry: bool) -> Verdict:
    claim = standing_claim(row)
    assert claim is not None, "only rows that carry a claim are judged"
    refuse_faulty(type(row))
    return policy_for(type(row)).judge(error, claim.attempts + 1, retry=retry)


def _end_badly(judged: Sequence[tuple[M, Verdict]], error: BaseException | str) -> list[M]:
    """Write what a counted failure makes of each row, and return those that were still held."""
    if not judged:
        return []
    told = recorded(error)
    waits = {id(row): None if verdict.final else verdict.wait() for row, verdict in judged}
    new, written = ("attempts", "last_error", "error_class"), []
    for part in fencing.by_database([row for row, _ in judged]):
        done: list[M] = fencing.write_failed(part, waits, told)
        fencing.end(done, Ended(failure=told, permanent=isinstance(error, Permanent)))
        failed = [row for row in done if waits[id(row)] is None]
        waiting = [row for row in done if waits[id(row)] is not None]
        show_state(failed, Status.FAILED, *new)
        show_state(waiting, Status.OPEN, *new, "not_before", "iteration")
        tell(rows_failed, done, error=error)
        written += done
    return written


def release(given: Sequence[Any], wait: timedelta | None) -> int:
    """Give rows back uncounted, to wait so long; see ``ClaimQuerySet.release``."""
    unknown = ["iteration"] if wait is None else ["iteration", "not_before"]
    return _give_back(given, release_assignments(wait), unknown)


def give_back_apart(given: Sequence[Any]) -> int:
    """Give rows back uncounted, each to be claimed alone."""
    return _give_back(given, set_apart, ["iteration", "not_before"])


def _give_back(given: Sequence[Any], assignments: Assignments, unknown: Sequence[str]) -> int:
    carrying, _ = fencing.carrying(given)
    written = _open_again(carrying, assignments, unknown)
    raise_unless_all(given, written)
    return len(written)


def _open_again(rows: Sequence[M], assignments: Assignments, unknown: Sequence[str]) -> list[M]:
    """Put rows back uncounted, and return those that were still held."""
    written: list[M] = []
    for part in fencing.by_database(rows):
        done = fencing.write_held(part, assignments)
        fencing.end(done)
        show_state(done, Status.OPEN, *unknown)
        tell(rows_released, done)
        written += done
    return written


def begin(row: models.Model) -> None:
    """Give a row that may kill its worker its whole lease from here; ClaimLost where the claim stands no more."""
    started, claim = clock(), carried_claim(row)
    raise_unless_all([row], fencing.write_held([row], begin_assignments(claim.lease)))
    claim.extend(started)
