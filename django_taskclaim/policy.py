"""What a model's claims follow: how long a lease lasts, how many tries a row has, what becomes of it in the end.

``@handler`` fills it and every verb reads it, so ``row.fail(error)`` in a view does what the worker would do.
"""

import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models.expressions import Combinable

from django_taskclaim import conf
from django_taskclaim.allowances import Hours, Rate
from django_taskclaim.completion import Clear, Completion, Mark, as_completion
from django_taskclaim.conf import Kind, accepting
from django_taskclaim.error_text import describe, is_interrupt
from django_taskclaim.exceptions import Permanent, RetryLater

A = TypeVar("A", Rate, Hours)

logger = logging.getLogger("django_taskclaim")

#: How often a lease is renewed in its length, and the part of it after which what could not be renewed counts as lost.
RENEWALS_PER_LEASE, SELF_FENCE = 4, 0.9

#: Given how often a row has failed (1 for the first time), how long it waits.
Backoff = Callable[[int], timedelta | float]


def exponential_backoff(first: float, longest: float) -> Callable[[int], timedelta]:
    """Double the wait with each failure from *first* to at most *longest* seconds, with full jitter.

    Full jitter (any moment from now to the bound) is the scheme of the AWS architecture blog's
    "Exponential backoff and jitter": it spreads the retries of rows that failed together.
    """

    def wait(failures: int) -> timedelta:
        bound = min(longest, first * 2.0 ** min(failures - 1, 60))
        return timedelta(seconds=random.uniform(0, bound))

    return wait


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """How often a row is tried again after errors of one kind, and how long it waits; None as for any other error."""

    max_attempts: int | None = None
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        checked(self, _RETRY_OPTIONS)


