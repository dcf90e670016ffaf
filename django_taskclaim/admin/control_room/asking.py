"""Questions that may not take long: what a page cannot learn in time, it shows as it was last known."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Generic, TypeVar

from django.db import Error, connections
from django.utils import timezone

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.monitoring.server import server_for

T = TypeVar("T")

#: What this process was last told, by database, subject and question.
_known: dict[tuple[str, str, str], tuple[Any, datetime]] = {}

_lock = Lock()

#: So many answers are remembered, the latest; names of questions may hold what users filter by.
MOST = 1_000

#: A question is not even asked when less is left.
LEAST = timedelta(milliseconds=5)


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What was answered and when; None where it was never known."""

    value: T | None
    at: datetime
    #: Whether the database did not answer in time, so that this is old.
    late: bool = False


class Asking:
    """The questions of one page about one subject: all may take PAGE_TIMEOUT, each statement what is left of it."""

    def __init__(self, alias: str, subject: str, left: timedelta | None = None) -> None:
        self.alias = alias
        self.subject = subject
        most = conf.duration("PAGE_TIMEOUT") if left is None else left
        self._ends = clock() + most.total_seconds()
        #: When the oldest answer was given, where one was late.
        self.late_since: datetime | None = None

    @property
    def left(self) -> timedelta:
        """How long further questions may take."""
        return timedelta(seconds=max(0.0, self._ends - clock()))

    def ask(self, name: str, question: Callable[[], T]) -> Answer[T]:
        """Return the answer, or the last one that this process has had; never raises what a database raises."""
        key = (self.alias, self.subject, name)
        try:
            answer = Answer(self._answer(question), timezone.now())
        except (Error, TaskClaimError, TimeoutError):
            _leave_usable(self.alias)
            value, at = _known.get(key, (None, timezone.now()))
            self.late_since = min(at, self.late_since or at)
            return Answer(value, at, late=True)
        _remember(key, (answer.value, answer.at))
        return answer

    def _answer(self, question: Callable[[], T]) -> T:
        left = self.left
        if left < LEAST:
            raise TimeoutError
        with server_for(connections[self.alias]).time_limit(left):
            return question()


def _remember(key: tuple[str, str, str], known: tuple[Any, datetime]) -> None:
    with _lock:
        _known.pop(key, None)
        _known[key] = known
        while len(_known) > MOST:
            del _known[next(iter(_known))]


def _leave_usable(alias: str) -> None:
    """Let the next question have a connection that works."""
    connection = connections[alias]
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()


def forget() -> None:
    """Forget every answer; for tests."""
    _known.clear()
