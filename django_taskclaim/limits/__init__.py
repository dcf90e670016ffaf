"""What keeps claims of a model back beside the switch: limits that its handler names, or that its Switch row stores.

Here are ``rate``, ``max_running`` and ``hours``; ``key_limits`` chooses rows by a column. A claim of a model without
limits sends no statement more. Its statement refuses to claim where the Switch row stores a limit, and the empty answer
makes the process read that row. Claims that count wait for one lock until they commit, so no other claim changes what
is counted.
"""

from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from typing import Any, NamedTuple

from django.db import connections, models, router
from django.utils import timezone

from django_taskclaim import conf, tables
from django_taskclaim.db import DatabaseNow, dialect_for
from django_taskclaim.fields import as_utc
from django_taskclaim.policy import policies_over
from django_taskclaim.querysets.scope import ClaimTarget, is_running
from django_taskclaim.tables import LIMITS, RateLevel, Switch

# What a rate and hours mean

#: What an idle fleet may save up, as a part of a minute's rows: a minute exceeds the rate by so much at most.
SLACK = 0.05
#: The least that it may save up, so that no row is missed that becomes available between two polls.
LEAST_SLACK = 1.5


def rows_per_second(rate: str) -> float:
    """Return how fast a *rate* is that ``conf.RATE`` accepts, over all who claim."""
    number, period = rate.split("/")
    return float(number) / conf.DURATION.read(f"1{period}").total_seconds()


def opens_at(hours: str, now: datetime) -> datetime | None:
    """Return when the window *hours*, which ``conf.HOURS`` accepts, opens; None while it is open. *now* is aware.

    It is from one time of the day to another in ``TIME_ZONE``, over midnight where the second comes before the first.
    Open is what a clock on the wall shows. When clocks go back, an hour that comes twice is open twice; when they go
    forward, an hour that is left out is not made up for, and a window that begins in it opens when it is over.
    """
    opens, closes = map(time.fromisoformat, hours.replace("24:00", "00:00").split("-"))

    def is_open(moment: datetime) -> bool:
        wall = moment.astimezone(timezone.get_default_timezone()).time()
        if opens < closes:
            return opens <= wall < closes
        return wall >= opens or wall < closes

    # Minute by minute, because no sum of hours is right on the days when clocks change.
    minute = moment = now.replace(second=0, microsecond=0)
    while not is_open(moment):
        moment += timedelta(minutes=1)
    return None if moment == minute else moment


