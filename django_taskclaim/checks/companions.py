"""Companions: a link that can work, verbs in reach, results that can be stored."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import models, router

from django_taskclaim.checks.messages import message
from django_taskclaim.columns import is_claimable
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import Handler, handler_for
from django_taskclaim.links import LINK, SourceLink, is_companion, source_link
from django_taskclaim.querysets.results import PREFIX, writable


def check_companions() -> list[CheckMessage]:
    """E061 to E064 for every companion."""
    companions = [model for model in apps.get_models() if is_companion(model)]
    return [found for model in companions for found in problems_of(model)]


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield what is wrong with one companion."""
    try:
        link = source_link(model)
    except TypeError as error:
        hint = f"{LINK} = models.OneToOneField(Photo, models.DO_NOTHING, db_constraint=False)"
        yield message("E061", str(error), hint, model)
        return
    label, source = model._meta.label, link.source.__name__
    alias = router.db_for_write(model)
    beside = link.alias_beside(alias)
    if not _is_unique(link):
        yield message(
            "E062",
            f"{label}.{LINK} is not unique, so populate() could add two rows for one source.",
            f"{LINK} = models.OneToOneField({source}, models.DO_NOTHING, db_constraint=False)",
            model,
        )
    if beside != alias and getattr(link.field, "db_constraint", False):
        yield message(
            "E063",
            f"{label}.{LINK} is a foreign key with a constraint, and its table is on another database, {beside!r}.",
            f"{LINK} = SourceKey({source})",
            model,
        )
    manager: Any = model._default_manager
    if hasattr(manager, "claim_batch") and not hasattr(manager, "populate"):
        yield message(
            "E061",
            f"The default manager of {label}, {manager.name} = {type(manager).__name__}(), has no populate().",
            "Let it inherit from django_taskclaim.companions.CompanionManager, its queryset from CompanionQuerySet.",
            model,
        )
    if is_claimable(model) and (found := handler_for(model)):
        yield from _results(found, link, "" if beside == alias else beside)


def _is_unique(link: SourceLink) -> bool:
    names = {field.name for field in link.own}
    together = [set(one) for one in link.companion._meta.unique_together]
    return names in together or (len(link.own) == 1 and link.own[0].unique)


def _results(handler: Handler, link: SourceLink, elsewhere: str) -> Iterator[CheckMessage]:
    """E064: a result that would be looked for in the wrong place, or that no transaction can store."""
    own, theirs = writable(handler.model), writable(link.source)
    named, label = handler.update_fields, link.source._meta.label
    if elsewhere and (far := [name for name in named if name not in own]):
        yield message(
            "E064",
            f"update_fields of {handler.name} names {listed(far)} of {label}, which is on another database,"
            f" {elsewhere!r}: no transaction can store it with the completion.",
            f"Store results in columns of {link.companion._meta.label}, or save() the source in the handler.",
            handler.model,
        )
    if not elsewhere and (both := sorted(set(named) & own & theirs)):
        yield message(
            "E064",
            f"update_fields of {handler.name} names {listed(both)}, a column of {link.companion._meta.label} and of"
            f" {label} alike; without a prefix it is the companion's.",
            f"update_fields=[{PREFIX + both[0]!r}] for the source's, which the function gets.",
            handler.model,
        )
