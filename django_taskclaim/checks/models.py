"""Claimable models: our names left alone, our verbs in reach."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import models
from django.db.models import QuerySet

from django_taskclaim.checks.messages import message
from django_taskclaim.columns import NEEDED_ROLES, PLAIN_NAMES, PREFIXED_NAMES, has_claim_columns
from django_taskclaim.fields import ClaimColumn, PriorityField
from django_taskclaim.models.mixins import ClaimBase
from django_taskclaim.wording import listed


def check_models(**kwargs: Any) -> list[CheckMessage]:
    """E002 to E005, and E011, for every claimable model, proxies included: they may have managers of their own."""
    claimable = [model for model in apps.get_models() if has_claim_columns(model)]
    return [found for model in claimable for found in problems_of(model)]


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield what is wrong with one claimable model."""
    replaced = list(_replaced_columns(model))
    yield from replaced
    yield from _replaced_claim(model)
    yield from _foreign_manager(model)
    yield from _claim_fields(model, told=bool(replaced))
    yield from _far_columns(model)


def _ours(field: Any) -> bool:
    return isinstance(field, (ClaimColumn, PriorityField))


def _fields_of(model: type[models.Model]) -> dict[str, Any]:
    return {field.name: field for field in model._meta.get_fields()}


def _replaced_columns(model: type[models.Model]) -> Iterator[CheckMessage]:
    """E003: Django lets any attribute of a class replace an abstract parent's field, without a word."""
    fields = _fields_of(model)
    brought = {
        field.name
        for base in model.__mro__
        if getattr(getattr(base, "_meta", None), "abstract", False)
        for field in base._meta.local_fields  # type: ignore[attr-defined]
        if _ours(field)
    }
    for name in sorted(brought):
        if not _ours(fields.get(name)):
            yield message(
                "E003",
                f"{model._meta.label}.{name} is not the claim column that the mixin brings but something of its own.",
                "Rename it, or inherit from django_taskclaim.models.PrefixedTaskMixin (or PrefixedClaimMixin), which"
                " leaves the name free.",
                model,
            )


def _replaced_claim(model: type[models.Model]) -> Iterator[CheckMessage]:
    """E004: the worker and every verb on a row go through ``row.claim``."""
    ours = ClaimBase.__dict__["claim"]
    if issubclass(model, ClaimBase) and inspect.getattr_static(model, "claim", None) is not ours:
        yield message(
            "E004",
            f"{model._meta.label}.claim replaces row.claim, through which a row's claim is completed and renewed.",
            'Rename it; a field may keep its column: ticket = models.CharField(…, db_column="claim").',
            model,
        )


def _foreign_manager(model: type[models.Model]) -> Iterator[CheckMessage]:
    manager: Any = model._default_manager
    if hasattr(manager, "claim_batch"):
        return
    name = manager.name or "objects"
    queryset = type(manager.get_queryset()) if manager is not None else QuerySet
    own = queryset is not QuerySet
    yield message(
        "E002",
        f"The default manager of {model._meta.label}, {name} = {type(manager).__name__}(), has no claim_batch().",
        (
            f"Let {queryset.__name__} inherit from django_taskclaim.querysets.ClaimQuerySet, and write"
            f" {name} = ClaimManager.from_queryset({queryset.__name__})()."
            if own
            else f"Let {type(manager).__name__} inherit from django_taskclaim.querysets.ClaimManager."
        ),
        model,
    )


def _claim_fields(model: type[models.Model], *, told: bool) -> Iterator[CheckMessage]:
    """E005: a mapping spelled by the user must name roles that there are and fields that are claim columns."""
    spelled: Any = model.claim_fields  # type: ignore[attr-defined]
    if not isinstance(spelled, Mapping):
        yield _wrong_mapping(model, f"is {spelled!r}, not a dictionary")
        return
    unknown = sorted(str(role) for role in spelled if role not in PLAIN_NAMES)
    if unknown:
        yield _wrong_mapping(model, f"names {listed(unknown)}, and there is no such role")
    fields = _fields_of(model)
    names = {**PLAIN_NAMES, **spelled}
    for role in PLAIN_NAMES:
        name = names[role]
        usual = name in (PLAIN_NAMES[role], PREFIXED_NAMES[role])
        # The usual names of columns that a smaller mixin leaves out are no mistake.
        if _ours(fields.get(name)) or (usual and (role not in NEEDED_ROLES or told)):
            continue
        what = "not a claim column" if name in fields else "not a field"
        yield _wrong_mapping(
            model, f"says that {role} is kept in {name!r}, which is {what} of the model"
        )


def _far_columns(model: type[models.Model]) -> Iterator[CheckMessage]:
    """E011: one statement writes all claim columns, so one table must have them, and no other its own."""
    spelled: Any = model.claim_fields  # type: ignore[attr-defined]
    names = {**PLAIN_NAMES, **(spelled if isinstance(spelled, Mapping) else {})}
    fields = [field for field in model._meta.concrete_fields if _ours(field)]
    ours = {field.name: field.model for field in fields if field.name in names.values()}
    if (owner := ours.get(names["status"])) is None:
        return
    if far := [name for name, holder in ours.items() if holder is not owner]:
        above = ours[far[0]]
        yield message(
            "E011",
            f"{model._meta.label} keeps {listed(far)} on another table than {names['status']}, which"
            f" {owner._meta.label} has.",
            f"Rename {listed(far)} of {above.__name__}."
            if issubclass(owner, above)
            else f"Let {owner.__name__} have them: the mixins that bring them belong where {names['status']} is.",
            model,
        )
    for parent in model._meta.all_parents:
        if has_claim_columns(parent) and not issubclass(parent, owner):
            yield message(
                "E011",
                f"{model._meta.label} is a queue, and so is its parent {parent._meta.label}: a save of the one would"
                " overwrite the claim of the other.",
                f"Take the mixin from {model.__name__}, or let it refer to {parent.__name__} by a OneToOneField.",
                model,
            )


def _wrong_mapping(model: type[models.Model], what: str) -> CheckMessage:
    return message(
        "E005",
        f"{model._meta.label}.claim_fields {what}.",
        f"Roles: {', '.join(PLAIN_NAMES)}. Each names a field made of a class in django_taskclaim.fields.",
        model,
    )
