"""What keeps claims of a model back beside the switch: limits that its handler names, or that its Switch row stores.

Here are ``rate``, ``max_running`` and ``hours``; ``key_limits`` chooses rows by a column. A claim of a model without
limits sends no statement more. Its statement refuses to claim where the Switch row stores a limit, and the empty answer
makes the process read that row. Claims that count wait for one lock until they commit, so no other claim changes what
is counted.
"""

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, NamedTuple

from django.db import connections, models, router
from django.utils import timezone

from django_taskclaim.db import DatabaseNow, dialect_for
from django_taskclaim.fields import as_utc
from django_taskclaim.policy import Policy, policies_over
from django_taskclaim.querysets.scope import ClaimTarget, is_running
from django_taskclaim.querysets.transactions import refuse_old_snapshots
from django_taskclaim.tables import (
    LIMITS,
    RateLevel,
    Switch,
    own_scopes,
    scope_of,
    scopes_over,
    stop_scopes,
    throttle_scope,
)

# What a rate and hours mean

_PERIODS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

#: What an idle fleet may save up, as a part of a minute's rows: a minute exceeds the rate by so much at most.
SLACK = 0.05
#: The least that it may save up, so that no row is missed that becomes available between two polls.
LEAST_SLACK = 1.5

#: A window that does not open within so many days never opens.
DAYS_LOOKED_AHEAD = 8


class Rate(NamedTuple):
    """At most so many rows in a period, over all who claim."""

    text: str
    #: Rows a second.
    per_second: float

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Return what a text means that ``conf.RATE`` accepts."""
        number, period = text.split("/")
        return cls(text, float(number) / _PERIODS[period])

    @property
    def most(self) -> float:
        """The rows that are saved up at most while nobody claims any."""
        return max(LEAST_SLACK, self.per_second * 60 * SLACK)

    def __str__(self) -> str:
        return self.text


class Hours(NamedTuple):
    """From one time of the day to another in ``TIME_ZONE``, over midnight where the second comes before the first.

    Open is what a clock on the wall shows. When clocks go back, an hour that comes twice is open twice; when they go
    forward, an hour that is left out is not made up for, and a window that begins in it opens when it is over.
    """

    text: str
    opens: time
    closes: time

    @classmethod
    def parse(cls, text: str) -> "Hours":
        """Return what a text means that ``conf.HOURS`` accepts."""
        opens, closes = text.replace("24:00", "00:00").split("-")
        return cls(text, time.fromisoformat(opens), time.fromisoformat(closes))

    def opens_at(self, now: datetime) -> datetime | None:
        """Return when the window opens, in the zone of *now*; None while it is open. *now* is aware."""
        if self._is_open(now):
            return None
        # Minute by minute, because no sum of hours is right on the days when clocks change.
        moment, end = now.replace(second=0, microsecond=0), now + timedelta(days=DAYS_LOOKED_AHEAD)
        while moment < end:
            moment += timedelta(minutes=1)
            if self._is_open(moment):
                break
        return moment

    def _is_open(self, moment: datetime) -> bool:
        wall = moment.astimezone(timezone.get_default_timezone()).time()
        if self.opens < self.closes:
            return self.opens <= wall < self.closes
        return wall >= self.opens or wall < self.closes

    def __str__(self) -> str:
        return f"{self.text} {timezone.get_default_timezone_name()}"


# What holds for a model


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What claims of the model that is called *scope* keep to, over all who claim; None is no limit."""

    scope: str
    rate: Rate | None = None
    max_running: int | None = None
    hours: Hours | None = None

    def __bool__(self) -> bool:
        return bool(self.rate or self.max_running or self.hours)

    def __str__(self) -> str:
        parts = [
            *([f"rate {self.rate}"] if self.rate else []),
            *([f"{self.max_running} running at once"] if self.max_running else []),
            *([f"hours {self.hours}"] if self.hours else []),
        ]
        return ", ".join(parts)


