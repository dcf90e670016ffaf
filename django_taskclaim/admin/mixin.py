"""``ClaimAdminMixin``: the user's ModelAdmin learns to show claims and to act on them.

The filters of its list ask only what the claim index can answer; the price of a count does not grow with the table.
"""

from collections import Counter
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ALL_VAR, ORDER_VAR, PAGE_VAR
from django.core.exceptions import ImproperlyConfigured
from django.core.paginator import Paginator
from django.db import models
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim.admin.actions import LISTED, ClaimActions, claims_of, list_action
from django_taskclaim.admin.control_room.mounting import register
from django_taskclaim.admin.control_room.snapshot import shared
from django_taskclaim.admin.display import (
    EXPIRED,
    STATES,
    WAITING,
    facts_of,
    look_at,
    steps_of,
    summary,
)
from django_taskclaim.columns import LINK, claim_columns, has_ranges, is_companion, source_key_text
from django_taskclaim.control.actions import ROW_ACTIONS
from django_taskclaim.monitoring.counts import count_rows
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.querysets.scope import in_state, is_expired, is_waiting
from django_taskclaim.states import Status
from django_taskclaim.templatetags.taskclaim import number, short, short_name

#: The parameters of our filters, and those of Django's that leave all rows in the list.
OURS, NARROWS_NOTHING = ("claim_state", "claim_error"), (ORDER_VAR, PAGE_VAR, ALL_VAR, "_facets")

#: So many failed rows are looked through for choices to offer.
LOOKED_THROUGH = 5_000

#: More choices than that help nobody.
MOST_CHOICES = 30

Choices = list[tuple[str, str]]
Rows = models.QuerySet[Any]

if TYPE_CHECKING:

    class ActionsModelAdmin(admin.ModelAdmin[Any]):
        """That of django-admin-actions, which comes without types."""

        actions_row: Any

        def actions_holder(self, instance: Any) -> str: ...

else:
    try:
        from admin_actions.admin import ActionsModelAdmin
    except ImportError:
        # Django imports this module in every project that has an admin.
        ActionsModelAdmin = admin.ModelAdmin


# What the list can be narrowed to, and how far it is counted


class ClaimFilter(SimpleListFilter):
    """A filter by the claim columns; the list draws it above its rows. One of them at most is in force."""

    def has_output(self) -> bool:
        # Django ignores a filter without choices and would list all rows.
        return super().has_output() or self.value() is not None

    def choices(self, changelist: Any) -> Any:
        """Yield the choices without Django's facets, which would be one more count of the whole table."""
        shown = self.value()
        for value, display in [(None, _("All")), *self.lookup_choices]:
            query = changelist.get_query_string({self.parameter_name: value}, [*OURS])
            yield {"selected": value == shown, "query_string": query, "display": display}


class StateFilter(ClaimFilter):
    """By state, with waiting and expired rows told apart from the others."""

    title = gettext_lazy("state")
    parameter_name = OURS[0]

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        rows, counts = model_admin.get_queryset(request), dict[str, str]()
        columns = claim_columns(rows.model)
        shows_all = {*OURS, *NARROWS_NOTHING}.issuperset(request.GET)
        # Other rows would be counted to their end, or are not all that there are.
        if columns.owned_by(rows.model) and not rows.query.where and shows_all:
            place, read = ("counts", rows.model, rows.db), partial(count_rows, rows.model, rows.db)
            known = shared(request, place, read)
            for status in Status:
                n = getattr(known, status)
                counts[status] = f"≈ {short(n)}" if status in known.estimated else number(n)
        kinds = [kind for kind in STATES if kind != WAITING or columns.not_before]
        shape = '<span class="taskclaim-is-{}">{}</span> <b>{}</b>'
        return [(one, format_html(shape, one, STATES[one], counts.get(one, ""))) for one in kinds]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        """Return the rows that match; all where no state is asked for."""
        value, columns = self.value() or "", claim_columns(queryset.model)
        if value == WAITING:
            return queryset.filter(in_state(columns, Status.OPEN), is_waiting(columns))
        if value == EXPIRED:
            return queryset.filter(is_expired(columns))
        return queryset.filter(in_state(columns, Status(value))) if value in Status else queryset


