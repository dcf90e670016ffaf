"""Which limits hold for a model's claims: those that handlers name, and what a person has stored instead.

Claims of other models send nothing more than before: that a limit was stored for one of them stops its claims like a
pause, until their process has learned to look.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import models

from django_taskclaim.allowances import Hours, Rate, parsed_hours, parsed_rate
from django_taskclaim.claim import clock
from django_taskclaim.db import DatabaseNow
from django_taskclaim.policy import policies_by_class
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.switch_reading import limits_scope, own_scopes, scope_of, scopes_over
from django_taskclaim.switch_reading import throttle_scope as throttle_scope_of

#: Somebody who gets no rows asks once in so many seconds whether limits were stored meanwhile.
ASK_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What holds for the claims of the model that is called *scope*; None is no limit."""

    scope: str
    rate: Rate | None = None
    max_running: int | None = None
    hours: Hours | None = None
    #: Who has stored one of them last, empty where all are the handler's.
    set_by: str = ""
    is_stored: bool = False

    def __bool__(self) -> bool:
        return bool(self.rate or self.max_running or self.hours)


def named_limits(model: type[models.Model]) -> dict[str, ModelLimits]:
    """Return what policies say, by scope; of a model and its proxies the nearest counts."""
    found: dict[str, ModelLimits] = {}
    for cls, policy in policies_by_class(model):
        scope = scope_of(cls)
        known = found.get(scope, ModelLimits(scope))
        found[scope] = ModelLimits(
            scope,
            known.rate or policy.rate,
            known.max_running or policy.max_running,
            known.hours or policy.hours,
        )
    return {scope: limits for scope, limits in found.items() if limits}


#: What is known of the database's table, by alias and scope: which models have a row that limits them, …
stored: set[tuple[str, str]] = set()
#: … and, by ``clock()``, when that was asked last.
asked: dict[tuple[str, str], float] = {}


def know_stored(alias: str, scope: str, *, there: bool) -> None:
    """Remember whether something is stored for the model that is called *scope*."""
    (stored.add if there else stored.discard)((alias, scope))


def is_stored(model: type[models.Model], alias: str) -> bool:
    """Say whether limits are known to be stored for *model*."""
    return bool(stored) and any((alias, scope) in stored for scope in own_scopes(model))


def is_limited(model: type[models.Model], alias: str) -> bool:
    """Say whether claims of *model* have to look what holds for them."""
    return is_stored(model, alias) or bool(named_limits(model))


def claim_scopes(model: type[models.Model], *, knows_limits: bool) -> list[str]:
    """Return the scopes of the switch that stop a claim through *model*, which may look at no limits."""
    own = own_scopes(model)
    unknown = [] if knows_limits else [limits_scope(scope) for scope in own]
    return [*scopes_over(model), *(throttle_scope_of(scope) for scope in own), *unknown]


def learns_of_limits(target: ClaimTarget) -> bool:
    """Ask, every few seconds at most, whether limits were stored for a model that had none; True if so."""
    now, place = clock(), (target.alias, own_scopes(target.model)[-1])
    if now - asked.get(place, -ASK_EVERY) < ASK_EVERY or is_limited(target.model, target.alias):
        return False
    asked[place] = now
    limits_held(target)
    return is_stored(target.model, target.alias)


def limits_held(target: ClaimTarget) -> tuple[list[ModelLimits], dict[str, Any]]:
    """Ask what is stored, and return the limits that hold and what is stored by scope, each with ``now``."""
    named, own = named_limits(target.model), own_scopes(target.model)
    rows = {row.scope: row for row in stored_rows(target.alias, own).annotate(now=DatabaseNow())}
    for scope in own:
        know_stored(target.alias, scope, there=_is_set(rows.get(scope)))
    held = [effective(named.get(scope, ModelLimits(scope)), rows.get(scope)) for scope in own]
    return [one for one in held if one], rows


def stored_rows(alias: str, scopes: Iterable[str]) -> Any:
    """Return the stored rows of these scopes, as a queryset."""
    rows = apps.get_model("taskclaim", "FleetLimit")._default_manager.using(alias)
    return rows.filter(scope__in=list(scopes))


def effective(named: ModelLimits, row: Any) -> ModelLimits:
    """Return the limits that hold by what is *named* and by what a stored *row*, if any, says instead."""
    if not _is_set(row):
        return named
    return ModelLimits(
        named.scope,
        named.rate if row.rate is None else _parsed(parsed_rate, row.rate),
        named.max_running if row.max_running is None else row.max_running or None,
        named.hours if row.hours is None else _parsed(parsed_hours, row.hours),
        row.set_by,
        is_stored=True,
    )


def _is_set(row: Any) -> bool:
    values = () if row is None else (row.rate, row.max_running, row.hours)
    return any(one is not None for one in values)


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    return parse(text) if text else None
