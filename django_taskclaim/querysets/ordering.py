"""In which order claims take the rows of a queryset: its own, its policy's, or that of the claim index."""

from collections.abc import Sequence
from typing import Any, cast

from django.core.exceptions import FieldError
from django.db import models, router

from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.scope import Rows, Target


def in_policy_order(queryset: Rows) -> Rows:
    """Return *queryset* as it is ordered, else in the order that its model's policy names, if it names one."""
    order = policy_for(queryset.model).order_by
    if not order or queryset.query.order_by:
        return queryset
    ordered = queryset.order_by(*order)
    # Without an order of its own there was nothing that ``reverse()`` could turn round.
    ordered.query.standard_ordering = True
    return ordered


def refuse_unknown_order(model: type[models.Model], order: Sequence[Any]) -> None:
    """Raise ValueError in one sentence for an *order* that rows of *model* cannot be sorted by."""
    try:
        query = models.QuerySet(model).order_by(*order).query
        query.get_compiler(using=router.db_for_write(model)).as_sql()
    except (FieldError, TypeError) as error:
        raise ValueError(f"order_by cannot sort {model.__name__}: {error}") from error


def in_claim_order(rows: Rows, queryset: Rows, target: Target) -> Rows:
    """Order *rows* as *queryset* asks, or as the model's claims are ordered; ``Meta.ordering`` is ignored."""
    asked = queryset.query.order_by
    if not asked:
        return rows.order_by(*target.columns.order)
    ordered = rows.order_by(*(_from_owner(item, queryset.model, target) for item in asked))
    return ordered if queryset.query.standard_ordering else ordered.reverse()


def _from_owner(item: Any, model: type[models.Model], target: Target) -> Any:
    """Spell an ordering of a multi-table child as seen from the parent that holds the claim columns."""
    if target.columns.owned_by(model) or item == "?":
        return item
    if isinstance(item, str):
        sign = "-" if item.startswith("-") else ""
        return sign + _name_from_owner(item.removeprefix("-"), model, target)
    if isinstance(item, models.F):
        return models.F(_name_from_owner(cast("Any", item).name, model, target))
    moved = item.copy()
    parts = (part and _from_owner(part, model, target) for part in item.get_source_expressions())
    moved.set_source_expressions(list(parts))
    return moved


def _name_from_owner(name: str, model: type[models.Model], target: Target) -> str:
    first = name.split("__")[0]
    if first == "pk" or first in {field.name for field in target.columns.owner._meta.get_fields()}:
        return name
    steps = cast("Any", model._meta).get_path_from_parent(target.columns.owner)
    return "__".join([*(step.join_field.name for step in steps), name])
