"""Everything that may throttle the claims of one process, behind one object that its threads share.

The checks of a process are asked one after the other, each in a short thread: a check may hang, and the caller has
leases to renew. One that hangs keeps its thread, and the others are asked on. What holds is part of the report of the
process, for people to read, by the database's clock.
"""

import logging
import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TypeAlias

from django.db import NotSupportedError
from django.db.models import Model
from django.utils.connection import ConnectionDoesNotExist

from django_taskclaim import conf
from django_taskclaim.awaitables import name_of
from django_taskclaim.claim import clock
from django_taskclaim.connecting import start_thread, use_own_connection
from django_taskclaim.contention import contention_retried
from django_taskclaim.error_text import redact
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.tables import scope_of

#: Given the alias of the database, it returns the reason of a stop, or None.
Check: TypeAlias = Callable[[str], str | None]

logger = logging.getLogger("django_taskclaim.throttling")

#: A stop outlives so many questions that should have been asked, and SHORTEST_STOP seconds at least; then it ends.
QUESTIONS_MISSED, SHORTEST_STOP = 3, 5.0
#: Seconds without an answer after which a check counts as hanging.
HANGING = 5.0
#: Seconds between two warnings about one check that does not work.
WARN_EVERY = 60.0
#: The longest rest of a circuit breaker, in rests.
LONGEST_REST = 10

#: The model that the current thread or coroutine works for.
_working_on: ContextVar[type[Model] | None] = ContextVar("taskclaim_working_on", default=None)


@contextmanager
def working_on(model: type[Model]) -> Iterator[None]:
    """Let contention that is retried in the block, by this thread or coroutine, count for *model*."""
    before = _working_on.set(model)
    try:
        yield
    finally:
        _working_on.reset(before)


class HealthCheck:
    """One check, the models it stops, and what it answered last."""

    def __init__(self, check: Check) -> None:
        #: What people read where it stops something.
        self.name = str(getattr(check, "name", "") or name_of(check))
        self.models: list[type[Model]] = []
        #: By ``clock()``: when it was asked last, and is to be asked again. The latter is known once it has answered,
        #: or has not answered in time.
        self.asked_at, self.due_at = -math.inf, -math.inf
        self._check = check
        #: It lives while the check is asked, and has a connection of its own.
        self.thread = threading.Thread()
        #: Why its models are stopped, empty where they are not, and until when by ``clock()``, if it asks for no more.
        self.reason, self.until = "", 0.0
        self._warned_at = -math.inf

    def begin(self, using: str) -> None:
        """Ask the check in a thread."""
        self.asked_at = clock()
        self.thread = start_thread("check", self._ask, using)

    def _ask(self, using: str) -> None:
        try:
            use_own_connection(using)
            self.note(self._check(using))
        except (NotSupportedError, ConnectionDoesNotExist) as error:
            # It can never be answered, which is no reason to go on without it.
            self.note(str(error))
        except BaseException as error:
            self.note(None, broken=f"{type(error).__name__}: {error}")

    def note(self, reason: str | None, *, broken: str = "") -> None:
        """Stop the models for *reason*, if there is one; why the check is *broken* is logged, once a minute."""
        if not isinstance(reason, str | None):
            raise TypeError(f"a health check returns a reason or None, not {reason!r}")
        every = conf.duration("HEALTH_EVERY").total_seconds()
        # Reports keep 500 characters, without those that a database refuses.
        self.reason = redact(reason or "")[:500]
        self.until = clock() + max(QUESTIONS_MISSED * every, SHORTEST_STOP)
        # Spread out, so that the processes of a host do not all ask at once.
        self.due_at = self.asked_at + every * random.uniform(0.75, 1.0)
        if broken and clock() - self._warned_at >= WARN_EVERY:
            self._warned_at = clock()
            text = "The health check %s does not work, so it stops nothing: %s"
            facts = {"event": "check_broken", "check": self.name}
            logger.warning(text, self.name, broken, extra=facts)


