"""Which limits hold for a model's claims: those of its handlers, or what a person has stored in their place.

A claim of a model without limits sends no statement more. Its statement refuses to claim where the Switch row stores a
limit, and the empty answer makes the process read that row.
"""

from dataclasses import dataclass
from typing import Any

from django.db import models

from django_taskclaim.limits.rate_and_hours import Hours, Rate
from django_taskclaim.policy import Policy, policies_by_class
from django_taskclaim.tables import LIMITS, Switch, own_scopes, scope_of


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
    policies = [policy for cls, policy in policies_by_class(model) if scope_of(cls) == scope]
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
