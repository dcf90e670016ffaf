"""Handing the sources of claimed companions to their handlers: loaded together, each with its claim."""

from collections.abc import Sequence
from typing import Any

from django_taskclaim.links import COMPANION, LINK, SourceLink, companion_of, source_link
from django_taskclaim.querysets.orphans import COMPARED

__all__ = ["companion_of", "hand_out", "lacks_source", "load_sources"]


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
        for row in _load(link, rows[start : start + COMPARED], using)
    ]


def _load(link: SourceLink, rows: Sequence[Any], using: str) -> list[Any]:
    by_key = {link.key_of(row): row for row in rows}
    for source in link.with_keys(by_key, using):
        link.remember(by_key.pop(link.key_of_source(source)), source)
    return list(by_key.values())


def hand_out(row: Any) -> Any:
    """Return the source of a claimed companion, with ``source.claim`` the companion's where that name is free."""
    # Late, for handlers may be imported before models can be.
    from django_taskclaim.models.handle import ClaimHandle

    source = getattr(row, LINK)
    source.__dict__[COMPANION] = row
    if not hasattr(type(source), "claim"):
        source.__dict__["claim"] = ClaimHandle(row)
    return source


def lacks_source(row: Any) -> bool:
    """Say whether ``load_sources`` has found no source for the companion *row*."""
    return not source_link(type(row)).field.is_cached(row)
