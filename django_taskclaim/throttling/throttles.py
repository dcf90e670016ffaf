"""Everything that may throttle the claims of one process, behind one object that its threads share."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from django.db.models import Model

from django_taskclaim.claim import clock
from django_taskclaim.contention import contention_retried
from django_taskclaim.throttling import records
from django_taskclaim.throttling.breaker import CircuitBreaker, Rule
from django_taskclaim.throttling.configured import health_checks, loaded
from django_taskclaim.throttling.holds import Hold
from django_taskclaim.throttling.records import Register, Stop
from django_taskclaim.throttling.watches import logger, watches

#: Seconds after which one ``update`` asks no further check: the rest waits for the next one.
BUDGET = 1.0

PRUNE_EVERY = 3600.0

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


#: Where nobody counts, nothing need be noted.
_NOTHING = nullcontext()


class Throttles:
    """The throttles of one process. ``update`` belongs to one thread; every other method may be called by any.

    *checks_of* names the models that the process claims, each with health checks of its own beside those of the
    settings. Raises ImportError or TypeError for an entry that is no check.
    """

    def __init__(
        self, process: str, using: str, checks_of: Mapping[type[Model], Iterable[Any]]
    ) -> None:
        self.using = using
        shared = health_checks()
        checks = {
            model: [*shared, *(loaded(entry) for entry in own)] for model, own in checks_of.items()
        }
        self._watches = list(watches(checks, using))
        rule = Rule.configured()
        self._breakers: dict[type[Model], CircuitBreaker] = (
            {} if rule is None else {model: CircuitBreaker(rule) for model in checks_of}
        )
        #: What others have found to hold.
        self._imposed: dict[Stop, Hold] = {}
        self._register = Register(process, using)
        self._told: dict[Stop, str] = {}
        self._has_looked = not self._watches
        self._prune_at = float("-inf")

    # What the claimer asks

    def reason_for(self, model: type[Model]) -> str | None:
        """Return why *model* may not be claimed now, None while it may; asks no database."""
        return next((hold.reason for _, hold in self._holds_of(model)), None)

    def gives_back(self, model: type[Model]) -> bool:
        """Say whether rows of *model* that have not started had better go back: tried now, they would fail."""
        return any(hold.gives_back for _, hold in self._holds_of(model))

    def room(self, model: type[Model]) -> int | None:
        """Return how many rows of *model* one claim may take: None for no limit, 0 before the first ``update``."""
        if not self._has_looked:
            return 0
        breaker = self._breakers.get(model)
        return None if breaker is None else breaker.room()

    # What others find

    def impose(self, model: type[Model], source: str, hold: Hold | None) -> None:
        """Stop claims of *model* until *hold* ends, or is taken back with None."""
        if hold is None:
            self._imposed.pop(Stop(model, source), None)
        else:
            self._imposed[Stop(model, source)] = hold

    # What the circuit breaker hears

    def claimed(self, model: type[Model], rows: int) -> None:
        """Note that a claim has returned so many rows."""
        if breaker := self._breakers.get(model):
            breaker.claimed(rows)

    def has_breaker(self, model: type[Model]) -> bool:
        """Say whether anybody wants to hear how tries of *model* end."""
        return model in self._breakers

    def heard(self, model: type[Model], *, good: int = 0, bad: int = 0) -> None:
        """Note how tries of *model* ended."""
        if breaker := self._breakers.get(model):
            breaker.heard(good=good, bad=bad)

    def working_on(self, model: type[Model]) -> AbstractContextManager[None]:
        """Let contention that is retried in the block, by this thread or coroutine, count for *model*."""
        return working_on(model) if self._breakers else _NOTHING

    def listen(self) -> None:
        """Hear of retries after contention until ``close``: one in a block of ``working_on`` counts as a failure."""
        if self._breakers:
            contention_retried.connect(self._hear_contention)

    def close(self) -> None:
        """Hear no more."""
        contention_retried.disconnect(self._hear_contention)

    def _hear_contention(self, **facts: Any) -> None:
        # Upkeep, such as a renewal, works on no model: whom it meets says nothing about how tries end.
        if (model := _working_on.get()) is not None:
            self.heard(model, bad=1)

    # What the service thread does

    def update(self) -> bool:
        """Ask the checks that are due and write down what holds; True if the database was asked and has answered.

        To be called about once a second. Takes BUDGET and one statement's PATIENCE at most; raises the errors of a
        database that is away, after which it may be called again as if nothing had happened.
        """
        asked = self._look()
        self._has_looked = True
        holds = dict(self._holds())
        self._tell(holds)
        written = self._register.keep(holds)
        pruned = self._prune_when_due()
        return asked or written or pruned

    def sign_off(self) -> None:
        """Take the process's rows out of the table: it ends as asked."""
        self._register.sign_off()

    def _look(self) -> bool:
        began = clock()
        asked = False
        for watch in sorted(self._watches, key=lambda watch: watch.due_at):
            if watch.due_at > clock() or clock() - began > BUDGET:
                break
            asked |= watch.look()
        return asked

    def _prune_when_due(self) -> bool:
        if clock() < self._prune_at or not (self._watches or self._breakers or self._imposed):
            return False
        self._prune_at = clock() + PRUNE_EVERY
        records.prune(self.using)
        return True

    def _tell(self, holds: Mapping[Stop, Hold]) -> None:
        """Log each throttle that has begun or ended."""
        for stop in [stop for stop in self._told if stop not in holds]:
            _log("unthrottled", "%s is throttled no more: %s", stop, self._told.pop(stop))
        for stop in [stop for stop in holds if stop not in self._told]:
            self._told[stop] = holds[stop].reason
            _log("throttled", "%s is throttled: %s", stop, holds[stop].reason)

    # What holds

    def _holds(self) -> Iterator[tuple[Stop, Hold]]:
        for watch in self._watches:
            if (hold := watch.hold()) is not None:
                yield from ((Stop(model, watch.name), hold) for model in watch.models)
        for model, breaker in self._breakers.items():
            if (hold := breaker.hold()) is not None:
                yield Stop(model, BREAKER), hold
        for stop, hold in list(self._imposed.items()):
            if clock() < hold.until:
                yield stop, hold

    def _holds_of(self, model: type[Model]) -> Iterator[tuple[Stop, Hold]]:
        return ((stop, hold) for stop, hold in self._holds() if stop.model is model)


def _log(event: str, text: str, stop: Stop, reason: str) -> None:
    label = stop.model._meta.label
    facts = {"event": event, "model": label, "source": stop.source, "reason": reason}
    logger.warning(text, label, reason, extra=facts)
