"""``ClaimAdminMixin``: the user's ModelAdmin learns to show claims and to act on them."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.text import capfirst

from django_taskclaim.admin import fieldsets
from django_taskclaim.admin.actions import (
    address,
    admin_action,
    alias_of,
    list_buttons,
    model_buttons,
    row_buttons,
    urls_of,
)
from django_taskclaim.admin.checking import problems
from django_taskclaim.admin.confirming import Crumb, describe_pause
from django_taskclaim.admin.control_room.views import Page
from django_taskclaim.admin.control_room.views import urls_of as control_urls
from django_taskclaim.admin.counting import BoundedPaginator
from django_taskclaim.admin.display import ClaimDisplay
from django_taskclaim.admin.filters import filters_for, order_of
from django_taskclaim.admin.permissions import OperatePermission
from django_taskclaim.admin.rows import Look, facts_of, look_at, look_of
from django_taskclaim.control.actions import ROW_ACTIONS
from django_taskclaim.control.reading import is_kept
from django_taskclaim.switch import stops_of

if TYPE_CHECKING:

    class ModelAdmin(admin.ModelAdmin[Any]):
        """Django's, which takes no parameter while the program runs."""

    class ActionsModelAdmin(ModelAdmin):
        """That of django-admin-actions, which comes without types."""

else:
    ModelAdmin = admin.ModelAdmin
    try:
        from admin_actions.admin import ActionsModelAdmin
    except ImportError as error:
        raise ImproperlyConfigured(
            "ClaimAdminMixin needs the package django-admin-actions: pip install 'django-taskclaim[admin]',"
            " and add 'admin_actions' to INSTALLED_APPS, before 'django.contrib.admin'."
        ) from error


class _Tuples(ModelAdmin):
    """Lets django-admin-actions add its column to a ``list_display`` that is a list."""

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        return tuple(super().get_list_display(request))