def _in_force(model: type[models.Model], scope: str, switch: Switch | None) -> ModelLimits:
    policies = [policy for cls, policy in policies_over(model).items() if scope_of(cls) == scope]
    rate, most, hours = (_value(name, switch, policies) for name in LIMITS)
    return ModelLimits(
        scope,
        Rate.parse(rate) if rate else None,
        most or None,
        Hours.parse(hours) if hours else None,
    )


def _value(name: str, switch: Switch | None, policies: list[Policy]) -> Any:
    """Return what the switch stores, else what the nearest handler names."""
    stored = getattr(switch, name, None)
    named = (getattr(policy, name) for policy in policies)
    return next(filter(None, named), None) if stored is None else stored


#: What the first claim under a rate may take.
FIRST_ROWS = 1.0

#: A level from further in the future was written by the clock of a server before this one.
AHEAD = timedelta(seconds=5)

#: A worker asks again once this part of what a rate saves up has become available, or one row.
WORTH_WHILE = 0.25


class LimitReached(NamedTuple):
    """Why a claim may take nothing, or no more, now."""

    #: ``hours``, ``rate`` or ``max_running``.
    option: str
    limits: ModelLimits
    #: When that will be over, and in how many seconds; None where nobody can say.
    until: datetime | None = None
    wait: float | None = None

    def __str__(self) -> str:
        if self.option == "rate":
            return f"the rate {self.limits.rate}"
        return f"the limit of {self.limits.max_running} running at once"


# What stops claims


#: The models, each with its database, whose Switch rows are known to store limits.
known: set[tuple[str, type[models.Model]]] = set()

#: What stands for a reason that nobody has given.
NO_REASON = "no reason given"


class Stops(NamedTuple):
    """What stops claims of one model, by the database's clock, and the model's own switch."""

    own: Switch
    #: The pauses of persons, the widest first.
    pauses: list[Switch]
    #: The stop that ends by itself and holds for everyone.
    throttle: Switch | None
    #: What all who claim keep to together: the model's own limits, and those of the models it inherits its claims from.
    limits: list[ModelLimits]
    #: The hours that are over: those that begin again last.
    closed: LimitReached | None

    @property
    def throttled(self) -> str:
        """Why claims of everybody stop for a time, or until the hours begin; empty where they do not."""
        if self.throttle is not None:
            return self.throttle.reason or NO_REASON
        return "" if self.closed is None else f"outside the hours {self.closed.limits.hours}"


def stops_of(model: type[models.Model], *, using: str | None = None) -> Stops:
    """Return what is stored for *model* now, and whether its hours are over; the process learns of limits, too.

    It is one question, and one for the time where nothing is stored and the handler names hours.
    """
    using = using or router.db_for_write(model)
    rows: Any = Switch.objects.using(using).filter(scope__in=stop_scopes(model))
    found: dict[str, Any] = {row.scope: row for row in rows.annotate(now=DatabaseNow())}
    stored = any(found[scope].limits_claims for scope in own_scopes(model) if scope in found)
    (known.add if stored else known.discard)((using, model))
    now = next((as_utc(row.now) for row in found.values()), None)
    if now is None and any(one.hours for one in _limits(model, found)):
        now = dialect_for(connections[using]).current_time()
    return stops_among(found, model, now)


def stops_among(
    switches: dict[str, Switch], model: type[models.Model], now: datetime | None
) -> Stops:
    """Return what of *switches* stops claims of *model* at the moment *now*; without one no hours are over."""
    off = {scope: row for scope, row in switches.items() if now and row.is_off(now)}
    throttles = [off[scope] for one in own_scopes(model) if (scope := throttle_scope(one)) in off]
    limits = _limits(model, switches)
    closed = [
        LimitReached("hours", one, opens, (opens - now).total_seconds())
        for one in limits
        if now and one.hours and (opens := one.hours.opens_at(now)) is not None
    ]
    return Stops(
        own=switches.get(scope_of(model)) or Switch(),
        pauses=[off[scope] for scope in scopes_over(model) if scope in off],
        throttle=max(throttles, key=lambda row: as_utc(row.until), default=None),
        limits=limits,
        closed=max(closed, key=lambda one: one.wait or 0.0, default=None),
    )