# What holds for a model


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What claims of a model keep to, over all who claim; None is no limit."""

    rate: str | None = None
    max_running: int | None = None
    hours: str | None = None
    #: The model that the rate is of: all claims under it count on one level.
    rate_of: str = field(default="", compare=False)

    def __bool__(self) -> bool:
        return bool(self.rate or self.max_running or self.hours)


def _in_force(model: type[models.Model], switches: dict[str, Switch]) -> ModelLimits:
    (rate, scope), (most, _), (hours, _) = (_value(name, model, switches) for name in LIMITS)
    return ModelLimits(rate, most, hours, scope)


def _value(name: str, model: type[models.Model], switches: dict[str, Switch]) -> tuple[Any, str]:
    """Return what the switch stores, else what the nearest handler names, and for which model.

    That of a parent goes before a child's.
    """
    for scope in tables.own_scopes(model):
        value = getattr(switches.get(scope), name, None)
        for cls, policy in policies_over(model).items():
            if value is None and tables.scope_of(cls) == scope:
                value = getattr(policy, name)
        if value:
            return value, scope
    return None, ""


#: What the first claim under a rate may take.
FIRST_ROWS = 1.0

#: A level from further in the future was written by the clock of a server before this one.
AHEAD = timedelta(seconds=5)

#: A worker asks again once this part of what a rate saves up has become available, or one row.
WORTH_WHILE = 0.25


class LimitReached(NamedTuple):
    """Why a claim may take nothing, or no more, now."""

    reason: str
    #: When that will be over, and in how many seconds; None where it is over when a running row has ended.
    until: datetime | None = None
    wait: float | None = None


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
    #: What all who claim keep to together.
    limits: ModelLimits
    #: The hours that are over.
    closed: LimitReached | None

    @property
    def throttled(self) -> str:
        """Why claims of everybody stop for a time, or until the hours begin; empty where they do not."""
        if self.throttle is not None:
            return self.throttle.reason or NO_REASON
        return "" if self.closed is None else self.closed.reason


def stops_of(model: type[models.Model], *, using: str | None = None) -> Stops:
    """Return what is stored for *model* now, and whether its hours are over; the process learns of limits, too.

    It is one question, and one for the time where nothing is stored and the handler names hours.
    """
    using = using or router.db_for_write(model)
    rows: Any = Switch.objects.using(using).filter(scope__in=tables.stop_scopes(model))
    found: dict[str, Any] = {row.scope: row for row in rows.annotate(now=DatabaseNow())}
    own = [found[scope] for scope in tables.own_scopes(model) if scope in found]
    stored = any(row.overrides.keys() & LIMITS for row in own)
    (known.add if stored else known.discard)((using, model))
    now = next((as_utc(row.now) for row in found.values()), None)
    if now is None and _in_force(model, found).hours:
        now = dialect_for(connections[using]).current_time()
    return stops_among(found, model, now)


def stops_among(
    switches: dict[str, Switch], model: type[models.Model], now: datetime | None
) -> Stops:
    """Return what of *switches* stops claims of *model* at the moment *now*; without one no hours are over."""
    off = {scope: row for scope, row in switches.items() if now and row.is_off(now)}
    throttles = [
        off[scope]
        for one in tables.own_scopes(model)
        if (scope := tables.throttle_scope(one)) in off
    ]
    limits, closed = _in_force(model, switches), None
    if now and limits.hours and (opens := opens_at(limits.hours, now)) is not None:
        reason = f"outside the hours {limits.hours} {timezone.get_default_timezone_name()}"
        closed = LimitReached(reason, opens, (opens - now).total_seconds())
    return Stops(
        own=switches.get(tables.scope_of(model)) or Switch(),
        pauses=[off[scope] for scope in tables.scopes_over(model) if scope in off],
        throttle=max(throttles, key=lambda row: as_utc(row.until), default=None),
        limits=limits,
        closed=closed,
    )


# What one claim may take


class Grant:
    """How many rows one claim of a limited model may take, and what it has taken."""

    def __init__(self, target: ClaimTarget) -> None:
        self._target = target
        #: Why the claim takes no more than it does.
        self.reached: LimitReached | None = None
        self.stops = stops_of(target.model, using=target.alias)
        self._limits = self.stops.limits
        self._levels = RateLevel.objects.using(target.alias).filter(scope=self._limits.rate_of)
        #: Rows a second, and the rows that are saved up at most while nobody claims any.
        self._speed = rows_per_second(self._limits.rate) if self._limits.rate else 0.0
        self._most = max(LEAST_SLACK, self._speed * 60 * SLACK)

    def begin(self, wanted: int, *, by_key: bool) -> int:
        """Return how many of the *wanted* rows may be claimed in the transaction that is open.

        Where rows are counted, by key or over the whole table, claims of the table wait for each other from here on
        until they commit.
        """
        self.reached = self.stops.closed
        if self.stops.closed:
            return 0
        if by_key or self._limits.rate or self._limits.max_running:
            label = self._target.columns.owner._meta.label_lower
            self._target.dialect.advisory_lock(f"limits:{label}")
        return self.allowed(wanted)

    def allowed(self, wanted: int) -> int:
        """Return how many of the *wanted* rows the rate and the number of running rows allow now."""
        target, limits = self._target, self._limits
        if limits.rate:
            now = target.dialect.current_time()
            level = self._level(now)
            if int(level) < wanted:
                wanted = max(0, int(level))
                # Once enough has become available that it is worth while to ask again.
                enough = max(1.0, self._most * WORTH_WHILE)
                wait = max(0.0, enough - (level - wanted)) / self._speed
                # No calendar has the moment of a rate that is next to nothing.
                wait = min(wait, conf.LONGEST.total_seconds())
                until = now + timedelta(seconds=wait)
                self.reached = LimitReached(f"the rate {limits.rate}", until, wait)
        most = limits.max_running
        if not most or not wanted:
            return wanted
        running = target.rows.order_by().filter(is_running(target.columns))
        held = running[:most].count()
        if most - held < wanted:
            self.reached = LimitReached(f"the limit of {most} running at once")
        return max(0, min(wanted, most - held))

    def charge(self, taken: int, allowed: int) -> None:
        """Take so many rows off what the rate allows."""
        if taken < allowed:
            # It was not for a limit that the claim took no more.
            self.reached = None
        if not taken or not self._limits.rate:
            return
        # By the clock of now: the rows may have been claimed much later than was asked, where the machine stood still.
        # What came meanwhile is capped first, else the minute from the claim on would exceed the rate.
        now = self._target.dialect.current_time()
        level = self._level(now) - taken
        if not self._levels.update(level=level, at=now):
            self._levels.create(scope=self._limits.rate_of, level=level, at=now)

    def _level(self, now: datetime) -> float:
        """Return how many rows may be claimed *now*, by what the last claim has stored."""
        stored = self._levels.first()
        if stored is None or as_utc(stored.at) > now + AHEAD:
            return FIRST_ROWS
        seconds = max(0.0, (now - as_utc(stored.at)).total_seconds())
        return min(self._most, stored.level + seconds * self._speed)
