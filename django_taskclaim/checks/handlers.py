"""Registered handlers: times and health checks that make sense, and completion policies that the tables allow."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import connections, models, router
from django.db.models.deletion import Collector, get_candidate_relations_to_delete

from django_taskclaim import conf
from django_taskclaim.checks.messages import message
from django_taskclaim.columns import claim_columns, has_claim_columns, is_claimable
from django_taskclaim.completion import Archive, Clear, Delete
from django_taskclaim.fields import PriorityField
from django_taskclaim.formatting import format_duration, listed
from django_taskclaim.handlers import WAITS_PER_LEASE, Handler, handler_for
from django_taskclaim.policy import LONGEST_LEASE, SHORTEST_LEASE, faults
from django_taskclaim.querysets.completing import fills_itself, shared_columns
from django_taskclaim.querysets.operating import is_on_many_tables
from django_taskclaim.throttling.health import loaded


def check_handlers() -> Iterator[CheckMessage]:
    """E014 for each handler that is not registered; E051 to E053 and the warnings for the others."""
    hint = "Correct that line. Until then no worker runs the function, and nothing claims rows of its model."
    for broken, why in faults:
        # Of columns that are not as they must be, E003 and E005 tell more.
        if not has_claim_columns(broken) or is_claimable(broken):
            yield message("E014", why, hint, broken)
    for model in apps.get_models():
        if is_claimable(model) and (found := handler_for(model)):
            yield from problems_of(found)


def problems_of(handler: Handler) -> Iterator[CheckMessage]:
    """Yield what is wrong with one handler."""
    completion = handler.policy.completion
    yield from _lease(handler)
    yield from _one_writer(handler)
    yield from _health_checks(handler)
    if isinstance(completion, Archive):
        yield from _archive(handler, completion)
    if isinstance(completion, Clear):
        yield from _clear(handler)
    if isinstance(completion, (Archive, Delete)) and not completion.cascade:
        yield from _skipped(handler)


def _lease(handler: Handler) -> Iterator[CheckMessage]:
    model, lease = handler.model, handler.lease
    if not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
        why = "rows of a worker that dies stay stuck for that long; running rows are renewed anyway"
        if lease < SHORTEST_LEASE:
            why = "one slow renewal, and a running row is lost"
        text = f"Rows of {model._meta.label} are claimed for {format_duration(lease)}: {why}."
        yield message("W003", text, f"@handler({model.__name__}, lease=60)", model)


def _one_writer(handler: Handler) -> Iterator[CheckMessage]:
    """Look at atomic handlers where an open transaction keeps everybody else from writing."""
    alias, most = router.db_for_write(handler.model), handler.lease / WAITS_PER_LEASE
    if handler.blocks_writers(alias) and (handler.timeout is None or handler.timeout > most):
        text = (
            f"{handler.name} is atomic, and {connections[alias].display_name} has one writer: while a row runs, no"
            f" lease on the database {alias!r} can be renewed, no row claimed and none completed."
        )
        hint = f"@handler({handler.model.__name__}, atomic=True, timeout={most.total_seconds():g})"
        yield message("W009", text, f"{hint}  # a quarter of the lease at most", handler.model)


def _health_checks(handler: Handler) -> Iterator[CheckMessage]:
    for entry in (*conf.setting("HEALTH_CHECKS"), *handler.health_checks):
        try:
            loaded(entry)
        except (ImportError, TypeError) as error:
            text = f"The health check {entry!r} of {handler.name} cannot be loaded: {error}"
            hint = 'TASKCLAIM = {"HEALTH_CHECKS": [ReplicaLag(at_most=10)]}  # from django_taskclaim.throttling'
            yield message("E031", text, hint, handler.model)


# The completion policies


def _archive(handler: Handler, completion: Archive) -> Iterator[CheckMessage]:
    model, archive = handler.model, None
    with suppress(LookupError, ValueError):
        archive = completion.model
    own: set[Any] = {model._meta.concrete_model, *model._meta.all_parents}
    if archive is None or archive._meta.abstract or archive._meta.parents or archive in own:
        text = (
            f"The archive of {handler.name} must be another installed model on a table of its own, and"
            f" {completion.to!r} is none."
        )
        yield message("E051", text, f"class {model.__name__}Archive(models.Model):", model)
        return
    shared, kept = set(shared_columns(model, archive)), set(completion.leave_out)
    label = f"{archive._meta.label}, the archive of {handler.name},"
    lost = [
        field.name
        for field in model._meta.concrete_fields
        if field.attname not in shared
        and _is_the_users(model, field)
        and not {field.name, field.attname} & kept
    ]
    if lost:
        hint = f"Add the columns, or let them go: Archive({archive.__name__}, leave_out={lost!r})."
        yield message("E053", f"{label} lacks {listed(lost)}, which would be lost.", hint, model)
    empty = [
        field.name
        for field in archive._meta.local_concrete_fields
        if field.attname not in shared and not _finds_a_value(field)
    ]
    if empty:
        text = f"{label} needs {listed(empty)}, which {model._meta.label} does not have."
        yield message("E053", text, "Give the columns a default, or let them be NULL.", model)


def _is_the_users(model: type[models.Model], field: Any) -> bool:
    """Say whether a column holds what the user keeps: neither a claim column nor a link between inherited tables."""
    ours = field in claim_columns(model).guarded or isinstance(field, PriorityField)
    link = field.remote_field is not None and field.remote_field.parent_link
    return not ours and not link and not getattr(field, "generated", False)


def _finds_a_value(field: Any) -> bool:
    moment = getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)
    return fills_itself(field) or field.has_default() or moment or field.null


def _clear(handler: Handler) -> Iterator[CheckMessage]:
    columns, model = claim_columns(handler.model), handler.model
    if columns.not_before is None or columns.attempts is None:
        text = f"{handler.name} opens rows of {model._meta.label} again, which needs RetryMixin."
        hint = f"class {model.__name__}(RetryMixin, ClaimMixin), or TaskMixin"
        yield message("E052", text, hint, model)


def _skipped(handler: Handler) -> Iterator[CheckMessage]:
    model: Any = handler.model
    rows: models.QuerySet[Any] = models.QuerySet(model)
    # Rows on several tables are always deleted by Django.
    if is_on_many_tables(model) or Collector(using=rows.db).can_fast_delete(rows):
        return
    relations: Any = get_candidate_relations_to_delete(model._meta)
    names = [f"{one.related_model._meta.label}.{one.field.name}" for one in relations]
    text = (
        f"{handler.name} deletes done rows of {model._meta.label} without Django, which would follow"
        f" {listed([*names, 'generic relations'])}, and call receivers of pre_delete and post_delete."
    )
    hint = f"{type(handler.policy.completion).__name__}(…, cascade=True) lets Django do so, and is slower."
    yield message("W051", text, hint, model)
