"""Completion policies of handlers: what an archive cannot hold, what a table cannot wait with, what deleting skips."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import models
from django.db.models.signals import post_delete, pre_delete

from django_taskclaim.checks.messages import message
from django_taskclaim.columns import claim_columns, is_claimable
from django_taskclaim.completion import Archive, Clear, Delete
from django_taskclaim.fields import PriorityField
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import Handler, handler_for
from django_taskclaim.querysets.removing import (
    fills_itself,
    is_on_many_tables,
    links_of,
    shared_columns,
)

#: What Django does by itself when a row goes that others look at; the rest is the database's.
FOLLOWED = {"CASCADE", "SET_NULL", "SET_DEFAULT", "set_on_delete"}


def check_completion(**kwargs: Any) -> list[CheckMessage]:
    """E051 to E053, W051 and W052 for every model that has a handler."""
    handlers = [handler_for(model) for model in apps.get_models() if is_claimable(model)]
    return [found for handler in handlers if handler is not None for found in problems_of(handler)]


def problems_of(handler: Handler) -> Iterator[CheckMessage]:
    """Yield what is wrong with the completion policy of one handler."""
    completion = handler.policy.completion
    if isinstance(completion, Archive):
        yield from _archive(handler, completion)
    if isinstance(completion, Clear):
        yield from _clear(handler, completion)
    if isinstance(completion, (Archive, Delete)) and not completion.cascade:
        yield from _skipped(handler)


# The archive


def _archive(handler: Handler, completion: Archive) -> Iterator[CheckMessage]:
    name = handler.model.__name__
    try:
        archive = completion.model
    except (LookupError, ValueError):
        yield message(
            "E051",
            f"The archive of {handler.name} cannot be found: no installed model is called {completion.to!r}.",
            f'@handler({name}, completion=Archive("app_label.{name}Archive"))',
            handler.model,
        )
        return
    if reason := _why_no_archive(handler.model, archive):
        yield message(
            "E051",
            f"{archive._meta.label} cannot be the archive of {handler.name}: {reason}.",
            f"Archive to a model of its own, on one table: class {name}Archive(models.Model).",
            handler.model,
        )
        return
    yield from _lacking(handler, completion, archive)


def _why_no_archive(model: type[models.Model], archive: type[models.Model]) -> str:
    if archive._meta.abstract:
        return "it is abstract"
    if archive._meta.parents:
        return "it has columns on several tables"
    if archive in {other._meta.concrete_model for other in family_of(model)}:
        return "it is the table that the rows are deleted from"
    return ""


def _lacking(
    handler: Handler, completion: Archive, archive: type[models.Model]
) -> Iterator[CheckMessage]:
    shared = set(shared_columns(handler.model, archive))
    lost = [
        field.name
        for field in handler.model._meta.concrete_fields
        if _is_the_users(handler.model, field)
        and field.attname not in shared
        and not {field.name, field.attname} & set(completion.leave_out)
    ]
    if lost:
        yield message(
            "E053",
            f"{archive._meta.label}, the archive of {handler.name}, lacks {listed(lost)}, which would be lost.",
            f"Add the columns, or say that it may be: Archive({archive.__name__}, leave_out={lost!r}).",
            handler.model,
        )
    empty = [
        field.name
        for field in archive._meta.local_concrete_fields
        if field.attname not in shared and not _finds_a_value(field)
    ]
    if empty:
        yield message(
            "E053",
            f"{archive._meta.label}, the archive of {handler.name}, needs {listed(empty)}, which"
            f" {handler.model._meta.label} does not have.",
            "Give the columns a default, or let them be NULL.",
            handler.model,
        )


def _is_the_users(model: type[models.Model], field: Any) -> bool:
    """Say whether a column holds what the user keeps: neither a claim column nor a link between inherited tables."""
    ours = field in claim_columns(model).guarded or isinstance(field, PriorityField)
    link = field.remote_field is not None and field.remote_field.parent_link
    return not ours and not link and not getattr(field, "generated", False)


def _finds_a_value(field: Any) -> bool:
    moment = getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)
    return fills_itself(field) or field.has_default() or moment or field.null


# Opening again


def _clear(handler: Handler, completion: Clear) -> Iterator[CheckMessage]:
    columns, label = claim_columns(handler.model), handler.model._meta.label
    if columns.not_before is not None and columns.attempts is not None:
        return
    hint = f"class {handler.model.__name__}(RetryMixin, ClaimMixin), or TaskMixin"
    if completion.every is not None and columns.not_before is None:
        yield message(
            "E052",
            f"Rows of {label} cannot wait for {completion.pause.total_seconds():g} s, as Clear(every=…) of"
            f" {handler.name} says: the model has no not_before.",
            hint,
            handler.model,
        )
        return
    yield message(
        "W052",
        f"Rows of {label} are opened again by {handler.name} without RetryMixin: the lowest keys come first each time,"
        " a drain has no end, and after some rounds one failure is final.",
        hint,
        handler.model,
    )


# Deleting without Django


def _skipped(handler: Handler) -> Iterator[CheckMessage]:
    model = handler.model._meta.concrete_model or handler.model
    if is_on_many_tables(model):
        # Those are always deleted by Django.
        return
    relations = sorted(set(_relations_to(model)))
    signals = [
        name
        for name, signal in (("pre_delete", pre_delete), ("post_delete", post_delete))
        if any(signal.has_listeners(one) for one in {handler.model, model})
    ]
    skipped = [*relations, *(f"receivers of {name}" for name in signals)]
    if skipped:
        kind = type(handler.policy.completion).__name__
        yield message(
            "W051",
            f"{handler.name} deletes rows of {handler.model._meta.label} that are done past Django, which would mind"
            f" {listed(skipped)}.",
            f"completion={kind}({'…, ' if kind == 'Archive' else ''}cascade=True) lets Django mind them, at its price.",
            handler.model,
        )


def family_of(model: type[models.Model]) -> set[type[models.Model]]:
    """Return the models on whose tables a row of *model* may have a part."""
    found = {claim_columns(model).owner}
    todo = list(found)
    while todo:
        new = {other for other, _link in links_of(todo.pop())} - found
        found |= new
        todo += new
    return found


def _relations_to(model: type[models.Model]) -> Iterator[str]:
    for relation in model._meta.get_fields(include_hidden=True):
        if not (relation.auto_created and not relation.concrete and relation.is_relation):
            continue
        if not (relation.one_to_one or relation.one_to_many):
            continue
        on_delete: Any = getattr(relation, "on_delete", None)
        name = getattr(on_delete, "__name__", "")
        if name in FOLLOWED:
            told = "SET" if name == "set_on_delete" else name
            yield f"{relation.related_model._meta.label}.{relation.field.name} ({told})"  # type: ignore[union-attr]
    for field in model._meta.private_fields:
        if hasattr(field, "bulk_related_objects"):
            yield f"{model._meta.label}.{field.name} (generic relation)"
