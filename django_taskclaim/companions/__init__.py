"""Companions: claims for the rows of a table that may not be altered, kept in a table beside it.

Here are their manager and queryset, and what loads the sources and hands them to handlers. ``populating`` makes their
rows. How a companion finds its source is in ``django_taskclaim.columns``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models

from django_taskclaim.awaitables import async_twin
from django_taskclaim.columns import COMPANION, LINK, companion_of, source_link
from django_taskclaim.companions.populating import Population, Progress
from django_taskclaim.querysets.isolating import Bad, find_unreadable
from django_taskclaim.querysets.manager import ClaimManager, ClaimQuerySet
from django_taskclaim.querysets.scope import Rows

__all__ = ["CompanionManager", "CompanionQuerySet", "companion_of", "lacks_source", "load_sources"]


M = TypeVar("M", bound=models.Model)


class CompanionQuerySet(ClaimQuerySet[M]):
    """The rows of a ``SourceMixin`` model; to inherit from, or to make a manager of."""

    def populate(
        self,
        sources: Rows | models.Manager[Any],
        *,
        chunk_size: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Add a row for each source of the queryset *sources* that has none, and return how many were added.

        The new rows are open. Repeatable, also by several at once: no source ever gets two. One
        INSERT … SELECT where both tables are on one database. Otherwise, or with *chunk_size*, the sources are taken in
        chunks in the order of their key. Each chunk is committed, so a call that breaks off is simply repeated. After
        each chunk *progress* is called with how many sources were looked at so far, and how many rows added.

        Raises TypeError for what is no filtered queryset of the source model.
        """
        self._for_write = True
        return Population(self.model, self.db, sources).run(chunk_size, progress)

    apopulate = async_twin(populate)


if TYPE_CHECKING:
    # A manager's methods and a queryset's are typed differently by django-stubs.
    class CompanionManager(CompanionQuerySet[M], ClaimManager[M]):  # type: ignore[misc,override]
        """The same in words that type checkers understand: a manager and a queryset in one."""

else:

    class CompanionManager(ClaimManager.from_queryset(CompanionQuerySet)):
        """The manager that ``SourceMixin`` brings; a custom one inherits from it or from ``from_queryset(…)``."""


#: The sources of so many rows are loaded by one query.
LOADED_AT_ONCE = 400


def load_sources(rows: Sequence[Any]) -> list[Bad[Any]]:
    """Load the sources of companions, one query for hundreds; return those that cannot be read, each with the error.

    Afterwards ``row.source`` of the others asks no database. All rows must be of one model and database.
    """
    if not rows:
        return []
    link = source_link(type(rows[0]))
    using = link.alias_beside(rows[0]._state.db)

    def load(part: Sequence[Any]) -> None:
        for start in range(0, len(part), LOADED_AT_ONCE):
            link.load(part[start : start + LOADED_AT_ONCE], using)

    return find_unreadable(rows, load, models.QuerySet(link.source, using=using))


def hand_out(row: Any) -> Any:
    """Return the source of a claimed companion, with ``source.claim`` the companion's where that name is free."""
    source = getattr(row, LINK)
    source.__dict__[COMPANION] = row
    if not hasattr(type(source), "claim"):
        source.__dict__["claim"] = row.claim
    return source


def lacks_source(row: models.Model) -> bool:
    """Say whether ``load_sources`` has found no source for the companion *row*."""
    return not source_link(type(row)).field.is_cached(row)
