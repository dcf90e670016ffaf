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
from typing import Any, TypeAlias

from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models.expressions import Combinable

from django_taskclaim import conf
from django_taskclaim.allowances import Hours, Rate
from django_taskclaim.completion import Clear, Completion, Mark
from django_taskclaim.error_text import describe, is_interrupt
from django_taskclaim.exceptions import Permanent, RetryLater

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
        refuse_no_number(self.max_attempts, "max_attempts")
        if self.backoff is not None and not callable(self.backoff):
            raise TypeError(
                f"backoff must be a function of the number of failures, not {self.backoff!r}."
            )


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
    _wait: Callable[[], timedelta] = timedelta

    def wait(self) -> timedelta:
        """Return how long the row waits before the next try. Asks the back-off, so once for each failure."""
        return self._wait()


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one model's claims; a field left None follows the settings, read at the moment of use."""

    own_lease: timedelta | None = None
    own_max_attempts: int | None = None
    own_backoff: Backoff | None = None
    #: What errors of these classes mean, and of their subclasses that are not named themselves.
    own_errors: Mapping[type[BaseException], Rule] = field(default_factory=dict, hash=False)
    #: What becomes of a row that is done.
    completion: Completion = field(default_factory=Mark)
    #: How many rows with one value of these columns are processing at once, at most.
    own_limit_per: Mapping[str, int] = field(default_factory=dict, hash=False)
    #: In which order claims take rows whose queryset names none, as for ``QuerySet.order_by()``.
    own_order: Sequence[str | Combinable] = field(default=(), hash=False)
    #: How many rows all who claim may claim in a time, how many may be processing at once, and at which hours of the
    #: day rows are claimed; what is stored for the model goes before these.
    own_rate: Rate | str | None = None
    own_max_running: int | None = None
    own_hours: Hours | str | None = None
    #: The column whose rows of one value are claimed one at a time and in order.
    own_serial_by: str | None = None
    #: Whether a row that failed keeps those behind it back until it is reset.
    own_failed_blocks: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "own_limit_per", _checked_limits(self.own_limit_per))
        object.__setattr__(self, "own_errors", _checked_errors(self.own_errors))
        object.__setattr__(self, "own_rate", _parsed(Rate, self.own_rate))
        object.__setattr__(self, "own_hours", _parsed(Hours, self.own_hours))
        refuse_no_number(self.own_max_running)
        _refuse_no_series(self)

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
        return bool(self.own_limit_per) or self.own_serial_by is not None

    @property
    def names_limits(self) -> bool:
        """Whether claims have to look at limits."""
        fleet = self.own_rate or self.own_max_running or self.own_hours
        return self.counts_by_column or bool(fleet)

    def judge(self, error: object, failures: int, *, retry: bool = True) -> Verdict:
        """Say what *error* makes of a row that has now failed *failures* times, this one included.

        Asked by ``fail()`` and by workers alike. With ``retry=False`` no error is worth another try.
        """
        rule = self._rule(error)
        if not retry or rule is Permanent:
            return Verdict(final=True, counted=True)
        if isinstance(rule, RetryLater):
            wait = partial(self._delay, rule)
            return Verdict(final=False, counted=False, everyone=rule.everyone, _wait=wait)
        own = rule if isinstance(rule, Retry) else Retry()
        if failures >= (own.max_attempts or self.max_attempts):
            return Verdict(final=True, counted=True)
        waits = self._waits_after(failures, own.backoff)
        return Verdict(final=False, counted=True, _wait=waits)

    def _rule(self, error: object) -> Rule | None:
        """Return what is said of the nearest class of *error*; Permanent and RetryLater speak for themselves."""
        kind = error if isinstance(error, type) else type(error)
        for cls in kind.__mro__:
            for named, rule in self.own_errors.items():
                if named is cls:
                    return rule
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


def _checked_wait(given: Any) -> timedelta:
    wait = conf.waiting_time(given, "what a back-off returns")
    negative = given < timedelta(0) if isinstance(given, timedelta) else not 0 <= given < math.inf
    if negative:
        raise ValueError(f"what a back-off returns must not be {given!r}.")
    return wait


def _checked_errors(errors: Any) -> dict[type[BaseException], Rule]:
    """Return a copy of what ``errors=`` names; TypeError in one sentence for what makes no sense."""
    if not isinstance(errors, Mapping):
        raise TypeError(
            f"errors must map exception classes to what they mean, not {errors!r:.200}."
        )
    for kind, rule in errors.items():
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise TypeError(f"errors must name exception classes, not {kind!r:.200}.")
        if rule is not Permanent and not isinstance(rule, (RetryLater, Retry)):
            raise TypeError(
                f"errors must say Permanent, RetryLater(seconds) or Retry(…) for {kind.__name__}, not {rule!r:.200}."
            )
    return dict(errors)


def _checked_limits(limits: Any) -> dict[str, int]:
    """Return a copy of what ``limit_per=`` names; TypeError or ValueError in one sentence for what makes no sense."""
    if not isinstance(limits, Mapping) or not all(isinstance(name, str) for name in limits):
        raise TypeError(f"limit_per must map names of columns to numbers, not {limits!r:.200}.")
    for name, most in limits.items():
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ValueError(f"limit_per must give {name!r} a whole number from 1, not {most!r}.")
    return dict(limits)


def _parsed(kind: type[Rate] | type[Hours], given: Any) -> Any:
    return given if given is None or isinstance(given, kind) else kind.parse(given)


def refuse_no_number(given: Any, name: str = "max_running", most: float = math.inf) -> None:
    """Raise ValueError in one sentence unless *given* is None or a whole number from 1 to *most*."""
    whole = isinstance(given, int) and not isinstance(given, bool)
    if given is not None and not (whole and 1 <= given <= most):
        upwards = "" if most == math.inf else f" to {most}"
        raise ValueError(f"{name} must be a whole number from 1{upwards}, not {given!r:.100}.")


def _refuse_no_series(policy: Policy) -> None:
    name = policy.own_serial_by
    if name is None:
        if not policy.own_failed_blocks:
            raise ValueError("failed_blocks=False says something of serial_by, which is not given.")
        return
    if not isinstance(name, str) or not name:
        raise TypeError(f"serial_by is the name of one column, not {name!r:.200}.")
    if isinstance(policy.completion, Clear):
        raise ValueError(
            f"serial_by={name!r} cannot go with the completion 'clear': the first row of a key would be open again and"
            " again, and the others would never have their turn."
        )
    if "?" in policy.own_order:
        raise ValueError(f"serial_by={name!r} needs an order that stays the same, and '?' is none.")


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
