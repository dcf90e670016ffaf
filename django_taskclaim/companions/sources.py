"""Handing the sources of claimed companions to their handlers: loaded together, each with its claim."""

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.db import models

from django_taskclaim.columns import has_ranges
from django_taskclaim.companions.orphans import COMPARED
from django_taskclaim.links import COMPANION, LINK, is_companion, source_link
from django_taskclaim.querysets.isolating import isolate_unreadable
from django_taskclaim.ranges.target import source_of


def or_what_works_on_it(source: Any) -> str:
    """Return the end of a sentence that says what *source* lacks, where a table beside it may be meant."""
    named = [
        f"its {'companion' if is_companion(model) else 'ranges'} {model._meta.label}"
        for model in apps.get_models()
        if not model._meta.proxy and _works_on(model, source)
    ]
    return f", or work on {' or '.join(sorted(named))}" if named else ""


def _works_on(model: type[models.Model], source: Any) -> bool:
    if is_companion(model):
        fields = model._meta.fields
        return any(field.name == LINK and field.related_model is source for field in fields)
    try:
        return has_ranges(model) and source_of(model) is source
    except TypeError:
        # That it names no source is for ``manage.py check`` to say.
        return False


def load_sources(rows: Sequence[Any]) -> list[Any]:
    """Load the sources of companions, one query for hundreds, and return the rows whose source is gone.

    Afterwards ``row.source`` of the others asks no database. All rows must be of one model and database.
    """
    gone: list[Any] = []
    for start in range(0, len(rows), COMPARED):
        part = rows[start : start + COMPARED]
        link = source_link(type(part[0]))
        gone += link.load(part, link.alias_beside(part[0]._state.db))
    return gone


def load_readable_sources(rows: Sequence[Any]) -> list[tuple[Any, Exception]]:
    """Do what ``load_sources`` does, and return the rows whose source cannot be read, each with the error."""
    if not rows:
        return []
    link = source_link(type(rows[0]))
    using = link.alias_beside(rows[0]._state.db)
    return isolate_unreadable(rows, load_sources, models.QuerySet(link.source, using=using))


def hand_out(row: Any) -> Any:
    """Return the source of a claimed companion, with ``source.claim`` the companion's where that name is free."""
    source = getattr(row, LINK)
    source.__dict__[COMPANION] = row
    if not hasattr(type(source), "claim"):
        source.__dict__["claim"] = row.claim
    return source


def lacks_source(row: Any) -> bool:
    """Say whether ``load_sources`` has found no source for the companion *row*."""
    return not source_link(type(row)).field.is_cached(row)
