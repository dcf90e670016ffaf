"""Filters of the list by what the claim columns mean, and the paginator of large tables.

Filters ask only what the claim index can answer; the price of a count does not grow with the table.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ALL_VAR, ORDER_VAR, PAGE_VAR
from django.core.paginator import Paginator
from django.db import models
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim.admin.display import EXPIRED, STATES, WAITING
from django_taskclaim.columns import claim_columns
from django_taskclaim.monitoring.counts import count_rows
from django_taskclaim.querysets.scope import in_state, is_expired, is_waiting
from django_taskclaim.states import Status
from django_taskclaim.templatetags.taskclaim import number, short

#: What the parameters of our filters begin with, and those of Django's that leave all rows in the list.
OURS, NARROWS_NOTHING = "claim_", (ORDER_VAR, PAGE_VAR, ALL_VAR, "_facets")

#: So many failed rows are looked through for choices to offer.
LOOKED_THROUGH = 5_000

#: More choices than that help nobody.
MOST_CHOICES = 30

Choices = list[tuple[str, str]]
Rows = models.QuerySet[Any]


class ClaimFilter(SimpleListFilter):
    """A filter by the claim columns; the list draws it above its rows. One of them at most is in force."""

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        """Return the rows that match; all where nothing, or nothing that can be, is asked for."""
        value = self.value()
        return self.matching(queryset, value) if value and "\x00" not in value else queryset

    def choices(self, changelist: Any) -> Any:
        """Yield the choices without Django's facets, which would be one more count of the whole table."""
        shown = self.value()
        for value, display in [(None, _("All")), *self.lookup_choices]:
            query = changelist.get_query_string({self.parameter_name: value}, [OURS])
            yield {"selected": value == shown, "query_string": query, "display": display}

    def matching(self, rows: Rows, value: str) -> Rows:
        raise NotImplementedError


class StateFilter(ClaimFilter):
    """By state, with waiting and expired rows told apart from the others."""

    title = gettext_lazy("state")
    parameter_name = f"{OURS}state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        rows, counts = model_admin.get_queryset(request), dict[str, str]()
        columns = claim_columns(rows.model)
        # Other rows would be counted to their end, or are not all that there are.
        if columns.owned_by(rows.model) and not rows.query.where and shows_all(request):
            known = count_rows(rows.model, rows.db)
            for status in Status:
                n = getattr(known, status)
                counts[status] = f"≈ {short(n)}" if status in known.estimated else number(n)
        kinds = [kind for kind in STATES if kind != WAITING or columns.not_before]
        shape = '<span class="taskclaim-is-{}">{}</span> <b>{}</b>'
        return [(one, format_html(shape, one, STATES[one], counts.get(one, ""))) for one in kinds]

    def matching(self, rows: Rows, value: str) -> Rows:
        columns = claim_columns(rows.model)
        if value == WAITING:
            return rows.filter(in_state(columns, Status.OPEN), is_waiting(columns))
        if value == EXPIRED:
            return rows.filter(is_expired(columns))
        return rows.filter(in_state(columns, Status(value))) if value in Status else rows


class ErrorFilter(ClaimFilter):
    """By the class of the error that failed rows ended with; the choices are found among the first of them."""

    title = gettext_lazy("failed with")
    parameter_name = f"{OURS}error"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        columns = claim_columns(model_admin.model)
        if columns.error_class is None:
            return []
        failed = model_admin.get_queryset(request).filter(in_state(columns, Status.FAILED))
        names = failed.order_by().values_list(columns.error_class.name, flat=True)
        found = Counter(names[:LOOKED_THROUGH])
        more, counts = "+" * (found.total() == LOOKED_THROUGH), dict[str, str]()
        if shows_all(request):
            counts = {name: f" {number(n)}{more}" for name, n in found.items()}
        most = sorted(name for name, _n in found.most_common(MOST_CHOICES) if name)
        return [(name, name.rpartition(".")[2] + counts.get(name, "")) for name in most]

    def matching(self, rows: Rows, value: str) -> Rows:
        columns = claim_columns(rows.model)
        assert columns.error_class is not None, "else there is nothing to choose"
        return rows.filter(in_state(columns, Status.FAILED), **{columns.error_class.name: value})


FILTERS: tuple[type[ClaimFilter], ...] = (StateFilter, ErrorFilter)


def shows_all(request: HttpRequest) -> bool:
    """Say whether no search and no filter but ours narrows the list, so that a count of all rows says the truth."""
    return all(name in NARROWS_NOTHING or name.startswith(OURS) for name in request.GET)


def order_of(model: type[models.Model], asked: Mapping[str, object]) -> list[str]:
    """Return the order in which the rows that the filters *asked* for are found without reading all; [] for any.

    Complete rows, which PostgreSQL's claim index leaves out, are found by key: those at the front were claimed first.
    """
    if not any(one.parameter_name in asked for one in FILTERS):
        return []
    columns = claim_columns(model)
    if asked.get(StateFilter.parameter_name) == Status.COMPLETE:
        return [field.attname for field in columns.key]
    return columns.order


# How many rows a list has

#: Up to so many rows are counted and shown.
MOST_COUNTED = 50_000


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # not generic when it runs
    """Counts up to MOST_COUNTED rows and ends there: another filter or order shows the others."""

    #: What a page says of a count that is not exact.
    words = ""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        count: int = rows.order_by()[: MOST_COUNTED + 1].count()
        if count > MOST_COUNTED:
            count = MOST_COUNTED
            self.words = _("more than %(number)s") % {"number": number(count)}
        return count
