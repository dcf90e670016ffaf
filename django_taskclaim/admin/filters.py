"""Filters of the list by what the claim columns mean, and the paginator of large tables.

Filters ask only what the claim index can answer; the price of a count does not grow with the table.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.core.paginator import Paginator
from django.db import connections, models
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim.admin.display import EXPIRED, STATES, WAITING
from django_taskclaim.columns import claim_columns
from django_taskclaim.db import dialect_for
from django_taskclaim.monitoring.counts import count_rows
from django_taskclaim.querysets.scope import is_expired, is_waiting
from django_taskclaim.states import WORKER_MARK, Status
from django_taskclaim.templatetags.taskclaim_admin import holder_text, number, short

#: So many running, or failed, rows are looked through for choices to offer.
LOOKED_THROUGH = 5_000

#: More choices than that help nobody.
MOST_CHOICES = 30

Choices = list[tuple[str, str]]
Rows = models.QuerySet[Any]


class ClaimFilter(SimpleListFilter):
    """A filter by the claim columns; the list draws it above its rows."""

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        """Return the rows that match; all where nothing, or nothing that can be, is asked for."""
        value = self.value()
        return self.matching(queryset, value) if value and "\x00" not in value else queryset

    def choices(self, changelist: Any) -> Any:
        """Yield the choices without Django's facets, which would be one more count of the whole table."""
        shown = self.value()
        for value, display in [(None, _("All")), *self.lookup_choices]:
            query = changelist.get_query_string({self.parameter_name: value})
            yield {"selected": value == shown, "query_string": query, "display": display}

    def matching(self, rows: Rows, value: str) -> Rows:
        raise NotImplementedError

    def in_state(self, rows: Rows, status: str, **more: object) -> Rows:
        return rows.filter(**{claim_columns(rows.model).status.name: status}, **more)


class StateFilter(ClaimFilter):
    """By state, with waiting and expired rows told apart from the others."""

    title = gettext_lazy("state")
    parameter_name = "claim_state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        rows, counts = model_admin.get_queryset(request), dict[str, str]()
        columns = claim_columns(rows.model)
        # Other rows would be counted to their end, or are not all that there are.
        if columns.owned_by(rows.model) and not rows.query.where:
            known = count_rows(rows.model, rows.db)
            for status in Status:
                n = getattr(known.progress, status)
                counts[status] = f"≈ {short(n)}" if status in known.estimated else number(n)
        kinds = [kind for kind in STATES if kind != WAITING or columns.not_before]
        shape = '<span class="taskclaim-is-{}">{}</span> <b>{}</b>'
        return [(one, format_html(shape, one, STATES[one], counts.get(one, ""))) for one in kinds]

    def matching(self, rows: Rows, value: str) -> Rows:
        if value == WAITING:
            return self.in_state(rows, Status.OPEN).filter(is_waiting(claim_columns(rows.model)))
        if value == EXPIRED:
            return rows.filter(is_expired(claim_columns(rows.model)))
        return self.in_state(rows, value) if value in Status else rows


class GroupFilter(ClaimFilter):
    """By what a column has of rows in one state; the choices are found among the first of them."""

    status: Status
    role: str

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        field = getattr(claim_columns(model_admin.model), self.role)
        if field is None:
            return []
        rows = self.in_state(model_admin.get_queryset(request), self.status).order_by()
        values = list(rows.values_list(field.name, flat=True)[:LOOKED_THROUGH])
        more = "+" * (len(values) == LOOKED_THROUGH)
        # All batches of a worker share the part up to its mark.
        groups = Counter("".join(value.partition(WORKER_MARK)[:2]) for value in values if value)
        most = sorted(groups.most_common(MOST_CHOICES))
        return [(value, f"{self.words(value)} {number(n)}{more}") for value, n in most]

    def matching(self, rows: Rows, value: str) -> Rows:
        lookup = "__startswith" if value.endswith(WORKER_MARK) else ""
        named = {f"{getattr(claim_columns(rows.model), self.role).name}{lookup}": value}
        return self.in_state(rows, self.status, **named)

    def words(self, value: str) -> str:
        raise NotImplementedError


class HolderFilter(GroupFilter):
    """By who holds rows now; the batches of one worker process are one holder."""

    title = gettext_lazy("holder")
    parameter_name = "claim_holder"
    status, role = Status.PROCESSING, "claimed_by"

    def words(self, value: str) -> str:
        return holder_text(value)


class ErrorFilter(GroupFilter):
    """By the class of the error that failed rows ended with."""

    title = gettext_lazy("failed with")
    parameter_name = "claim_error"
    status, role = Status.FAILED, "error_class"

    def words(self, value: str) -> str:
        return value.rpartition(".")[2]


FILTERS: tuple[type[ClaimFilter], ...] = (StateFilter, ErrorFilter, HolderFilter)


def order_of(model: type[models.Model], asked: Mapping[str, object], alias: str) -> list[str]:
    """Return the order in which the rows that the filters *asked* for are found without reading all; [] for any.

    Where the claim index leaves out complete rows they are found by key: those at the front were claimed first.
    """
    if not any(one.parameter_name in asked for one in FILTERS):
        return []
    columns = claim_columns(model)
    by_key = asked.get(StateFilter.parameter_name) == Status.COMPLETE
    if by_key and dialect_for(connections[alias]).leaves_out_complete:
        return [field.attname for field in columns.key]
    return columns.order


# How many rows a list has

#: Up to so many rows are counted and shown.
MOST_COUNTED = 50_000


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # not generic when it runs
    """Counts up to MOST_COUNTED rows and ends there: another filter or order shows the others."""

    #: What there is to say of a count that is not exact.
    note = ""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        if not isinstance(rows, models.QuerySet):
            return len(rows)
        count = rows.order_by()[: MOST_COUNTED + 1].count()
        if count > MOST_COUNTED:
            count = MOST_COUNTED
            self.note = _("more than %(number)s rows") % {"number": number(count)}
        return count
