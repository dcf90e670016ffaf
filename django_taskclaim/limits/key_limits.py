"""The limits of a model that count by a column: ``limit_per`` and ``serial_by``."""

from collections.abc import Iterator

from django.db import models
from django.db.models import Q

from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import AnyField
from django_taskclaim.limits.per_key import KeyLimit
from django_taskclaim.limits.serial import SerialLimit, serial_order
from django_taskclaim.policy import Policy, policies_over
from django_taskclaim.querysets.scope import ClaimTarget

#: Types whose values do not compare as keys do.
NO_KEYS = ("JSONField", "BinaryField")


def limits_over(model: type[models.Model]) -> list[KeyLimit]:
    """Return the limits that a claim through *model* obeys: its own, and those of the models it stands for.

    Raises ValueError in one sentence for a column that cannot be counted by.
    """
    return [limit for policy in policies_over(model) for limit in _limits_of(policy, model)]


def _limits_of(policy: Policy, model: type[models.Model]) -> Iterator[KeyLimit]:
    for name, most in policy.limit_per.items():
        yield KeyLimit(_counted(model, name, "limit_per"), most)
    if policy.serial_by is not None:
        field = _counted(model, policy.serial_by, "serial_by")
        order = serial_order(policy, claim_columns(model))
        yield SerialLimit(field, order, failed_blocks=policy.failed_blocks)


def refuse_uncountable(model: type[models.Model], policy: Policy) -> None:
    """Raise ValueError in one sentence for names of columns that no limit of *model* can count by."""
    for _ in _limits_of(policy, model):
        pass


def _counted(model: type[models.Model], name: str, option: str) -> AnyField:
    columns = claim_columns(model)
    meta = columns.owner._meta
    own = {
        each: field for field in meta.local_concrete_fields for each in (field.name, field.attname)
    }
    field = own.get(name)
    if field is None:
        raise ValueError(
            f"{option} counts by columns of {meta.label}, the table with the claim columns;"
            f" {name!r} is none of them."
        )
    if field in columns.guarded or field.get_internal_type() in NO_KEYS:
        what = "a claim column" if field in columns.guarded else f"a {type(field).__name__}"
        raise ValueError(f"{option} cannot count by {name!r}, which is {what}.")
    return field


def at_their_limit(target: ClaimTarget) -> Q:
    """Match rows of the claim table whose key has as many rows processing as it may; empty without limits."""
    found = Q()
    for limit in limits_over(target.model):
        found |= limit.keeps_back(target)
    return found
