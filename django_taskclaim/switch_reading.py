"""The switch as the claim statements see it; ``django_taskclaim.switch`` is where people turn it.

Only names are known here, no model, because this module stands below the models in the import order.
"""

from functools import cache
from typing import Any

from django.db import models

from django_taskclaim.columns import claim_columns

TABLE = "taskclaim_switch"

#: The scope of the switch that stops every model.
EVERY_MODEL = "*"


def scope_of(model: type[models.Model]) -> str:
    """Return the scope that a pause of *model* is stored under: its own label, a proxy's real model's."""
    concrete = model._meta.concrete_model or model
    return concrete._meta.label_lower


def scopes_over(model: type[models.Model]) -> list[str]:
    """Return the scopes whose pause stops a claim through *model*: all, the table's owner, and down to itself."""
    return list(_scopes_over(model))


@cache
def _scopes_over(model: Any) -> tuple[str, ...]:
    owner = claim_columns(model).owner
    between = [scope_of(cls) for cls in reversed(model.__mro__) if issubclass(cls, owner)]
    return (EVERY_MODEL, *dict.fromkeys(between))


def own_scopes(model: type[models.Model]) -> list[str]:
    """Return the scopes of ``scopes_over`` that are a model's, the table's owner first."""
    return scopes_over(model)[1:]


def throttle_scope(scope: str) -> str:
    """Return the scope of the stop that ends by itself and holds for everyone who claims, on every host."""
    return f"{scope}!throttle"


def limits_scope(scope: str) -> str:
    """Return the scope that stops those who do not know yet that limits are stored for the model."""
    return f"{scope}!limits"
