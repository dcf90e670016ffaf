"""Handing the sources of claimed companions to their handlers: loaded together, each with its claim."""

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.db import models

from django_taskclaim.columns import has_ranges
from django_taskclaim.companions.orphans import COMPARED
from django_taskclaim.links import COMPANION, LINK, is_companion, source_link
from django_taskclaim.querysets.unreadable import may_be_of_a_row, read_apart
from django_taskclaim.ranges.target import source_of


def companions_of(source: Any) -> list[type[models.Model]]:
    """Return the installed models that are companions of the model *source*, by name."""
    found = [model for model in apps.get_models() if is_companion(model) and not model._meta.proxy]
    beside = [model for model in found if _leads_to(model, source)]
    return sorted(beside, key=lambda model: model._meta.label)


def ranges_of(source: Any) -> list[type[models.Model]]:
    """Return the installed models whose rows are ranges of the model *source*, by name."""
    found = [model for model in apps.get_models() if has_ranges(model) and not model._meta.proxy]
    over = [model for model in found if _is_range_of(model, source)]
    return sorted(over, key=lambda model: model._meta.label)


def or_what_works_on_it(source: Any) -> str:
    """Return the end of a sentence that says what *source* lacks, where a table beside it may be meant."""
    kinds = {"companion": companions_of(source), "ranges": ranges_of(source)}
    named = [
        f"its {kind} {' or '.join(model._meta.label for model in models)}"
        for kind, models in kinds.items()
        if models
    ]
    return f", or work on {' or '.join(named)}" if named else ""


def _leads_to(model: type[models.Model], source: Any) -> bool:
    # A companion without a usable link is for ``manage.py check`` to tell.
    return any(field.name == LINK and field.related_model is source for field in model._meta.fields)


def _is_range_of(model: type[models.Model], source: Any) -> bool:
    try:
        return source_of(model) is source
    except TypeError:
        # As above.
        return False


def load_sources(rows: Sequence[Any]) -> list[Any]:
    """Load the sources of companions, one query for hundreds, and return the rows whose source is gone.

    Afterwards ``row.source`` of the others asks no database. All rows must be of one model and database.
    """
    if not rows:
        return []
    link = source_link(type(rows[0]))
    using = link.alias_beside(rows[0]._state.db)
    return [
        row
        for start in range(0, len(rows), COMPARED)
        for row in link.load(rows[start : start + COMPARED], using)
    ]


def load_readable_sources(rows: Sequence[Any]) -> list[tuple[Any, Exception]]:
    """Do what ``load_sources`` does, and return the rows whose source cannot be read, each with the error."""
    if not rows:
        return []
    link = source_link(type(rows[0]))
    using = link.alias_beside(rows[0]._state.db)
    try:
        load_sources(rows)
    except Exception as error:
        if not may_be_of_a_row(error, using):
            raise
    else:
        return []
    return read_apart(rows, load_sources, models.QuerySet(link.source, using=using))


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