#: What an error means for its row: no further try, one that is put off uncounted, or tries of its own.
Rule: TypeAlias = type[Permanent] | RetryLater | Retry


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one failure makes of its row."""

    #: No try is left, or none is wanted: the row becomes ``failed``.
    final: bool
    #: Whether a try is charged. If not, the row is put back as by ``release(delay=…)``.
    counted: bool
    #: Whether nobody is to claim rows of the model while this one waits.
    everyone: bool = False
    #: Returns how long the row waits before the next try. It asks the back-off, so once for each failure.
    wait: Callable[[], timedelta] = timedelta


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one model's claims; a field left None follows the settings, read at the moment of use."""

    own_lease: timedelta | None = None
    own_max_attempts: int | None = None
    own_backoff: Backoff | None = None
    #: What errors of these classes mean, and of their subclasses that are not named themselves.
    errors: Mapping[type[BaseException], Rule] = field(default_factory=dict, hash=False)
    #: What becomes of a row that is done.
    completion: Completion = field(default_factory=Mark)
    #: How many rows with one value of these columns are processing at once, at most.
    limit_per: Mapping[str, int] = field(default_factory=dict, hash=False)
    #: In which order claims take rows whose queryset names none, as for ``QuerySet.order_by()``.
    order_by: Sequence[str | Combinable] = field(default=(), hash=False)
    #: How many rows all who claim may claim in a time, how many may be processing at once, and at which hours of the
    #: day rows are claimed; what is stored for the model goes before these.
    rate: Rate | None = None
    max_running: int | None = None
    hours: Hours | None = None
    #: The column whose rows of one value are claimed one at a time and in order.
    serial_by: str | None = None
    #: Whether a row that failed keeps those behind it back until it is reset.
    failed_blocks: bool = True

    def __post_init__(self) -> None:
        checked(self, _OPTIONS)
        if self.serial_by is None and not self.failed_blocks:
            raise ValueError("failed_blocks=False says something of serial_by, which is not given.")
        if self.serial_by is not None and isinstance(self.completion, Clear):
            raise ValueError(
                f"serial_by={self.serial_by!r} cannot go with the completion 'clear': the first row of a key would be"
                " open again and again, and the others would never have their turn."
            )
        if self.serial_by is not None and "?" in self.order_by:
            raise ValueError(
                f"serial_by={self.serial_by!r} needs an order that stays the same, and '?' is none."
            )

    @property
    def lease(self) -> timedelta:
        return conf.duration("LEASE") if self.own_lease is None else self.own_lease

    @property
    def renewal_interval(self) -> timedelta:
        """How often a living worker renews a lease, and how long a reaper waits for that."""
        return self.lease / RENEWALS_PER_LEASE

    @property
    def max_attempts(self) -> int:
        return (
            int(conf.setting("MAX_ATTEMPTS"))
            if self.own_max_attempts is None
            else self.own_max_attempts
        )

    @property
    def counts_by_column(self) -> bool:
        """Whether rows that share a value of some column keep each other from being claimed."""
        return bool(self.limit_per) or self.serial_by is not None

    @property
    def names_limits(self) -> bool:
        """Whether claims have to look at limits."""
        return self.counts_by_column or bool(self.rate or self.max_running or self.hours)

    def judge(self, error: object, failures: int, *, retry: bool = True) -> Verdict:
        """Say what *error* makes of a row that has now failed *failures* times, this one included.

        Asked by ``fail()`` and by workers alike. With ``retry=False`` no error is worth another try.
        """
        rule = self._rule(error)
        if not retry or rule is Permanent:
            return Verdict(final=True, counted=True)
        if isinstance(rule, RetryLater):
            wait = partial(self._delay, rule)
            return Verdict(final=False, counted=False, everyone=rule.everyone, wait=wait)
        own = rule if isinstance(rule, Retry) else Retry()
        if failures >= (own.max_attempts or self.max_attempts):
            return Verdict(final=True, counted=True)
        waits = self._waits_after(failures, own.backoff)
        return Verdict(final=False, counted=True, wait=waits)

    def _rule(self, error: object) -> Rule | None:
        """Return what is said of the nearest class of *error*; Permanent and RetryLater speak for themselves."""
        kind = error if isinstance(error, type) else type(error)
        for cls in kind.__mro__:
            if cls in self.errors:
                return self.errors[cls]
            if cls is Permanent:
                return Permanent
            if cls is RetryLater:
                return error if isinstance(error, RetryLater) else RetryLater()
        return None

    def _waits_after(self, failures: int, backoff: Backoff | None) -> Callable[[], timedelta]:
        """Return what says how long a row waits after so many failures, by *backoff* or the policy's own.

        A back-off that raises or returns no duration is logged and replaced by that of the settings: the failure
        must be recorded all the same.
        """
        usual = exponential_backoff(
            conf.duration("BACKOFF_FIRST").total_seconds(),
            conf.duration("BACKOFF_MAX").total_seconds(),
        )
        own = backoff or self.own_backoff
        return partial(_sensible, own, failures, usual) if own else partial(usual, failures)

    def _delay(self, later: RetryLater) -> timedelta:
        """Return the delay asked for; a subclass may never have set one."""
        return _sensible(lambda _: later.delay, 1, lambda _: conf.duration("BACKOFF_FIRST"))


def _sensible(backoff: Backoff, number: int, usual: Backoff) -> timedelta:
    """Return what *backoff* says after *number* failures, or what *usual* does where that makes no sense."""
    try:
        return _checked_wait(backoff(number))
    except BaseException as error:
        if is_interrupt(error):
            raise
        logger.warning(
            "The wait after failure %d is the usual one, because the back-off could not be used: %s",
            number,
            describe(error),
            extra={"event": "trouble"},
        )
        return conf.waiting_time(usual(number))


def _checked_wait(wait: Any) -> timedelta:
    negative = wait < timedelta(0) if isinstance(wait, timedelta) else not 0 <= wait < math.inf
    if negative:
        raise ValueError(f"what a back-off returns must not be {wait!r}.")
    return conf.waiting_time(wait, "what a back-off returns")


# The options, each with its check


def checked(options: object, kinds: Mapping[str, Kind[Any]]) -> None:
    """Replace what was given for *options* by the values that it stands for; ValueError or TypeError in a sentence."""
    for name, kind in kinds.items():
        value = kind.check(getattr(options, name), name.removeprefix("own_"))
        object.__setattr__(options, name, value)


