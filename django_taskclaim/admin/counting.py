"""How many rows a list has, at a price that does not grow with the table."""

from typing import Any

from django.core.paginator import Paginator
from django.db import models
from django.utils.functional import cached_property

from django_taskclaim.census import MOST
from django_taskclaim.columns import claim_columns
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.states import Status

#: Up to so many rows that match a filter are counted; there is no estimate for the rest.
MOST_MATCHES = 50_000


def counted_up_to(rows: models.QuerySet[Any], most: int) -> int | None:
    """Return how many *rows* there are, or None where there are more than *most*."""
    count = rows.order_by()[: most + 1].count()
    return count if count <= most else None


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts small lists, estimates a whole large table, and counts a filtered one up to MOST_MATCHES."""

    #: The state that the rows are in, where nothing else is asked of them: statistics know how many those are.
    known_state = ""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        if not isinstance(rows, models.QuerySet):
            return len(rows)
        exact = counted_up_to(rows, MOST)
        if exact is not None:
            return exact
        believed = _believed(rows, self.known_state)
        if believed is not None:
            return max(believed, MOST + 1)
        return counted_up_to(rows, MOST_MATCHES) or MOST_MATCHES


def _believed(rows: models.QuerySet[Any], state: str) -> int | None:
    """Return about how many rows there are, by the server's statistics; None where they do not tell."""
    told_of = state in Status.values or not rows.query.where
    if not told_of or not claim_columns(rows.model).owned_by(rows.model):
        return None
    desk = Desk.of(rows.model, rows.db)
    belief = desk.dialect.believed(desk.table)
    if belief is None:
        return None
    return round(belief.by_state.get(state, 0.0) if state else belief.rows)