def _limits(model: type[models.Model], switches: dict[str, Switch]) -> list[ModelLimits]:
    found = [_in_force(model, scope, switches.get(scope)) for scope in own_scopes(model)]
    return [one for one in found if one]


# What one claim may take


class Grant:
    """How many rows one claim of a limited model may take, and what it has taken."""

    def __init__(self, target: ClaimTarget) -> None:
        self._target = target
        #: Why the claim takes no more than it does.
        self.reached: LimitReached | None = None
        self.stops = stops_of(target.model, using=target.alias)
        self._limits = self.stops.limits
        self._rates = {one.scope: one.rate for one in self._limits if one.rate is not None}
        self._levels = RateLevel.objects.using(target.alias)

    def begin(self, wanted: int, *, by_key: bool) -> int:
        """Return how many of the *wanted* rows may be claimed in the transaction that is open.

        Where rows are counted, by key or over the whole table, claims of the table wait for each other from here on
        until they commit.
        """
        self.reached = self.stops.closed
        if self.stops.closed:
            return 0
        if by_key or self._rates or any(one.max_running for one in self._limits):
            label = self._target.columns.owner._meta.label_lower
            refuse_old_snapshots(
                self._target,
                f"claim_batch() counts what others have claimed for a limit of {label}",
            )
            self._target.dialect.advisory_lock(f"limits:{label}")
        return self._allowed(wanted)

    def reached_now(self) -> LimitReached | None:
        """Return which rate or number keeps anybody from claiming a single row now; None where none does."""
        self._allowed(1)
        return self.reached

    def _allowed(self, wanted: int) -> int:
        stored = self._stored_levels()
        now = self._target.dialect.current_time() if self._rates else None
        for limits in self._limits:
            if limits.rate is None or now is None:
                continue
            level = _level(limits.rate, stored.get(limits.scope), now)
            if int(level) < wanted:
                wanted = max(0, int(level))
                # Once enough has become available that it is worth while to ask again.
                enough = max(1.0, limits.rate.most * WORTH_WHILE)
                wait = max(0.0, enough - (level - wanted)) / limits.rate.per_second
                until = now + timedelta(seconds=wait)
                self.reached = LimitReached("rate", limits, until, wait)
        limited = [one for one in self._limits if one.max_running]
        if not limited or not wanted:
            return wanted
        target, limits = self._target, min(limited, key=lambda one: one.max_running or 0)
        most = limits.max_running or 0
        running = target.rows.order_by().filter(is_running(target.columns))
        held = len(target.dialect.first(running, target.table, most, target.columns.key))
        if most - held < wanted:
            self.reached = LimitReached("max_running", limits)
        return max(0, min(wanted, most - held))

    def charge(self, taken: int, allowed: int) -> None:
        """Take so many rows off what each rate allows."""
        if taken < allowed:
            # It was not for a limit that the claim took no more.
            self.reached = None
        if not taken or not self._rates:
            return
        # By the clock of now: the rows may have been claimed much later than was asked, where the machine stood still.
        # What came meanwhile is capped first, else the minute from the claim on would exceed the rate.
        now, stored = self._target.dialect.current_time(), self._stored_levels()
        for scope, rate in self._rates.items():
            level = _level(rate, stored.get(scope), now) - taken
            if not self._levels.filter(scope=scope).update(level=level, at=now):
                self._levels.create(scope=scope, level=level, at=now)

    def _stored_levels(self) -> dict[str, RateLevel]:
        """Return how many rows each rate let be claimed after the last claim, by scope."""
        rows = self._levels.filter(scope__in=self._rates) if self._rates else ()
        return {row.scope: row for row in rows}


def _level(rate: Rate, stored: RateLevel | None, now: datetime) -> float:
    """Return how many rows may be claimed *now*, by what the last claim has *stored*."""
    if stored is None or as_utc(stored.at) > now + AHEAD:
        return FIRST_ROWS
    seconds = max(0.0, (now - as_utc(stored.at)).total_seconds())
    return min(rate.most, stored.level + seconds * rate.per_second)