class CircuitBreaker:
    """When most tries of a model fail, it stops trying for a while, and then tries with one row.

    Closed it counts, open it rests, half open it lets one row through. If that is done, it closes again; if it fails,
    the next rest is longer. The name and the three states are those of Michael Nygard's "Release It!".

    There is one for each model of a process; any thread may call any method. It trips when the share
    ``TASKCLAIM["BREAKER"]`` of at least ``BREAKER_OUTCOMES`` tries in the window failed.
    """

    name = "circuit breaker"

    def __init__(self, model: type[Model]) -> None:
        self.models = [model]
        self._rate, self._outcomes = conf.setting("BREAKER"), conf.setting("BREAKER_OUTCOMES")
        self._within = conf.duration("BREAKER_WITHIN").total_seconds()
        self._first_rest = conf.duration("BREAKER_REST").total_seconds()
        self._lock = threading.Lock()
        self._trips = 0
        #: Why it rests, or has rested, empty while it is closed, and until when by ``clock()``.
        self.reason, self.until = "", 0.0
        self._begin_to_count()

    def heard(self, *, good: int = 0, bad: int = 0) -> None:
        """Count outcomes. While it rests they are late ones of before, and are ignored."""
        with self._lock:
            if self.rests() or not good + bad:
                return
            if self.reason:
                # After a rest one try decides.
                self._begin_to_count()
                if good:
                    self.reason = ""
                else:
                    self._rest("a try after a rest failed again")
                return
            if clock() - self._counts_since > self._within:
                self._begin_to_count()
                self._trips = 0
            self._good += good
            self._bad += bad
            total = self._good + self._bad
            if bad and total >= self._outcomes and self._bad / total >= self._rate:
                self._rest(f"{self._bad} of the last {total} tries failed")

    def rests(self) -> bool:
        """Say whether nothing may be claimed now; what has not started is to go back, because it would only fail."""
        return clock() < self.until

    def _begin_to_count(self) -> None:
        self._good, self._bad, self._counts_since = 0, 0, clock()

    def _rest(self, reason: str) -> None:
        """Rest from now on, twice as long as the last time if that was not long ago."""
        self._trips += 1
        rests = min(2 ** (self._trips - 1), LONGEST_REST)
        self.until, self.reason = clock() + rests * self._first_rest, reason


class Throttles:
    """The throttles of one process. ``ask`` and ``report`` belong to one thread; any thread may call the other methods.

    *checks_of* names the models that the process claims, each with its health checks.
    """

    def __init__(self, using: str, checks_of: Mapping[type[Model], Iterable[Check]]) -> None:
        self.using = using
        checks: dict[int, HealthCheck] = {}
        for model, own in checks_of.items():
            for check in own:
                checks.setdefault(id(check), HealthCheck(check)).models.append(model)
        #: Each once for all the models it stops.
        self._checks = list(checks.values())
        is_on = conf.setting("BREAKER") is not None
        #: Told how tries of their models ended; empty where the settings have none.
        self.breakers = {model: CircuitBreaker(model) for model in checks_of} if is_on else {}
        contention_retried.connect(self._count_contention)

    # What the claimer asks

    def reason_for(self, model: type[Model]) -> str:
        """Return why *model* may not be claimed now, empty while it may; asks no database."""
        return next((one.reason for of, one in self._in_force() if of is model), "")

    def most(self, model: type[Model]) -> float:
        """Return how many rows of *model* a claim may take: 0 before the checks have answered, 1 after a rest."""
        if any(check.due_at == -math.inf for check in self._checks):
            return 0
        return math.inf if self.trial_since(model) is None else 1

    def trial_since(self, model: type[Model]) -> float | None:
        """Return the end of the rest after which one row of *model* is tried, by ``clock()``; None where none is."""
        breaker = self.breakers.get(model)
        return breaker.until if breaker and breaker.reason else None

    def _count_contention(self, **facts: object) -> None:
        # A renewal and other upkeep work on no model, so their contention is no failure of one.
        if (model := _working_on.get()) in self.breakers:
            self.breakers[model].heard(bad=1)

    # What the service thread does

    def ask(self) -> None:
        """Ask the next check that is due; asks no database itself, and is to be called several times a second."""
        asked = [check for check in self._checks if check.thread.is_alive()]
        hanging = [check for check in asked if clock() - check.asked_at > HANGING]
        for check in hanging:
            check.note(None, broken=f"it has not answered for {HANGING:g} s")
        due = [check for check in self._checks if check.due_at <= clock() and check not in asked]
        if due and asked == hanging:
            min(due, key=lambda check: check.due_at).begin(self.using)

    def report(self) -> list[dict[str, str]]:
        """Return what holds now, for the report of the process."""
        if not (stops := self._in_force()):
            return []
        now = database_time(self.using)
        return [
            {
                "label": scope_of(model),
                "source": one.name,
                "reason": one.reason,
                "until": (now + timedelta(seconds=one.until - clock())).isoformat(),
            }
            for model, one in stops
        ]

    def _in_force(self) -> list[tuple[type[Model], HealthCheck | CircuitBreaker]]:
        """Return which model is stopped now, and by what."""
        throttles: list[HealthCheck | CircuitBreaker] = [*self._checks, *self.breakers.values()]
        asking = [one for one in throttles if one.reason and clock() < one.until]
        return [(model, one) for one in asking for model in one.models]
