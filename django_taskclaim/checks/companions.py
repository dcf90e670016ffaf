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


def check_companions(**kwargs: Any) -> list[CheckMessage]:
    """E061 to E064 for every companion."""
    companions = [model for model in apps.get_models() if is_companion(model)]
    return [found for model in companions for found in problems_of(model)]


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield what is wrong with one companion."""
    try:
        link = source_link(model)
    except TypeError as error:
        yield message(
            "E061",
            str(error),
            "source = models.OneToOneField(Photo, models.DO_NOTHING, db_constraint=False), or source = SourceKey(Photo)"
            " for a composite key or another database",
            model,
        )
        return
    yield from _link(link)
    yield from _verbs(model)
    found = handler_for(model) if is_claimable(model) else None
    if found is not None:
        yield from _results(found, link)


def _link(link: SourceLink) -> Iterator[CheckMessage]:
    label, field = link.companion._meta.label, link.field
    if not _is_unique(link):
        yield message(
            "E062",
            f"{label}.{LINK} is not unique, so populate() could add two rows for one source.",
            f"{LINK} = models.OneToOneField({link.source.__name__}, models.DO_NOTHING, db_constraint=False)",
            link.companion,
        )
    beside = link.alias_beside(router.db_for_write(link.companion))
    if beside != router.db_for_write(link.companion) and getattr(field, "db_constraint", False):
        yield message(
            "E063",
            f"{label}.{LINK} is a foreign key with a constraint, and its table is on another database, {beside!r}.",
            f"{LINK} = SourceKey({link.source.__name__})",
            link.companion,
        )


def _is_unique(link: SourceLink) -> bool:
    if len(link.own) == 1:
        return bool(link.own[0].unique)
    names = {field.name for field in link.own}
    return any(set(together) == names for together in link.companion._meta.unique_together)


def _verbs(model: type[models.Model]) -> Iterator[CheckMessage]:
    manager: Any = model._default_manager
    if hasattr(manager, "claim_batch") and not hasattr(manager, "populate"):
        yield message(
            "E061",
            f"The default manager of {model._meta.label}, {manager.name} = {type(manager).__name__}(), has no"
            " populate().",
            "Let it inherit from django_taskclaim.companions.CompanionManager, its queryset from CompanionQuerySet.",
            model,
        )


def _results(handler: Handler, link: SourceLink) -> Iterator[CheckMessage]:
    """E064: a result that would be looked for in the wrong place, or that no transaction can store."""
    own, theirs = writable(handler.model), writable(link.source)
    alias = router.db_for_write(handler.model)
    far = [name for name in handler.update_fields if name not in own]
    if link.alias_beside(alias) != alias:
        if far:
            yield message(
                "E064",
                f"update_fields of {handler.name} names {listed(far)} of {link.source._meta.label}, which is on another"
                f" database, {link.alias_beside(alias)!r}: no transaction can store it with the completion.",
                f"Store results in columns of {link.companion._meta.label}, or save() the source in the handler.",
                handler.model,
            )
        return
    both = sorted(set(handler.update_fields) & own & theirs) if handler.gets_sources else []
    if both:
        yield message(
            "E064",
            f"update_fields of {handler.name} names {listed(both)}, a column of {link.companion._meta.label} and of"
            f" {link.source._meta.label} alike; without a prefix it is the companion's.",
            f"update_fields=[{PREFIX + both[0]!r}] for the source's, which the function gets.",
            handler.model,
        )
