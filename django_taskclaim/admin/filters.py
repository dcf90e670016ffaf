"""Filters of the list by what the claim columns mean. Each asks only what the claim index can answer."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db import connections, models
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim.admin.rows import STATES, WAITING, holder_text
from django_taskclaim.columns import ClaimColumns, claim_columns
from django_taskclaim.control.actions import EXPIRED
from django_taskclaim.db import dialect_for
from django_taskclaim.formatting import format_duration
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.querysets.scope import is_expired, is_waiting
from django_taskclaim.states import WORKER_MARK, Status

#: So many running, or failed, rows are looked through for choices to offer.
LOOKED_THROUGH = 5_000

#: More choices than that help nobody.
MOST_CHOICES = 30

Choices = list[tuple[str, str]]
Rows = models.QuerySet[Any]


class ClaimFilter(SimpleListFilter):
    """A filter that knows where the model keeps its claim columns."""

    def __init__(
        self, request: HttpRequest, params: Any, model: type[models.Model], model_admin: Any
    ) -> None:
        self.columns: ClaimColumns = claim_columns(model)
        super().__init__(request, params, model, model_admin)

    def in_state(self, rows: Rows, status: Status) -> Rows:
        return rows.filter(**{self.columns.status.name: status})

    def found(self, model_admin: Any, request: HttpRequest, status: Status, field: Any) -> set[Any]:
        """Return the different values of *field* among the first rows in a state."""
        rows = self.in_state(model_admin.get_queryset(request), status).order_by()
        return set(rows.values_list(field.name, flat=True)[:LOOKED_THROUGH])


class StateFilter(ClaimFilter):
    """By state, with waiting and expired rows told apart from the others."""

    title = gettext_lazy("state")
    parameter_name = "claim_state"

    def lookups(self, request: HttpRequest, model_admin: object) -> Choices:
        kinds = [kind for kind in STATES if kind != WAITING or self.columns.not_before]
        return [(kind, str(STATES[kind])) for kind in kinds]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        kind = self.value()
        if kind is None or kind not in STATES:
            return queryset
        if kind == WAITING:
            return self.in_state(queryset, Status.OPEN).filter(is_waiting(self.columns))
        if kind == EXPIRED:
            return queryset.filter(is_expired(self.columns))
        return self.in_state(queryset, Status(kind))


class HolderFilter(ClaimFilter):
    """By who holds rows now; the batches of one worker process are one holder."""

    title = gettext_lazy("holder")
    parameter_name = "claim_holder"

    def lookups(self, request: HttpRequest, model_admin: object) -> Choices:
        held = self.found(model_admin, request, Status.PROCESSING, self.columns.claimed_by)
        names = sorted({_process_of(holder) for holder in held if holder})
        return [(name, holder_text(_as_holder(name))) for name in names[:MOST_CHOICES]]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        name = self.value()
        if not name or "\x00" in name:
            return queryset
        lookup = "__startswith" if name.endswith(WORKER_MARK) else ""
        held = self.in_state(queryset, Status.PROCESSING)
        return held.filter(**{f"{self.columns.claimed_by.name}{lookup}": name})


def _process_of(holder: str) -> str:
    """Return the part of a worker's name that all its batches share, its mark included; a person's name as it is."""
    process, mark, _batch = holder.partition(WORKER_MARK)
    return process + mark


def _as_holder(name: str) -> str:
    return name + "x" if name.endswith(WORKER_MARK) else name


class AgeFilter(ClaimFilter):
    """By how long ago running rows were claimed."""

    title = gettext_lazy("running since")
    parameter_name = "claim_age"

    ages = {
        "1m": timedelta(minutes=1),
        "10m": timedelta(minutes=10),
        "1h": timedelta(hours=1),
        "1d": timedelta(days=1),
    }

    def lookups(self, request: HttpRequest, model_admin: object) -> Choices:
        more = _("over %(time)s")
        return [(key, more % {"time": format_duration(age)}) for key, age in self.ages.items()]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        age = self.ages.get(self.value() or "")
        if age is None:
            return queryset
        since = database_time(queryset.db) - age
        held = self.in_state(queryset, Status.PROCESSING)
        return held.filter(**{f"{self.columns.claimed_at.name}__lte": since})


class ErrorFilter(ClaimFilter):
    """By the class of the error that failed rows ended with."""

    title = gettext_lazy("failed with")
    parameter_name = "claim_error"

    def lookups(self, request: HttpRequest, model_admin: object) -> Choices:
        if self.columns.error_class is None:
            return []
        found = self.found(model_admin, request, Status.FAILED, self.columns.error_class)
        return [(name, name.rpartition(".")[2]) for name in sorted(found - {"", None})][
            :MOST_CHOICES
        ]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        name, field = self.value(), self.columns.error_class
        if not name or "\x00" in name or field is None:
            return queryset
        return self.in_state(queryset, Status.FAILED).filter(**{field.name: name})


FILTERS: tuple[type[ClaimFilter], ...] = (StateFilter, HolderFilter, AgeFilter, ErrorFilter)


def filters_for(model: type[models.Model]) -> Iterable[type[ClaimFilter]]:
    """Yield the filters that make sense for the columns that *model* has."""
    columns = claim_columns(model)
    return [one for one in FILTERS if one is not ErrorFilter or columns.error_class is not None]


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
