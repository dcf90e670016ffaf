"""Claimable models: our names left alone, our verbs in reach."""

import inspect
from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import models

from django_taskclaim.checks.messages import message
from django_taskclaim.columns import claim_columns, has_claim_columns
from django_taskclaim.fields import ClaimColumn, PriorityField
from django_taskclaim.formatting import listed
from django_taskclaim.models.mixins import ClaimBase


def check_models() -> list[CheckMessage]:
    """E002 to E005, E011 and E015 for every claimable model, proxies included: they may have managers of their own."""
    claimable = [model for model in apps.get_models() if has_claim_columns(model)]
    return [found for model in claimable for found in problems_of(model)]


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield what is wrong with one claimable model."""
    ours = ClaimBase.__dict__["claim"]
    if issubclass(model, ClaimBase) and inspect.getattr_static(model, "claim", None) is not ours:
        yield message(
            "E004",
            f"{model._meta.label}.claim replaces row.claim, through which a row's claim is completed and renewed.",
            'Rename it; a field may keep its column: ticket = models.CharField(…, db_column="claim").',
            model,
        )
    yield from _manager(model)
    if replaced := _replaced_columns(model):
        yield message(
            "E003",
            f"{model._meta.label}.{listed(replaced)} is not the claim column that the mixin brings but something of its"
            " own.",
            "Rename it, or inherit from django_taskclaim.models.PrefixedTaskMixin (or PrefixedClaimMixin), which"
            " leaves the name free.",
            model,
        )
        return
    try:
        claim_columns(model)
    except TypeError as error:
        hint = 'claim_fields = {"status": "claim_status"}  # a role, and a field of django_taskclaim.fields'
        yield message("E005", str(error), hint, model)
        return
    owners = sorted({field.model.__name__ for field in model._meta.concrete_fields if _ours(field)})
    if len(owners) > 1:
        yield message(
            "E011",
            f"{model._meta.label} has claim columns on the tables of {listed(owners)}: one statement writes them all,"
            " and a save of one part would overwrite the claim of the other.",
            f"Let one of {listed(owners)} inherit from all the mixins; others may refer to it by a OneToOneField.",
            model,
        )


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


def _manager(model: type[models.Model]) -> Iterator[CheckMessage]:
    """E002 where claims start from rows without the verbs; E015 where the mixin's manager hides another one."""
    manager: Any = model._default_manager
    name, kind = manager.name or "objects", type(manager).__name__
    hint = (
        f"{name} = ClaimManager()  # or one that inherits from django_taskclaim.querysets.ClaimManager, as its queryset"
        f" does from ClaimQuerySet; in {model.__name__}"
    )
    try:
        rows = manager.get_queryset()
    except Exception:
        # It may need what only a request or a worker has, such as a tenant.
        rows = manager
    if not hasattr(rows, "claim_batch"):
        yield message(
            "E002",
            f"Workers cannot claim rows of {model._meta.label}: {name} = {kind}() gives rows without claim_batch().",
            hint,
            model,
        )
    elif hidden := _hidden_manager(model, name):
        yield message(
            "E015",
            f"{name} of {model._meta.label} is the {kind} of the mixin. It hides the {hidden}, whose methods, filters"
            " and order do not count.",
            hint,
            model,
        )


def _hidden_manager(model: type[models.Model], name: str) -> str:
    """Return which manager a manager of our mixins hides; empty where nothing is lost."""
    found = [
        (base, manager)
        for base in model.__mro__
        if hasattr(base, "_meta")
        for manager in base._meta.local_managers
        if manager.name == name
    ]
    if not found or not _is_a_mixin(found[0][0]):
        return ""
    hidden = [
        f"{type(manager).__name__} of {base.__name__}"
        for base, manager in found
        if not _is_a_mixin(base) and not isinstance(found[0][1], type(manager))
    ]
    return next(iter(hidden), "")


def _is_a_mixin(base: type[models.Model]) -> bool:
    return bool(base._meta.abstract) and base.__module__.startswith("django_taskclaim.")
