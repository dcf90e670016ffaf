"""What a health check is told, and what it may answer."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from django_taskclaim.conf import positive_duration


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The model whose claims a check may stop, and the database that they are made on."""

    model: type[Model]
    using: str

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection of the calling thread; one of the check's own, closed when it has answered."""
        return connections[self.using]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a check says: go on, or stop for a reason."""

    reason: str | None = None
    #: How long the stop holds without being asked again; None until the check says something else.
    lasting: timedelta | None = None


Check: TypeAlias = Callable[[Surroundings], Any]

_OK = Answer()


def ok() -> Answer:
    """Let claims be made."""
    return _OK


def stop(reason: str, lasting: float | timedelta | None = None) -> Answer:
    """Stop claims, for *reason*.

    With *lasting* (seconds or a timedelta) for so long, without asking again; else until the check, asked again
    every HEALTH_EVERY, answers otherwise. Raises ValueError without a reason.
    """
    if not reason or not isinstance(reason, str):
        raise ValueError(f"A stop needs a reason that people can read, not {reason!r}.")
    return Answer(reason, None if lasting is None else positive_duration(lasting, "lasting"))


def understood(said: object) -> Answer:
    """Return what a check's answer means: None and True are ``ok()``, a text is the reason of a stop, False a stop.

    Anything else is a TypeError.
    """
    if isinstance(said, Answer):
        return said
    if said is None or said is True:
        return ok()
    if said is False:
        return stop("the check says no")
    if isinstance(said, str):
        return stop(said)
    raise TypeError(f"A health check answers ok(), stop(reason), a reason or None, not {said!r}.")
