"""How many rows a list has, at a price that does not grow with the table, and its pages far from the first."""

from typing import Any

from django.core.paginator import Page, Paginator
from django.db import connections, models
from django.utils.functional import cached_property

from django_taskclaim.columns import claim_columns
from django_taskclaim.monitoring.counts import MOST
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.querysets.scope import ClaimTarget

#: Up to so many rows that match a filter are counted; there is no estimate for the rest.
MOST_MATCHES = 50_000


def counted_up_to(rows: models.QuerySet[models.Model], most: int) -> int | None:
    """Return how many *rows* there are, or None where there are more than *most*."""
    count = rows.order_by()[: most + 1].count()
    return count if count <= most else None


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # not generic when it runs
    """Counts small lists, estimates a whole large table, and counts a filtered one up to MOST_MATCHES."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        if not isinstance(rows, models.QuerySet):
            return len(rows)
        exact = counted_up_to(rows, MOST)
        if exact is not None:
            return exact
        if self._estimated is not None:
            return max(self._estimated, MOST + 1)
        return counted_up_to(rows, MOST_MATCHES) or MOST_MATCHES

    @cached_property
    def _estimated(self) -> int | None:
        rows: Any = self.object_list
        return _estimated(rows)

    def page(self, number: int | str) -> Page:  # type: ignore[type-arg]  # not generic when it runs
        """Return a page as Django does; one far from the first costs keys alone, from the end that is nearer."""
        number = self.validate_number(number)
        bottom = (number - 1) * self.per_page
        rows: Any = self.object_list
        if bottom < MOST or not isinstance(rows, models.QuerySet) or rows.query.distinct:
            return super().page(number)
        return Page(rows.filter(pk__in=self._keys(rows, bottom)), number, self)

    def _keys(self, rows: models.QuerySet[models.Model], bottom: int) -> list[object]:
        keys = rows.values_list("pk", flat=True)
        top = min(bottom + self.per_page, self.count)
        behind = self.count - top
        # Where only the first MOST_MATCHES were counted, nobody knows how far the end is.
        if self._estimated is not None and behind < bottom:
            return list(keys.reverse()[behind : self.count - bottom])
        return list(keys[bottom:top])


def _estimated(rows: models.QuerySet[models.Model]) -> int | None:
    """Return about how many rows a whole table has, by the server's statistics; None where they do not tell."""
    if rows.query.where or not claim_columns(rows.model).owned_by(rows.model):
        return None
    target = ClaimTarget.of(rows.model, rows.db)
    estimate = server_for(connections[rows.db]).estimate(target.table)
    return None if estimate is None else round(estimate.rows)
