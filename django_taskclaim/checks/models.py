"""Claimable models: our names left alone, our verbs in reach."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import models

from django_taskclaim.checks.messages import message
from django_taskclaim.columns import (
    NEEDED_ROLES,
    PLAIN_NAMES,
    PREFIXED_NAMES,
    has_claim_columns,
    is_claimable,
)
from django_taskclaim.fields import ClaimColumn, PriorityField
from django_taskclaim.formatting import listed
from django_taskclaim.models.mixins import ClaimBase
from django_taskclaim.querysets import ClaimManager


def check_models(**kwargs: Any) -> list[CheckMessage]:
    """E002 to E005, E011 and E015 for every claimable model, proxies included: they may have managers of their own."""
    claimable = [model for model in apps.get_models() if has_claim_columns(model)]
    return [found for model in claimable for found in problems_of(model)]


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield what is wrong with one claimable model."""
    replaced = list(_replaced_columns(model))
    yield from replaced
    yield from _replaced_claim(model)
    yield from _managers(model)
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


def _managers(model: type[models.Model]) -> Iterator[CheckMessage]:
    """E002 where claims start from rows without the verbs; E015 where the mixin's manager hides another one."""
    manager: Any = model._default_manager
    try:
        rows: Any = manager.get_queryset()
    except Exception:
        # It may need what only a request or a worker has, such as a tenant.
        rows = manager
    name = manager.name or "objects"
    if not hasattr(rows, "claim_batch"):
        which = "" if rows is manager else f"returns a {type(rows).__name__}, which "
        yield message(
            "E002",
            f"Workers cannot claim rows of {model._meta.label}: {name} = {type(manager).__name__}() {which}has no"
            " claim_batch().",
            _recipe(model, manager),
            model,
        )
    elif (found := _hidden(model)) and not any(map(_hidden, model.__mro__[1:])):
        base, hidden = found
        lost = sorted(set(dir(hidden)) - set(dir(manager)))
        methods = [name for name in lost if name[0] not in "_a" or name[1:] not in lost]
        methods = [name for name in methods if not name.startswith("_")]
        without = (
            f"{listed(methods, 3)} are missing"
            if methods
            else "its filters and its order do not count"
        )
        yield message(
            "E015",
            f"{name} of {model._meta.label} is the {type(manager).__name__} of the mixin. It hides the"
            f" {type(hidden).__name__} of {base.__name__}, so {without}.",
            _recipe(model, hidden),
            model,
        )


def _hidden(model: Any) -> tuple[Any, Any] | None:
    """Return the base and its manager that a manager of our mixins hides; None where nothing is lost."""
    if not has_claim_columns(model):
        return None
    winner = model._default_manager
    found = [
        (base, manager)
        for base in model.__mro__
        if hasattr(base, "_meta")
        for manager in base._meta.local_managers
        if manager.name == winner.name
    ]
    if not found or not _is_of_a_mixin(found[0][0]):
        return None
    hidden = (one for one in found if not isinstance(winner, type(one[1])))
    return next((one for one in hidden if not _is_of_a_mixin(one[0])), None)


def _is_of_a_mixin(base: type[models.Model]) -> bool:
    return bool(base._meta.abstract) and base.__module__.startswith("django_taskclaim.")


def _recipe(model: type[models.Model], manager: Any) -> str:
    """Return the lines that give *model* a manager with the verbs and with what *manager* has."""
    bases: tuple[Any, ...] = model.__mro__
    mixins = [base for base in bases if hasattr(base, "_meta") and _is_of_a_mixin(base)]
    ours: Any = next(
        (base._default_manager for base in mixins if base._default_manager), ClaimManager()
    )
    verbs, rows, kind = type(ours), ours._queryset_class, type(manager)
    name, queryset = manager.name or "objects", manager._queryset_class
    with suppress(Exception):
        queryset = type(manager.get_queryset())
    if isinstance(manager, verbs):
        return (
            f"def get_queryset(self): return {rows.__name__}(self.model, using=self._db)  # in {kind.__name__}, with"
            " the filters and the order of your own"
        )
    base, lines = verbs.__name__, [f"from django_taskclaim.querysets import {verbs.__name__}"]
    if not issubclass(rows, queryset):
        lines[0] += f", {rows.__name__}"
        lines.append(f"class Claim{queryset.__name__}({rows.__name__}, {queryset.__name__}): pass")
        base = f"{base}.from_queryset(Claim{queryset.__name__})"
        rows = type(f"Claim{queryset.__name__}", (rows, queryset), {})
    # What from_queryset() made has no name to inherit from.
    is_made = kind.__module__ == models.Manager.__module__ and kind is not models.Manager
    known = kind.__bases__[0] if is_made else kind
    if known is not models.Manager:
        both = type(kind.__name__, (verbs.from_queryset(rows), known), {})
        lines.append(f"class Claim{known.__name__}({base}, {known.__name__}):")
        lines.append(
            "    pass"
            if _has_verbs(both, model)
            else f"    def get_queryset(self): return {rows.__name__}(self.model, using=self._db)  # and what"
            f" {known.__name__} adds: filters, order"
        )
        base = f"Claim{known.__name__}"
    return "\n\t".join([*lines, f"{name} = {base}()  # in {model.__name__}"])


def _has_verbs(kind: Any, model: type[models.Model]) -> bool:
    with suppress(Exception):
        manager = kind()
        manager.model = model
        return hasattr(manager.get_queryset(), "claim_batch")
    return False


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
        # Not a text, it is no field's name either.
        name = names[role] if isinstance(names[role], str) else repr(names[role])
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
    if not is_claimable(model):
        return
    names = {**PLAIN_NAMES, **model.claim_fields}  # type: ignore[attr-defined]
    fields = [field for field in model._meta.concrete_fields if _ours(field)]
    ours = {field.name: field.model for field in fields if field.name in names.values()}
    owner = ours[names["status"]]
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
