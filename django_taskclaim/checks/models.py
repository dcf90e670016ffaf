"""Claimable models, what they are companions or ranges of, and their handlers."""

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.core.checks import CheckMessage
from django.db import connections, models, router

from django_taskclaim import conf
from django_taskclaim.columns import (
    LINK,
    SourceLink,
    claim_columns,
    is_claimable,
    is_companion,
    source_link,
)
from django_taskclaim.completion import Archive, Clear
from django_taskclaim.db import is_supported
from django_taskclaim.fields import ClaimColumn, PriorityField
from django_taskclaim.findings import message
from django_taskclaim.formatting import format_duration, listed
from django_taskclaim.handlers import WAITS_PER_LEASE, Handler, handler_for
from django_taskclaim.models import RangeMixin
from django_taskclaim.models.mixins import ClaimBase
from django_taskclaim.policy import SHORTEST_LEASE
from django_taskclaim.querysets.completing import PREFIX, writable
from django_taskclaim.ranges.keys import RangeTarget, source_of
from django_taskclaim.ranges.planning import refuse_unplannable
from django_taskclaim.throttling.health import loaded


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield what is wrong with a claimable model and its handler; where TASKCLAIM is wrong, that is not to be asked."""
    yield from column_problems(model)
    if is_companion(model):
        yield from _companion(model)
    if issubclass(model, RangeMixin):
        yield from _ranges(model)
    if is_claimable(model) and (handler := handler_for(model)):
        for look in (_lease, _one_writer, _health_checks, _archive, _clear):
            yield from look(handler)


def column_problems(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield E002, E004 and E005."""
    label, handle = model._meta.label, ClaimBase.__dict__["claim"]
    if issubclass(model, ClaimBase) and inspect.getattr_static(model, "claim", None) is not handle:
        text = f"{label}.claim replaces row.claim, through which a row's claim is completed and renewed."
        hint = 'Rename it; a field may keep its column: ticket = models.CharField(…, db_column="claim").'
        yield message("E004", text, hint, model)
    if not _gives_verbs(manager := model._default_manager):
        name = manager.name or "objects"
        text = f"{label}.{name} = {type(manager).__name__}() gives rows without claim_batch(), so no worker can work."
        hint = f"{name} = ClaimManager()  # or a class that inherits from it, with a queryset from ClaimQuerySet"
        yield message("E002", text, hint, model)
    try:
        claim_columns(model)
    except TypeError as error:
        hint = (
            f"class {model.__name__}(PrefixedTaskMixin):  # or TaskMixin, or claim_fields, from a role to a field of"
            " django_taskclaim.fields"
        )
        yield message("E005", str(error), hint, model)


def _gives_verbs(manager: Any) -> bool:
    try:
        rows = manager.get_queryset()
    except Exception:
        # It may need what only a request or a worker has, such as a tenant.
        rows = manager
    return hasattr(rows, "claim_batch")


# Companions and ranges, which work on the rows of another model


def _companion(model: type[models.Model]) -> Iterator[CheckMessage]:
    one_to_one = f"{LINK} = models.OneToOneField(%s, models.DO_NOTHING, db_constraint=False)"
    try:
        link = source_link(model)
    except TypeError as error:
        yield message("E061", str(error), one_to_one % "Photo", model)
        return
    label, source = model._meta.label, link.source.__name__
    alias = router.db_for_write(model)
    beside = link.alias_beside(alias)
    if not _is_unique(link):
        text = f"{label}.{LINK} is not unique, so one source could have two rows."
        yield message("E062", text, one_to_one % source, model)
    if is_claimable(model) and (found := handler_for(model)):
        yield from _results(found, link, "" if beside == alias else beside)


def _is_unique(link: SourceLink) -> bool:
    names = {field.name for field in link.own}
    meta: Any = link.companion._meta
    together = [*meta.unique_together, *(one.fields for one in meta.total_unique_constraints)]
    return names in map(set, together) or (len(link.own) == 1 and link.own[0].unique)


def _results(handler: Handler, link: SourceLink, elsewhere: str) -> Iterator[CheckMessage]:
    """E064: a result that no transaction can store, or that two tables have a column for."""
    own, named, label = writable(handler.model), handler.update_fields, link.source._meta.label
    if elsewhere and (far := [name for name in named if name not in own]):
        text = (
            f"{handler.name} stores {listed(far)} of {label}, which is on another database, {elsewhere!r}:"
            " no transaction writes both."
        )
        hint = f"Add columns to {link.companion._meta.label}, or save() the source in the handler."
        yield message("E064", text, hint, handler.model)
    if not elsewhere and (both := sorted(set(named) & own & writable(link.source))):
        text = f"{handler.name} stores {listed(both)}, which the companion and {label} both have."
        hint = f"update_fields=[{PREFIX + both[0]!r}] is the column of {label}, which the handler receives."
        yield message("E064", text, hint, handler.model)


def _ranges(model: type[models.Model]) -> Iterator[CheckMessage]:
    try:
        source_of(model)
    except TypeError as error:
        yield message("E071", str(error), 'source = Photo, or source = "photos.Photo"', model)
        return
    alias = router.db_for_write(model)
    # A database of another kind has E016.
    if is_claimable(model) and is_supported(connections[alias]):
        try:
            refuse_unplannable(RangeTarget(model, alias))
        except (TypeError, ValueError) as error:
            hint = "commits_within = timedelta(minutes=10); plan_ahead = 100_000"
            yield message("E074", str(error), hint, model)


# Handlers


def _lease(handler: Handler) -> Iterator[CheckMessage]:
    model, lease = handler.model, handler.lease
    if lease < SHORTEST_LEASE:
        text = (
            f"Rows of {model._meta.label} are claimed for {format_duration(lease)}: one slow renewal, and a running row"
            " is lost."
        )
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
            hint = 'TASKCLAIM = {"HEALTH_CHECKS": [ReplicaLag(using="replica")]}  # from django_taskclaim.throttling'
            yield message("E031", text, hint, handler.model)


# The completion policies


def _archive(handler: Handler) -> Iterator[CheckMessage]:
    model, archive, completion = handler.model, None, handler.completion
    if not isinstance(completion, Archive):
        return
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
    there = {field.attname for field in archive._meta.concrete_fields}
    parents = model._meta.parents.values()
    lost = [
        field.name
        for field in model._meta.concrete_fields
        if not (field.attname in there or field in parents)
        and not isinstance(field, (ClaimColumn, PriorityField))
    ]
    if lost:
        text = f"{archive._meta.label}, the archive of {handler.name}, lacks {listed(lost)}, which will be lost."
        hint = 'Add the columns, or SILENCED_SYSTEM_CHECKS = ["taskclaim.W051"].'
        yield message("W051", text, hint, model)


def _clear(handler: Handler) -> Iterator[CheckMessage]:
    columns, model = claim_columns(handler.model), handler.model
    lacking = columns.not_before is None or columns.attempts is None
    if lacking and isinstance(handler.completion, Clear):
        text = f"{handler.name} opens rows of {model._meta.label} again, which needs RetryMixin."
        hint = f"class {model.__name__}(RetryMixin, ClaimMixin), or TaskMixin"
        yield message("E052", text, hint, model)
