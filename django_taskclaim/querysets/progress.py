"""How far a table has got."""

from dataclasses import dataclass

from django.db import models

from django_taskclaim.querysets.scope import ClaimTarget, Rows, on_claim_table, refuse_unclaimable


@dataclass(frozen=True, slots=True)
class Progress:
    """How many rows are in each state, counted in one statement."""

    open: int = 0
    processing: int = 0
    complete: int = 0
    failed: int = 0
    paused: int = 0

    @property
    def total(self) -> int:
        return self.open + self.processing + self.complete + self.failed + self.paused

    @property
    def finished(self) -> int:
        """Rows that no worker will touch again unless an operator resets them."""
        return self.complete + self.failed

    @property
    def fraction(self) -> float:
        """The finished part of all rows, from 0.0 to 1.0; 1.0 for an empty table."""
        return self.finished / self.total if self.total else 1.0


def progress_of(queryset: Rows) -> Progress:
    """Count the rows of *queryset* in each state."""
    refuse_unclaimable(queryset)
    if queryset.query.is_empty():
        return Progress()
    target = ClaimTarget.of(queryset.model, queryset.db)
    rows = on_claim_table(queryset, target).values_list(target.columns.status.name)
    return Progress(**dict(rows.annotate(n=models.Count("*"))))
