"""Registered handlers: times that make sense, and completion policies that the tables allow."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import connections, models, router
from django.db.models.deletion import Collector, get_candidate_relations_to_delete

from django_taskclaim.checks.messages import message
from django_taskclaim.columns import claim_columns, has_claim_columns, is_claimable
from django_taskclaim.completion import Archive, Clear, Delete
from django_taskclaim.fields import PriorityField
from django_taskclaim.formatting import format_duration, listed
from django_taskclaim.handlers import WAITS_PER_LEASE, Handler, handler_for
from django_taskclaim.policy import LONGEST_LEASE, SHORTEST_LEASE, faults
from django_taskclaim.querysets.removing import fills_itself, is_on_many_tables, shared_columns


def check_handlers() -> Iterator[CheckMessage]:
    """E014 for each handler that is not registered; E051 to E053 and the warnings for the others."""
    hint = "Mend that line. Until then no worker runs the function, and nothing claims rows of its model."
    for broken, why in faults:
        # Of columns that are not as they must be, E003 and E005 tell more.
        if not has_claim_columns(broken) or is_claimable(broken):
            yield message("E014", why, hint, broken)
    for model in apps.get_models():
        found = handler_for(model) if is_claimable(model) else None
        if found is not None:
            yield from problems_of(found)


def problems_of(handler: Handler) -> Iterator[CheckMessage]:
    """Yield what is wrong with one handler."""
    yield from _lease(handler)
    yield from _one_writer(handler)
    yield from _series(handler)
    yield from completion_problems(handler)


def completion_problems(handler: Handler) -> Iterator[CheckMessage]:
    """Yield what is wrong with the completion policy of one handler."""
    completion = handler.policy.completion
    if isinstance(completion, Archive):
        yield from _archive(handler, completion)
    if isinstance(completion, Clear):
        yield from _clear(handler, completion)
    if isinstance(completion, (Archive, Delete)) and not completion.cascade:
        yield from _skipped(handler)


# Times and order


def _lease(handler: Handler) -> Iterator[CheckMessage]:
    lease = handler.lease
    if SHORTEST_LEASE <= lease <= LONGEST_LEASE:
        return
    why = f"rows of a worker that dies stay stuck for {format_duration(lease)}. Running rows are renewed all the time"
    if lease < SHORTEST_LEASE:
        why = "one slow renewal, and a running row is lost"
    yield message(
        "W003",
        f"Rows of {handler.model._meta.label} are claimed for {lease.total_seconds():g} s: {why}.",
        f"@handler({handler.model.__name__}, lease=60)",
        handler.model,
    )


def _one_writer(handler: Handler) -> Iterator[CheckMessage]:
    """Look at atomic handlers where an open transaction keeps everybody else from writing."""
    alias, most = router.db_for_write(handler.model), handler.lease / WAITS_PER_LEASE
    if handler.blocks_writers(alias) and (handler.timeout is None or handler.timeout > most):
        yield message(
            "W009",
            f"{handler.name} is atomic, and {connections[alias].display_name} has one writer: while a row runs, no"
            f" lease on the database {alias!r} can be renewed, no row claimed and none completed.",
            f"@handler({handler.model.__name__}, atomic=True, timeout={most.total_seconds():g})  # a quarter of the"
            " lease at most",
            handler.model,
        )


def _series(handler: Handler) -> Iterator[CheckMessage]:
    """Look at the order in which rows of one key are done."""
    column, order = handler.policy.serial_by, handler.policy.order_by
    last: Any = claim_columns(handler.model).key[-1]
    kind = (last.target_field if last.is_relation else last).get_internal_type()
    if column is None or order or "Auto" in kind or "Integer" in kind:
        return
    yield message(
        "W010",
        f"Rows of one {column} are done in the order of their key, and {last.name} is a {type(last).__name__}, which"
        " does not tell which row came first.",
        f'@handler({handler.model.__name__}, serial_by="{column}", order_by=["created_at"])  # or another column of'
        " yours that does",
        handler.model,
    )


# The archive


def _archive(handler: Handler, completion: Archive) -> Iterator[CheckMessage]:
    model, archive = handler.model, None
    with suppress(LookupError, ValueError):
        archive = completion.model
    own: set[Any] = {model._meta.concrete_model, *model._meta.all_parents}
    if archive is None or archive._meta.abstract or archive._meta.parents or archive in own:
        yield message(
            "E051",
            f"The archive of {handler.name} must be another installed model on a table of its own, and"
            f" {completion.to!r} is none.",
            f"class {model.__name__}Archive(models.Model):",
            model,
        )
        return
    shared, label = set(shared_columns(model, archive)), archive._meta.label
    lost = [
        field.name
        for field in model._meta.concrete_fields
        if field.attname not in shared
        and _is_the_users(model, field)
        and not {field.name, field.attname} & set(completion.leave_out)
    ]
    if lost:
        yield message(
            "E053",
            f"{label}, the archive of {handler.name}, lacks {listed(lost)}, which would be lost.",
            f"Add the columns, or say that it may be: Archive({archive.__name__}, leave_out={lost!r}).",
            model,
        )
    empty = [
        field.name
        for field in archive._meta.local_concrete_fields
        if field.attname not in shared and not _finds_a_value(field)
    ]
    if empty:
        yield message(
            "E053",
            f"{label}, the archive of {handler.name}, needs {listed(empty)}, which {model._meta.label} does not have.",
            "Give the columns a default, or let them be NULL.",
            model,
        )


def _is_the_users(model: type[models.Model], field: Any) -> bool:
    """Say whether a column holds what the user keeps: neither a claim column nor a link between inherited tables."""
    ours = field in claim_columns(model).guarded or isinstance(field, PriorityField)
    link = field.remote_field is not None and field.remote_field.parent_link
    return not ours and not link and not getattr(field, "generated", False)


def _finds_a_value(field: Any) -> bool:
    moment = getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)
    return fills_itself(field) or field.has_default() or moment or field.null


# Opening again, and deleting without Django


def _clear(handler: Handler, completion: Clear) -> Iterator[CheckMessage]:
    columns, label = claim_columns(handler.model), handler.model._meta.label
    hint = f"class {handler.model.__name__}(RetryMixin, ClaimMixin), or TaskMixin"
    if completion.every is not None and columns.not_before is None:
        yield message(
            "E052",
            f"Rows of {label} cannot wait for {completion.pause.total_seconds():g} s, as Clear(every=…) of"
            f" {handler.name} says: the model has no not_before.",
            hint,
            handler.model,
        )
    elif columns.not_before is None or columns.attempts is None:
        yield message(
            "W052",
            f"Rows of {label} are opened again by {handler.name} without RetryMixin: the lowest keys come first each"
            " time, a drain has no end, and after some rounds one failure is final.",
            hint,
            handler.model,
        )


def _skipped(handler: Handler) -> Iterator[CheckMessage]:
    model: Any = handler.model
    rows: models.QuerySet[Any] = models.QuerySet(model)
    # Rows on several tables are always deleted by Django.
    if is_on_many_tables(model) or Collector(using=rows.db).can_fast_delete(rows):
        return
    relations: Any = get_candidate_relations_to_delete(model._meta)
    names = [f"{one.related_model._meta.label}.{one.field.name}" for one in relations]
    completion = type(handler.policy.completion).__name__
    yield message(
        "W051",
        f"{handler.name} deletes rows of {model._meta.label} that are done past Django, which would follow"
        f" {listed([*names, 'generic relations'])}, and call receivers of pre_delete and post_delete.",
        f"completion={completion}({'…, ' if completion == 'Archive' else ''}cascade=True) lets Django do so, at its"
        " price.",
        handler.model,
    )