class ErrorFilter(ClaimFilter):
    """By the class of the error that failed rows ended with; the choices are found among the first of them."""

    title = gettext_lazy("failed with")
    parameter_name = OURS[1]

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        columns = claim_columns(model_admin.model)
        if columns.error_class is None:
            return []
        rows = model_admin.get_queryset(request)
        failed = rows.filter(in_state(columns, Status.FAILED)).order_by()
        names = failed.values_list(columns.error_class.name, flat=True)[:LOOKED_THROUGH]
        sees_all, place = not rows.query.where, ("errors", rows.model, rows.db)
        counts = shared(request, place, partial(Counter, names)) if sees_all else Counter(names)
        most = counts.most_common(MOST_CHOICES)
        return [(name, short_name(name)) for name in sorted(name for name, _n in most if name)]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        """Return the rows that match; all where nothing, or nothing that can be, is asked for."""
        value, columns = self.value() or "", claim_columns(queryset.model)
        if columns.error_class is None or not value or "\x00" in value:
            return queryset
        return queryset.filter(
            in_state(columns, Status.FAILED), **{columns.error_class.name: value}
        )


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


# The user's ModelAdmin


class ClaimAdminMixin(ClaimActions, ActionsModelAdmin):
    """For the ModelAdmin of a claimable model, named before any base of your own.

        @admin.register(Photo)
        class PhotoAdmin(ClaimAdminMixin, admin.ModelAdmin):
            list_display = ["url", "width"]

    The claim columns are read-only and shown as people read them, with filters, actions, and buttons that ask first.
    """

    #: A second count of the whole table, for "100 results (5,000,000 total)", costs more than it tells.
    show_full_result_count = False
    paginator = BoundedPaginator

    class Media:
        css = {"all": ["taskclaim/claims.css"]}

    def __init__(self, model: Any, admin_site: Any) -> None:
        """Raise TypeError for a model that is not claimable, ImproperlyConfigured without django-admin-actions."""
        columns = claim_columns(model)
        ours = [list_action(one) for one in ROW_ACTIONS if columns.not_before or not one.waiting]
        if not apps.is_installed("admin_actions"):
            raise ImproperlyConfigured(
                "ClaimAdminMixin needs the package that draws its buttons: pip install django-admin-actions, and"
                " add 'admin_actions' to INSTALLED_APPS."
            )
        super().__init__(model, admin_site)
        # django-admin-actions adds its column to a tuple.
        self.list_display = tuple(self.list_display)
        # Buttons of the list lead there.
        register(admin_site)
        if self.actions is not None:
            self.actions = [*ours, *self.actions]

    # Who may

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may make a row by a form; nobody may where ``plan()`` or ``populate()`` makes them."""
        is_made = is_companion(self.model) or has_ranges(self.model)
        return not is_made and super().has_add_permission(request)

    # The list

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        """Return the user's columns, with that of the claim beside the first unless they name it."""
        shown = list(dict.fromkeys([*super().get_list_display(request), "actions_holder"]))
        if "claim_summary" not in shown:
            shown.insert(1, "claim_summary")
        return tuple(shown)

    def get_list_filter(self, request: HttpRequest) -> Any:
        return [*super().get_list_filter(request), StateFilter, ErrorFilter]

    def get_ordering(self, request: HttpRequest) -> Any:
        """Where the list is filtered by state, and nobody asks for an order, take one that an index has.

        Else a database that walks along the keys may read all of a large table to find the first hundred.
        """
        asked = super().get_ordering(request) or self.opts.ordering
        if asked or request.GET.keys().isdisjoint(OURS):
            return asked
        columns = claim_columns(self.model)
        if request.GET.get(StateFilter.parameter_name) == Status.COMPLETE:
            # PostgreSQL's claim index leaves them out. By key those at the front were claimed first.
            return [field.attname for field in columns.key]
        return columns.order

    @admin.display(description=gettext_lazy("claim"))
    def claim_summary(self, obj: models.Model) -> str:
        """State, error, holder, tries and time in one column."""
        return summary(facts_of(obj))

    @admin.display(description=gettext_lazy("buttons"), empty_value="")
    def actions_holder(self, instance: Any) -> str:
        """Return the buttons of one row of the list, and those that the user has declared."""
        template, buttons = "admin/change_list_item_object_tools.html", facts_of(instance).buttons
        ours = render_to_string(template, {"actions_row": buttons}) if buttons else SafeString()
        # Without buttons of the user, that template would be drawn for each row and show nothing.
        return ours + (super().actions_holder(instance) if self.actions_row else SafeString())

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        response: Any = super().changelist_view(request, extra_context)
        context = getattr(response, "context_data", None)
        if context is None or "cl" not in context:
            return response
        changes = context["cl"]
        look_at(changes.result_list, database_time(claims_of(changes.queryset).db))
        query = f"?{LISTED}=1&{self.get_preserved_filters(request)}"
        for row in changes.result_list:
            # Nothing is made for a complete row; its page has what asks for a tick.
            if (facts := facts_of(row)).status != Status.COMPLETE:
                facts.buttons = list(islice(self.claim_row_buttons(request, row, query=query), 1))
        ours = [spec for spec in changes.filter_specs if isinstance(spec, ClaimFilter)]
        changes.filter_specs = [spec for spec in changes.filter_specs if spec not in ours]
        changes.has_filters = bool(changes.filter_specs)
        if words := getattr(changes.paginator, "words", ""):
            # Below the list and beside "Select all". A number of results would have to be exact.
            changes.result_count = changes.full_result_count = words
            context["selection_note_all"] = _("All %(number)s selected") % {"number": words}
        context["claim_filters"] = [(spec.title, list(spec.choices(changes))) for spec in ours]
        context["claim_menu"] = list(self.claim_list_buttons(request, query))
        return extended(response, "change_list.html")

    # The change page

    def get_readonly_fields(self, request: HttpRequest, obj: object = None) -> list[Any]:
        """Return what no form may write: the claim columns, and a companion's source."""
        own = list(super().get_readonly_fields(request, obj))
        # With another source, a row would be done that nobody did.
        link = [LINK] if is_companion(self.model) else []
        return list(dict.fromkeys([*own, *raw_names(self.model), *link]))

    def get_fields(self, request: HttpRequest, obj: object = None) -> Any:
        fields, ours = super().get_fields(request, obj), raw_names(self.model)
        return fields if self.fields else [name for name in fields if name not in ours]

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **options: Any
    ) -> Any:
        response: Any = super().render_change_form(request, context, *args, **options)
        row, kept = context.get("original"), self.get_preserved_filters(request)
        if row is None:
            return response
        response.context_data |= {
            "claim": facts_of(row),
            "claim_summary": summary(facts_of(row), all_of_it=True),
            "claim_buttons": list(self.claim_row_buttons(request, row, query=kept and f"?{kept}")),
            "claim_steps": list(steps_of(row, claims_of(self.get_queryset(request)).db)),
            "claim_source": source_key_text(row),
            "claim_range": row if has_ranges(self.model) else None,
        }
        return extended(response, "change_form.html")


def extended(response: TemplateResponse, name: str) -> TemplateResponse:
    """Return *response* with our template, which extends the one that it would have been drawn with."""
    context: Any = response.context_data
    context["claim_base"] = response.resolve_template(response.template_name)
    response.template_name = f"admin/taskclaim/{name}"
    return response


def raw_names(model: type[models.Model]) -> list[str]:
    """Return the claim columns of *model* that verbs alone write."""
    return [field.name for field in claim_columns(model).guarded]
