"""When each health check is asked, and what holds because of it.

The checks of a process are asked one after the other, in a thread of their own: a check may hang, and the caller has
leases to renew. A check that hangs keeps its thread, and another thread asks the rest.
"""

import random
import threading
from collections.abc import Iterator, Mapping, Sequence

from django.db import connections
from django.db.models import Model

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.connecting import use_own_connection
from django_taskclaim.throttling.health import Check, name_of
from django_taskclaim.throttling.records import ThrottleKey, ThrottleState, logger

#: A stop outlives so many questions that should have been asked, and SHORTEST_STOP seconds at least; then it ends.
QUESTIONS_MISSED, SHORTEST_STOP = 3, 5.0

#: Seconds without an answer after which a check counts as hanging.
HANGING = 5.0

#: Seconds between two warnings about one check that does not work.
WARN_EVERY = 60.0


class HealthCheck:
    """One check, the models it stops, and what it answered last."""

    def __init__(self, check: Check) -> None:
        self.name = name_of(check)
        self.models: list[type[Model]] = []
        self.due_at = float("-inf")
        #: When the question was asked that has no answer yet.
        self.asked_at: float | None = None
        self.has_answered = False
        self._check = check
        self._state: ThrottleState | None = None
        self._warned_at = float("-inf")

    def state(self) -> ThrottleState | None:
        """Return the stop that is in force."""
        state = self._state
        return state if state is not None and clock() < state.until else None

    def is_hanging(self) -> bool:
        asked_at = self.asked_at
        return asked_at is not None and clock() - asked_at > HANGING

    def ask(self, using: str) -> None:
        """Ask the check and note what it answers; one that raises stops nothing."""
        every = conf.duration("HEALTH_EVERY").total_seconds()
        # Spread out, so that the processes of a host do not all ask at once.
        self.due_at = clock() + every * random.uniform(0.75, 1.0)
        try:
            reason = self._check(using)
            if not isinstance(reason, str | None):
                raise TypeError(f"a health check returns a reason or None, not {reason!r}")
        except Exception as error:
            self.note_broken(f"{type(error).__name__}: {error}")
            connections.close_all()
        else:
            stands_for = max(QUESTIONS_MISSED * every, SHORTEST_STOP)
            self._state = ThrottleState(reason, clock() + stands_for) if reason else None
        self.asked_at, self.has_answered = None, True

    def note_broken(self, why: str) -> None:
        """Stop nothing, and log the reason once a minute."""
        self._state, self.has_answered = None, True
        if clock() - self._warned_at >= WARN_EVERY:
            self._warned_at = clock()
            logger.warning(
                "The health check %s does not work, so it stops nothing: %s",
                self.name,
                why,
                extra={"event": "check_broken", "check": self.name},
            )


class HealthChecks:
    """All health checks of one process, each asked once for all the models it stops."""

    def __init__(self, using: str, checks_of: Mapping[type[Model], Sequence[Check]]) -> None:
        self.using = using
        checks: dict[int, HealthCheck] = {}
        for model, own in checks_of.items():
            for check in own:
                checks.setdefault(id(check), HealthCheck(check)).models.append(model)
        self._checks = list(checks.values())
        self._lock = threading.Lock()

    def have_answered(self) -> bool:
        """Whether each check has been asked once, so that its models may be claimed."""
        return all(check.has_answered for check in self._checks)

    def states(self) -> Iterator[tuple[ThrottleKey, ThrottleState]]:
        """Yield what holds now; asks nothing."""
        for check in self._checks:
            if (state := check.state()) is not None:
                yield from ((ThrottleKey(model, check.name), state) for model in check.models)

    def ask_when_due(self) -> None:
        """Have the checks asked that are due; does not wait for their answers."""
        for check in self._checks:
            if check.is_hanging():
                check.note_broken(f"it has not answered for {HANGING:g} s")
        if (due := self._take_due()) is not None:
            thread = threading.Thread(
                target=self._ask, args=(due,), name="taskclaim-check", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                # It has not been asked, and is due still.
                due.asked_at = None
                raise

    def _take_due(self) -> HealthCheck | None:
        """Return a check to ask; None where none is due, or one that does not hang has yet to answer."""
        with self._lock:
            asked = [one for one in self._checks if one.asked_at is not None]
            if not all(one.is_hanging() for one in asked):
                return None
            now = clock()
            due = next((o for o in self._checks if o.due_at <= now and o not in asked), None)
            if due is not None:
                due.asked_at = now
            return due

    def _ask(self, check: HealthCheck | None) -> None:
        use_own_connection(self.using)
        try:
            while check is not None:
                check.ask(self.using)
                check = self._take_due()
        finally:
            connections.close_all()
