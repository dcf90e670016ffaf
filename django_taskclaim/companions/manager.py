"""The verbs that companions have beside those of every claimable model: populate, and what has lost its source."""

from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.db import models

from django_taskclaim.awaitables import async_twin
from django_taskclaim.companions.populating import Population, Progress
from django_taskclaim.companions.sources import only_orphans, remove_orphans
from django_taskclaim.querysets.manager import ClaimManager, ClaimQuerySet

M = TypeVar("M", bound=models.Model)


class CompanionQuerySet(ClaimQuerySet[M]):
    """The rows of a ``SourceMixin`` model; to inherit from, or to make a manager of."""

    def populate(
        self,
        sources: "models.QuerySet[Any] | models.Manager[Any]",
        *,
        paused: bool = False,
        chunk_size: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Add a row for each source of the queryset *sources* that has none, and return how many were added.

        The new rows are open, or *paused*. Repeatable, also by several at once: no source ever gets two. One
        INSERT … SELECT where both tables are on one database. Otherwise, or with *chunk_size*, the sources are taken in
        chunks in the order of their key. Each chunk is committed, so a call that breaks off is simply repeated. After
        each chunk *progress* is called with how many sources were looked at so far, and how many rows added.

        Raises TypeError for what is no filtered queryset of the source model.
        """
        self._for_write = True
        population = Population(self.model, self.db, sources, paused=paused)
        return population.run(chunk_size, progress)

    def orphans(self) -> Self:
        """Rows whose source is gone.

        Where the sources are on another database, all keys are compared at once, here and now.
        """
        return only_orphans(self)

    def remove_orphans(self) -> int:
        """Delete the rows of this queryset whose source is gone, and return how many; never one that is processing."""
        self._for_write = True
        return remove_orphans(self)

    apopulate = async_twin(populate)
    aremove_orphans = async_twin(remove_orphans)


if TYPE_CHECKING:

    class _Manager(CompanionQuerySet[M], ClaimManager[M]):  # type: ignore[misc, override]
        pass

else:
    _Manager = ClaimManager.from_queryset(CompanionQuerySet)


class CompanionManager(_Manager[M]):  # type: ignore[override]  # a manager and a queryset in one
    """The manager that ``SourceMixin`` brings; a custom one inherits from it or from ``from_queryset(…)``."""
