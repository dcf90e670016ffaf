"""Companions and ranges, which work on the rows of another model: their link, their databases, and their results."""

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage
from django.db import connections, models, router

from django_taskclaim.checks.messages import message
from django_taskclaim.columns import (
    LINK,
    SourceLink,
    has_ranges,
    is_claimable,
    is_companion,
    source_link,
)
from django_taskclaim.db import is_supported
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import Handler, handler_for
from django_taskclaim.models import RangeMixin
from django_taskclaim.querysets.completing import PREFIX, writable
from django_taskclaim.ranges.keys import RangeTarget, source_of
from django_taskclaim.ranges.planning import refuse_unplannable


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield E061 to E064 of a companion, E071 to E074 of a model of ranges; nothing of any other model."""
    if is_companion(model):
        yield from _companion(model)
    if issubclass(model, RangeMixin):
        yield from _ranges(model)


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
    if beside != alias and getattr(link.field, "db_constraint", False):
        text = (
            f"{label}.{LINK} is a foreign key with a constraint into another database, {beside!r}."
        )
        yield message("E063", text, f"{LINK} = SourceKey({source})", model)
    manager: Any = model._default_manager
    if hasattr(manager, "claim_batch") and not hasattr(manager, "populate"):
        text = f"{label}.{manager.name} = {type(manager).__name__}() has no populate()."
        hint = "Inherit from CompanionManager and CompanionQuerySet of django_taskclaim.companions."
        yield message("E061", text, hint, model)
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
    label, declared = model._meta.label, f"class {model.__name__}(RangeMixin, TaskMixin):"
    if model._meta.parents or not has_ranges(model):
        text = f"{label} inherits from another table; its ranges must be on a table of their own."
        yield message("E073", text, declared, model)
    try:
        source = source_of(model)
    except TypeError as error:
        yield message("E071", str(error), 'source = Photo, or source = "photos.Photo"', model)
        return
    own, others = router.db_for_write(model), router.db_for_write(source)
    if own != others:
        text = (
            f"{label} is written to {own!r} and {source._meta.label} to {others!r}: a chunk and its checkpoint"
            " cannot be one transaction."
        )
        hint = f"Let the router's db_for_write() send {model.__name__} to {others!r}."
        yield message("E072", text, hint, model)
    # A database of another kind has E016.
    if is_claimable(model) and is_supported(connections[own]):
        try:
            refuse_unplannable(RangeTarget.of(model, own))
        except (TypeError, ValueError) as error:
            hint = f"{declared} commits_within = timedelta(minutes=10); plan_ahead = 100_000"
            yield message("E074", str(error), hint, model)
