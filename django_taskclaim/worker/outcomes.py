"""What a handler makes of a row, and how the answer of a batch handler is read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

from django.db import models

from django_taskclaim.claim import Ended, carried_claim, claim_of
from django_taskclaim.columns import (
    as_claimed,
    claim_columns,
    has_claim_columns,
    is_companion,
    source_link,
)
from django_taskclaim.error_text import describe
from django_taskclaim.formatting import format_duration
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import policy_for


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call of a handler came to."""

    value: Any = None
    error: BaseException | None = None
    #: What a batch handler said of each row, where that has been read already.
    by_row: "list[BaseException | str | None] | None" = None
    #: The completion is part of what the call has committed.
    committed: bool = False
    #: The error came once everything had been done, from the COMMIT or a hook after it.
    at_commit: bool = False


UNMENTIONED = "The batch handler said nothing about this row."


@dataclass(frozen=True, eq=False, slots=True)
class Done:
    """The row is to be completed."""


#: What nearly all rows come to.
DONE = Done()


@dataclass(frozen=True, slots=True)
class Failed:
    """The row is to be failed, with this error."""

    error: BaseException | str


@dataclass(frozen=True, slots=True)
class PutBack:
    """The row is to be given back uncounted."""

    reason: str
    delay: timedelta | None = None
    #: To be claimed alone next time, because it may be the one that holds up its batch.
    quarantined: bool = False
    #: Nobody is to claim rows of the model while this one waits.
    everyone: bool = False


NOT_STARTED = PutBack("not started")


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """The COMMIT was not answered well, so the row's token must be read back before anything is said of it."""

    error: BaseException
    #: What becomes of the row if nothing was committed.
    otherwise: "Failed | PutBack"


#: Of a claim that has ended, by a verb of the handler's own or with its transaction, nothing is left to be written.
Outcome: TypeAlias = Done | Failed | PutBack | Ambiguous | Ended


def judged(row: models.Model, error: BaseException | str) -> Failed | PutBack:
    """Say what the policy makes of a claimed row that came to *error*."""
    verdict = policy_for(type(row)).judge(error, carried_claim(row).attempts + 1)
    if verdict.counted:
        return Failed(error)
    return PutBack(describe(error), verdict.wait(), everyone=verdict.everyone)


def outlived(handler: Handler) -> str:
    """Return what is said of a row whose handler ran too long."""
    return f"The handler ran longer than its timeout of {format_duration(handler.timeout or timedelta())}."


def of_answer(rows: Sequence[models.Model], answer: object) -> list[BaseException | str | None]:
    """Return what a batch handler's *answer* says of each row: None for done, else what went wrong.

    The answer is None (all are done), a mapping from rows or their keys to outcomes, or an iterable of rows and keys
    that are done and of pairs of a row and its outcome. An outcome is None for done, or an exception. A row that is
    not mentioned has failed. Where the handler got the sources of the rows, it names those, or their keys. Raises
    TypeError for an answer that is nothing of the kind.
    """
    if answer is None:
        return [None] * len(rows)
    said = dict(_pairs(answer))
    return [_outcome(_said_of(row, said)) for row in rows]


def _said_of(row: models.Model, said: Mapping[Any, Any]) -> object:
    return next((said[name] for name in _names(row) if name in said), UNMENTIONED)


def _names(row: models.Model) -> list[object]:
    """Return what the answer may call the row: by its key, or its source's if it is a companion."""
    if not is_companion(type(row)):
        return [_key_of(row)]
    key = source_link(type(row)).key_of(row)
    return [_key_of(row), key if len(key) > 1 else key[0]]


def _pairs(answer: object) -> Iterable[tuple[Any, Any]]:
    if isinstance(answer, Mapping):
        return [(_key(key), outcome) for key, outcome in answer.items()]
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise TypeError(
            f"A batch handler returns None, a mapping or an iterable of outcomes, not {answer!r:.200}."
        )
    return [_pair(item) for item in answer]


def _pair(item: object) -> tuple[Any, Any]:
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], models.Model):
        return _key_of(item[0]), item[1]
    return _key(item), None


def _key(given: object) -> object:
    return _key_of(given) if isinstance(given, models.Model) else given


class _CompanionKey(NamedTuple):
    """The key of a companion, which may also be the key of another's source."""

    key: Any


def _key_of(row: models.Model) -> Any:
    """Return the key that the row was claimed under; a handler may have deleted the row since."""
    row = as_claimed(row)
    if not has_claim_columns(type(row)):
        return row.pk
    claim = claim_of(row)
    key = claim_columns(type(row)).key_of(row) if claim is None else claim.pk
    return _CompanionKey(key) if is_companion(type(row)) else key


def _outcome(said: object) -> BaseException | str | None:
    if isinstance(said, type) and issubclass(said, BaseException):
        return said()
    if said is None or said is UNMENTIONED or isinstance(said, BaseException):
        return said
    return TypeError(f"The outcome of a row is None or an exception, not {said!r:.200}.")