class ClaimAdminMixin(ClaimDisplay, OperatePermission, ActionsModelAdmin, _Tuples):
    """For the ModelAdmin of a claimable model, named before any base of your own.

        @admin.register(Photo)
        class PhotoAdmin(ClaimAdminMixin, admin.ModelAdmin):
            list_display = ["url", "width"]

    The claim columns are read-only and shown as people read them, with filters, actions, and buttons that ask first.
    """

    #: The control room of the model hangs below its list, see ``get_urls``.
    has_control_page = True

    #: A second count of the whole table, for "100 results (5,000,000 total)", costs more than it tells.
    show_full_result_count = False

    class Media:
        css = {"all": ["taskclaim/claims.css"]}

    def __init__(self, model: Any, admin_site: Any) -> None:
        super().__init__(model, admin_site)
        if self.actions is not None:
            own = list(self.actions)
            self.actions = [*(name for name in CLAIM_ACTIONS if name not in own), *own]
        typed = fieldsets.link_to_type(self)
        self.raw_id_fields = (*self.raw_id_fields, *typed)  # type: ignore[misc]

    def check(self, **kwargs: object) -> Any:
        return [*super().check(**kwargs), *problems(self)]

    # Who may

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may make a row by a form; nobody may where only ``plan()`` or ``populate()`` can."""
        return fieldsets.made_by_hand(self.model) and super().has_add_permission(request)

    # The list

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        shown = fieldsets.in_list(self.model, super().get_list_display(request))
        if not self.has_operate_permission(request):
            return shown
        return (*shown, "actions_holder")

    def get_list_filter(self, request: HttpRequest) -> Any:
        own = list(super().get_list_filter(request))
        return [*own, *(one for one in filters_for(self.model) if one not in own)]

    def get_ordering(self, request: HttpRequest) -> Any:
        """Where the list is filtered by state, and nobody asks for an order, take one that an index has.

        Else a database that walks along the keys may read all of a large table to find the first hundred.
        """
        asked = super().get_ordering(request) or self.opts.ordering
        return asked or order_of(self.model, request.GET, self.model._default_manager.db)

    def get_paginator(self, request: HttpRequest, queryset: Any, *args: Any, **kwargs: Any) -> Any:
        if self.paginator is not Paginator:
            return super().get_paginator(request, queryset, *args, **kwargs)
        return BoundedPaginator(queryset, *args, **kwargs)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changes = super().get_changelist_instance(request)
        look_at(changes.result_list, Look(alias_of(changes.queryset), request))
        return changes

    @admin.display(description="")
    def actions_holder(self, instance: Any) -> str:
        """Return the buttons of one row of the list; none where nobody knows who looks."""
        request = look_of(instance).request
        if request is None:
            return ""
        buttons = [
            *row_buttons(self, request, instance, on_page=False),
            *fieldsets.package_buttons(self, instance),
        ]
        context = {"instance": instance, "actions_row": buttons}
        return render_to_string("admin/change_list_item_object_tools.html", context)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        response = super().changelist_view(request, extra_context)
        context = response.context_data if isinstance(response, TemplateResponse) else None
        if context is not None and "cl" in context:
            pauses = stops_of(self.model, using=alias_of(context["cl"].queryset)).pauses
            context["actions_list"] = [
                *context.get("actions_list", ()),
                *list_buttons(self, request),
                *model_buttons(self, request, pauses),
            ]
            text = capfirst("; ".join(map(describe_pause, pauses)))
            context["subtitle"] = context.get("subtitle") or text or None
        return response

    # The change page

    def get_readonly_fields(self, request: HttpRequest, obj: object = None) -> list[Any]:
        own = list(super().get_readonly_fields(request, obj))
        ours = fieldsets.read_only(self.model, self, on_page=obj is not None)
        return [*own, *(name for name in ours if name not in own)]

    def get_fields(self, request: HttpRequest, obj: object = None) -> Any:
        fields = super().get_fields(request, obj)
        if self.fields:
            return fields
        return fieldsets.without_ours(self.model, fields)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        sets = list(super().get_fieldsets(request, obj))
        if obj is None:
            return sets
        if fieldsets.without_source(obj):
            sets = fieldsets.naming_lost_source(sets)
        facts, nothing_of = facts_of(obj), set()
        if not (facts.error_class or facts.last_error):
            nothing_of.add("claim_error_in_full")
        if not is_kept(self.model, look_of(obj).alias):
            nothing_of.add("claim_timeline")
        return fieldsets.with_claim(self.model, sets, nothing_of)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> object:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            look_at([row], Look(alias_of(self.get_queryset(request)), request))
        return row

    def render_change_form(
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> Any:
        if obj is not None:
            pauses = stops_of(self.model, using=look_of(obj).alias).pauses
            context["actions_list"] = [
                *context.get("actions_list", ()),
                *row_buttons(self, request, obj, on_page=True),
                *model_buttons(self, request, pauses),
            ]
        return super().render_change_form(request, context, add, change, form_url, obj)

    # Addresses

    def get_urls(self) -> list[URLPattern]:
        urls: list[Any] = super().get_urls()
        return [
            *urls_of(self),
            *control_urls(Page(self.model, self.admin_site, self), "control/"),
            *urls,
        ]

    def list_address(self, request: HttpRequest) -> str:
        """Return the address of the list, filtered as it was."""
        kept = request.GET.get("_changelist_filters", request.GET.urlencode())
        return address(self, "changelist") + (f"?{kept}" if kept else "")

    def filters_kept(self, request: HttpRequest) -> str:
        """Return the query by which a page that is left for a button finds back to the list as it is."""
        return "?" + urlencode({"_changelist_filters": request.GET.urlencode()})

    def crumbs(self, request: HttpRequest) -> list[Crumb]:
        """Return the way from the index to the list."""
        app = self.opts.app_config
        site = self.admin_site.name
        return [
            Crumb(str(app.verbose_name), fieldsets.app_address(self.opts.app_label, site)),
            Crumb(capfirst(str(self.opts.verbose_name_plural)), self.list_address(request)),
        ]


CLAIM_ACTIONS = {method.__name__: method for method in map(admin_action, ROW_ACTIONS)}
for _name, _method in CLAIM_ACTIONS.items():
    setattr(ClaimAdminMixin, _name, _method)
