"""Claimable models: our names left alone, our verbs in reach."""

import inspect
from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage
from django.db import models

from django_taskclaim.checks.messages import message
from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import ClaimColumn, PriorityField
from django_taskclaim.formatting import listed
from django_taskclaim.models.mixins import ClaimBase


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield E002 to E005 and E011 of one claimable model."""
    label, ours = model._meta.label, ClaimBase.__dict__["claim"]
    if issubclass(model, ClaimBase) and inspect.getattr_static(model, "claim", None) is not ours:
        text = f"{label}.claim replaces row.claim, through which a row's claim is completed and renewed."
        hint = 'Rename it; a field may keep its column: ticket = models.CharField(…, db_column="claim").'
        yield message("E004", text, hint, model)
    if not _gives_verbs(manager := model._default_manager):
        name = manager.name or "objects"
        text = f"{label}.{name} = {type(manager).__name__}() gives rows without claim_batch(), so no worker can work."
        hint = f"{name} = ClaimManager()  # or a class that inherits from it, with a queryset from ClaimQuerySet"
        yield message("E002", text, hint, model)
    if replaced := _replaced_columns(model):
        text = f"{label}.{listed(replaced)} is not the claim column that the mixin brings."
        hint = "Rename it, or inherit from PrefixedTaskMixin (or PrefixedClaimMixin), which leaves the name free."
        yield message("E003", text, hint, model)
        return
    try:
        claim_columns(model)
    except TypeError as error:
        hint = 'claim_fields = {"status": "claim_status"}  # a role, and a field of django_taskclaim.fields'
        yield message("E005", str(error), hint, model)
        return
    owners = sorted({field.model.__name__ for field in model._meta.concrete_fields if _ours(field)})
    if len(owners) > 1:
        text = f"{label} has claim columns on the tables of {listed(owners)}, and one statement must write them all."
        hint = "Let one of them inherit from all the mixins; others may refer to it by a OneToOneField."
        yield message("E011", text, hint, model)


def _ours(field: object) -> bool:
    return isinstance(field, (ClaimColumn, PriorityField))


def _replaced_columns(model: type[models.Model]) -> list[str]:
    """Return the names under which a mixin has a column that the model lacks.

    Django lets any attribute of a class replace an abstract parent's field, without a word.
    """
    parents: Any = [base for base in model.__mro__ if hasattr(base, "_meta")]
    brought = {
        field.name
        for base in parents
        if base._meta.abstract
        for field in base._meta.local_fields
        if _ours(field)
    }
    return sorted(brought - {field.name for field in model._meta.get_fields() if _ours(field)})


def _gives_verbs(manager: Any) -> bool:
    try:
        rows = manager.get_queryset()
    except Exception:
        # It may need what only a request or a worker has, such as a tenant.
        rows = manager
    return hasattr(rows, "claim_batch")
