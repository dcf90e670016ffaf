"""Everything that may throttle the claims of one process, behind one object that its threads share."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from django.db.models import Model

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.contention import contention_retried
from django_taskclaim.throttling.asking import HealthChecks
from django_taskclaim.throttling.breaker import CircuitBreaker
from django_taskclaim.throttling.health import health_checks, loaded
from django_taskclaim.throttling.records import ThrottleKey, ThrottleRecords, ThrottleState

BREAKER = "circuit breaker"

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


class Throttles:
    """The throttles of one process. ``update`` belongs to one thread; every other method may be called by any.

    *checks_of* names the models that the process claims, each with health checks of its own beside those of the
    settings. Raises ImportError or TypeError for an entry that is no check.
    """

    def __init__(
        self, process: str, using: str, checks_of: Mapping[type[Model], Iterable[Any]]
    ) -> None:
        shared, rule = health_checks(), conf.setting("BREAKER")
        self._checks = HealthChecks(
            using, {model: [*shared, *map(loaded, own)] for model, own in checks_of.items()}
        )
        self._breakers = (
            {} if rule is None else {model: CircuitBreaker(**rule) for model in checks_of}
        )
        #: What others have found to hold.
        self._imposed: dict[ThrottleKey, tuple[datetime, ThrottleState]] = {}
        self._records = ThrottleRecords(process, using)
        if self._breakers:
            contention_retried.connect(self._count_contention)

    # What the claimer asks

    def reason_for(self, model: type[Model]) -> str | None:
        """Return why *model* may not be claimed now, None while it may; asks no database."""
        return next((state.reason for key, state in self._states() if key.model is model), None)

    def gives_back(self, model: type[Model]) -> bool:
        """Whether rows of *model* that have not started had better go back: tried now, they would fail."""
        return any(state.gives_back for key, state in self._states() if key.model is model)

    def room(self, model: type[Model]) -> int | None:
        """Return how many rows of *model* one claim may take: None for no limit, 0 before the checks have answered."""
        if not self._checks.have_answered():
            return 0
        breaker = self._breakers.get(model)
        return None if breaker is None else breaker.room()

    # What others find

    @property
    def has_imposed(self) -> bool:
        """Whether anything is stopped by what others have found."""
        return bool(self._imposed)

    def impose(
        self, model: type[Model], source: str, reason: str, until: datetime, now: datetime
    ) -> None:
        """Stop claims of *model* until then; *now* is by the same clock."""
        key = ThrottleKey(model, source)
        known = self._imposed.get(key)
        # What holds already stays the same state, so that it is not written down again.
        if known is None or (known[0], known[1].reason) != (until, reason):
            end = clock() + (until - now).total_seconds()
            self._imposed[key] = until, ThrottleState(reason, end, gives_back=True)

    def lift(self, model: type[Model], source: str) -> None:
        """Let claims of *model* go on, as far as this source was in the way."""
        self._imposed.pop(ThrottleKey(model, source), None)

    # What the circuit breaker hears

    def claimed(self, model: type[Model], rows: int) -> None:
        """Note that a claim has returned so many rows."""
        if breaker := self._breakers.get(model):
            breaker.claimed(rows)

    def has_breaker(self, model: type[Model]) -> bool:
        """Whether the outcomes of tries of *model* count for anything."""
        return model in self._breakers

    def heard(self, model: type[Model], *, good: int = 0, bad: int = 0) -> None:
        """Note how tries of *model* ended."""
        if breaker := self._breakers.get(model):
            breaker.heard(good=good, bad=bad)

    def working_on(self, model: type[Model]) -> AbstractContextManager[None]:
        """Do what the function does, at no cost where there is no breaker."""
        return working_on(model) if self._breakers else nullcontext()

    def _count_contention(self, **facts: object) -> None:
        # Upkeep, such as a renewal, works on no model, so its contention is no failure of one.
        if (model := _working_on.get()) is not None:
            self.heard(model, bad=1)

    # What the service thread does

    def update(self) -> None:
        """Have the checks asked that are due, and write down what holds; to be called about once a second.

        Raises the errors of a database that is away, after which it may be called again.
        """
        self._checks.ask_when_due()
        self._records.keep(dict(self._states()))

    def sign_off(self) -> None:
        """Take the process's rows out of the table: it ends as asked."""
        self._records.sign_off()

    def _states(self) -> Iterator[tuple[ThrottleKey, ThrottleState]]:
        yield from self._checks.states()
        for model, breaker in self._breakers.items():
            if (state := breaker.state()) is not None:
                yield ThrottleKey(model, BREAKER), state
        for key, (_, state) in list(self._imposed.items()):
            if clock() < state.until:
                yield key, state