def refuse_no_number(given: int | None, name: str = "max_running") -> None:
    """Raise ValueError in one sentence unless *given* is None or a whole number from 1."""
    conf.or_none(conf.whole_number()).check(given, name)


def _read_errors(errors: Any) -> dict[type[BaseException], Rule]:
    if errors is None:
        return {}
    if not isinstance(errors, Mapping):
        raise ValueError
    for kind, rule in errors.items():
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise ValueError(f"errors must name exception classes, not {kind!r:.200}.")
        if rule is not Permanent and not isinstance(rule, (RetryLater, Retry)):
            raise ValueError(
                f"errors must say Permanent, RetryLater(seconds) or Retry(…) for {kind.__name__}, not {rule!r:.200}."
            )
    return dict(errors)


def _read_limits(limits: Any) -> dict[str, int]:
    if limits is None:
        return {}
    if not isinstance(limits, Mapping) or not all(isinstance(name, str) for name in limits):
        raise ValueError
    most = conf.whole_number()
    return {name: most.check(limit, f"limit_per of {name!r}") for name, limit in limits.items()}


def parsed(kind: type[A]) -> Kind[A | None]:
    """Return the kind of the limits that ``kind.parse`` reads from texts; None is none."""
    return conf.or_none(
        Kind("a limit", lambda given: given if isinstance(given, kind) else kind.parse(given))
    )


_RETRY_OPTIONS: Mapping[str, Kind[Any]] = {
    "max_attempts": conf.or_none(conf.whole_number()),
    "backoff": conf.or_none(accepting("a function of the number of failures", callable)),
}
_OPTIONS: Mapping[str, Kind[Any]] = {
    **{f"own_{name}": kind for name, kind in _RETRY_OPTIONS.items()},
    "own_lease": conf.or_none(conf.DURATION),
    "errors": Kind("a mapping from exception classes to what they mean", _read_errors),
    "completion": Kind("a completion", as_completion),
    "limit_per": Kind("a mapping from names of columns to numbers", _read_limits),
    "order_by": conf.list_of("a list of names and expressions", lambda _: True),
    "rate": parsed(Rate),
    "max_running": conf.or_none(conf.whole_number()),
    "hours": parsed(Hours),
    "serial_by": conf.or_none(
        accepting("the name of one column", lambda name: name and isinstance(name, str))
    ),
}

#: What could not be registered while Django started: the model, where it is known, and why. ``check`` reports each.
faults: list[tuple[type[models.Model] | None, str]] = []


def fault_of(model: type[models.Model]) -> str:
    """Say why the handler of *model*, or of a class it inherits from, is not registered; empty where none is wrong."""
    return next((why for named, why in faults if named and issubclass(model, named)), "")


def refuse_faulty(model: type[models.Model]) -> None:
    """Raise ImproperlyConfigured where the rules for claims of *model* are not known, because its handler is wrong."""
    if why := fault_of(model):
        raise ImproperlyConfigured(why)


_DEFAULT = Policy()
_policies: dict[type[models.Model], Policy] = {}


def set_policy(model: type[models.Model], policy: Policy) -> None:
    """Make *policy* the rule for the claims of *model*, its proxies and its children."""
    _policies[model] = policy


def forget_policy(model: type[models.Model]) -> None:
    """Let *model* follow the settings again."""
    _policies.pop(model, None)


def policy_for(model: type[Any]) -> Policy:
    """Return the policy of *model* or of the nearest class it inherits from; the settings' where none is set."""
    for cls in model.__mro__:
        if cls in _policies:
            return _policies[cls]
    return _DEFAULT


def policies_over(model: type[Any]) -> list[Policy]:
    """Return every policy set for *model* or for a class it inherits from, the nearest first."""
    return [_policies[cls] for cls in model.__mro__ if cls in _policies]


def policies_by_class(model: type[Any]) -> list[tuple[type[models.Model], Policy]]:
    """Return the policies of ``policies_over``, each with the class that it was set for."""
    return [(cls, _policies[cls]) for cls in model.__mro__ if cls in _policies]
