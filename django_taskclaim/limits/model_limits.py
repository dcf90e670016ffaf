"""Which limits hold for a model's claims: those of its handlers, or what a person has stored in their place.

A claim of a model without limits sends no statement more. Its statement refuses to claim where the Switch row stores a
limit, and the empty answer makes the process read that row.
"""

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, NamedTuple

from django.db import models
from django.utils import timezone

from django_taskclaim.policy import Policy, policies_over
from django_taskclaim.tables import LIMITS, Switch, own_scopes, scope_of

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

    def later(self, level: float, seconds: float) -> float:
        """Return what *level* rows have become after so many seconds."""
        return min(self.most, level + max(0.0, seconds) * self.per_second)

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


#: The models, each with its database, whose Switch rows are known to store limits.
known: set[tuple[str, type[models.Model]]] = set()


def note_stored(model: type[models.Model], alias: str, switches: dict[str, Switch]) -> bool:
    """Remember whether limits are stored for *model*, by its switches just read; True if they are."""
    stored = any(switches[scope].limits_claims for scope in own_scopes(model) if scope in switches)
    (known.add if stored else known.discard)((alias, model))
    return stored


def switches_of(model: type[models.Model], alias: str) -> dict[str, Switch]:
    """Ask for the switches of *model* and of the models that it inherits its claims from, by scope."""
    rows = Switch.objects.using(alias).filter(scope__in=own_scopes(model))
    found = {row.scope: row for row in rows}
    note_stored(model, alias, found)
    return found


def limits_are_stored(model: type[models.Model], alias: str) -> bool:
    """Ask whether limits are stored for *model*."""
    switches_of(model, alias)
    return (alias, model) in known


def limits_of(model: type[models.Model], *, using: str) -> list[ModelLimits]:
    """Return what claims of *model* keep to now: its own limits, and those of the models it inherits its claims from.

    Empty where there are none; asks the database.
    """
    return limits_by(model, switches_of(model, using))


def limits_by(model: type[models.Model], switches: dict[str, Switch]) -> list[ModelLimits]:
    """Return what ``limits_of`` does, where *switches* are known already; with none what the handlers name."""
    found = [_in_force(model, scope, switches.get(scope)) for scope in own_scopes(model)]
    return [one for one in found if one]


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
