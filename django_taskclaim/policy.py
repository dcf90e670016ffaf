"""What a model's claims follow: how long a lease lasts, how many tries a row has, what becomes of it in the end.

``@handler`` fills it and every verb reads it, so ``row.fail(error)`` in a view does what the worker would do.
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from django.db import models
from django.db.models.expressions import Combinable

from django_taskclaim import conf
from django_taskclaim.completion import Clear, Completion, as_completion
from django_taskclaim.conf import Kind, accepting
from django_taskclaim.error_text import describe, is_interrupt
from django_taskclaim.exceptions import Permanent, RetryLater

logger = logging.getLogger("django_taskclaim")

#: How often a lease is renewed in its length, and the part of it after which what could not be renewed counts as lost.
RENEWALS_PER_LEASE, SELF_FENCE = 4, 0.9

#: In a shorter lease one slow renewal loses the row; after a longer one the rows of a dead worker come back too late.
SHORTEST_LEASE, LONGEST_LEASE = timedelta(seconds=2), timedelta(days=1)

#: Given how often a row has failed (1 for the first time), how long it waits.
Backoff = Callable[[int], timedelta | float]

#: What an error means for its row: no further try, one that is put off uncounted, or (None) one as usual.
Rule: TypeAlias = type[Permanent] | RetryLater | None


def _is_rule(kind: object, rule: object) -> bool:
    is_error = isinstance(kind, type) and issubclass(kind, BaseException)
    return is_error and (rule in (Permanent, None) or isinstance(rule, RetryLater))


def _is_limit(name: object, limit: object) -> bool:
    return isinstance(name, str) and type(limit) is int and limit > 0


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy:
    """The rules of one model's claims; a field left None follows the settings, read at the moment of use."""

    own_lease: timedelta | None = conf.option(conf.DURATION)
    own_max_attempts: int | None = conf.option(conf.whole_number())
    own_backoff: Backoff | None = conf.option(
        accepting("a function of the number of failures", callable)
    )
    #: What errors of these classes mean, and of their subclasses that are not named themselves.
    errors: Mapping[type[BaseException], Rule] = conf.option(
        conf.mapping_of(
            "a mapping from exception classes to Permanent, RetryLater(…) or None", _is_rule
        ),
        default_factory=dict,
    )
    #: What becomes of a row that is done.
    completion: Completion = conf.option(Kind("a completion", as_completion), default="mark")
    #: How many rows with one value of these columns are processing at once, at most.
    limit_per: Mapping[str, int] = conf.option(
        conf.mapping_of("a mapping from names of columns to whole numbers from 1 on", _is_limit),
        default_factory=dict,
    )
    #: In which order claims take rows whose queryset names none, as for ``QuerySet.order_by()``.
    order_by: Sequence[str | Combinable] = conf.option(
        conf.list_of("a list of names and expressions", lambda _: True), default=()
    )
    #: How many rows all who claim may claim in a time, how many may be processing at once, and at which hours of the
    #: day rows are claimed; what is stored for the model goes before these.
    rate: str | None = conf.option(conf.RATE)
    max_running: int | None = conf.option(conf.whole_number())
    hours: str | None = conf.option(conf.HOURS)
    #: The column whose rows of one value are claimed one by one and in order.
    serial_by: str | None = conf.option(conf.COLUMN)
    #: Whether a row that failed keeps those behind it back until it is reset.
    failed_blocks: bool = conf.option(conf.FLAG, default=True)

    def __post_init__(self) -> None:
        conf.check_options(self)
        if self.serial_by is not None and isinstance(self.completion, Clear):
            raise ValueError(
                f"serial_by={self.serial_by!r} cannot go with the completion 'clear': the first row of a key would be"
                " open again and again, and the others would never have their turn."
            )
        if self.serial_by is not None and "?" in self.order_by:
            text = "needs an order that stays the same, and '?' is none."
            raise ValueError(f"serial_by={self.serial_by!r} {text}")

    @property
    def lease(self) -> timedelta:
        return self.own_lease or conf.duration("LEASE")

    @property
    def max_attempts(self) -> int:
        return self.own_max_attempts or int(conf.setting("MAX_ATTEMPTS"))

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
        rule = self.rule(error)
        if not retry or rule is Permanent:
            return Verdict(final=True, counted=True)
        if isinstance(rule, RetryLater):
            # A subclass may never have set its delay.
            wait = partial(_waiting_time, lambda _: rule.delay, failures)
            return Verdict(final=False, counted=False, everyone=rule.everyone, wait=wait)
        if failures >= self.max_attempts:
            return Verdict(final=True, counted=True)
        # The settings are read here, once for all rows that are judged alike.
        named = self.own_backoff
        backoff = partial(_waiting_time, named) if named else usual_backoff()
        return Verdict(final=False, counted=True, wait=partial(backoff, failures))

    def rule(self, error: object) -> Rule:
        """Return the rule for the nearest class of *error*; Permanent and RetryLater speak for themselves."""
        kind = error if isinstance(error, type) else type(error)
        for cls in kind.__mro__:
            if cls in self.errors:
                return self.errors[cls]
            if cls is Permanent:
                return Permanent
            if cls is RetryLater:
                return error if isinstance(error, RetryLater) else RetryLater()
        return None


def usual_backoff() -> Callable[[int], timedelta]:
    """Return the wait that doubles with each failure from BACKOFF_FIRST to at most BACKOFF_MAX, with full jitter.

    Full jitter (any moment from now to the bound) is the scheme of the AWS architecture blog's
    "Exponential backoff and jitter": it spreads the retries of rows that failed together.
    """
    first = conf.duration("BACKOFF_FIRST").total_seconds()
    longest = conf.duration("BACKOFF_MAX").total_seconds()

    def wait(failures: int) -> timedelta:
        bound = min(longest, first * 2.0 ** min(failures - 1, 60))
        return timedelta(seconds=random.uniform(0, bound))

    return wait


def _waiting_time(backoff: Backoff, failures: int) -> timedelta:
    """Return what *backoff* says after so many failures.

    One that raises or returns no duration is logged and replaced by the usual wait: the failure must be recorded all
    the same.
    """
    try:
        return conf.waiting_time(backoff(failures), "what a back-off returns")
    except BaseException as error:
        if is_interrupt(error):
            raise
        logger.warning(
            "The wait after failure %d is the usual one, because the back-off could not be used: %s",
            failures,
            describe(error),
            extra={"event": "trouble"},
        )
        return usual_backoff()(failures)


# The policies of models

_DEFAULT = Policy()

#: What handlers have made the rule for the claims of a model, its proxies and its children.
policies: dict[type[models.Model], Policy] = {}


def policy_for(model: type[Any]) -> Policy:
    """Return the policy of *model* or of the nearest class it inherits from; the settings' where none is set."""
    for cls in model.__mro__:
        if cls in policies:
            return policies[cls]
    return _DEFAULT


def policies_over(model: type[Any]) -> dict[type[models.Model], Policy]:
    """Return the policies set for *model* and for classes it inherits from, the nearest first, by class."""
    return {cls: policies[cls] for cls in model.__mro__ if cls in policies}
