"""Admins of every kind that claimable models may have."""

from typing import Any

from admin_actions.admin import ActionsModelAdmin
from django.contrib import admin
from django.http import HttpRequest, HttpResponse

from django_taskclaim.admin import ClaimAdminMixin
from tests.testapp import models


@admin.register(models.Photo)
class PhotoAdmin(ClaimAdminMixin, admin.ModelAdmin):
    """With a list that is a list, and no word about claims."""

    list_display = ["url", "width"]
    search_fields = ["url"]


@admin.register(models.ClaimOnly)
class ClaimOnlyAdmin(ClaimAdminMixin, admin.ModelAdmin):
    """The least claim columns."""


@admin.register(models.UuidKey)
class UuidKeyAdmin(ClaimAdminMixin, admin.ModelAdmin):
    """Names raw columns."""

    list_display = ("id", "status", "note", "claimed_by")
    list_editable = ("note",)
    fields = ("note", "status", "priority")


@admin.register(models.TextKey)
class TextKeyAdmin(ClaimAdminMixin, admin.ModelAdmin):
    """Keys that are text."""


@admin.register(models.PrefixedOwnStatus)
class PrefixedAdmin(ClaimAdminMixin, admin.ModelAdmin):
    """The claim columns under other names, beside a status and a priority of the user's own."""

    list_display = ("pk", "status", "priority")


@admin.register(models.Child)
class ChildAdmin(ClaimAdminMixin, admin.ModelAdmin):
    """The claim columns in a parent's table."""


@admin.register(models.HiddenRows)
class HiddenRowsAdmin(ClaimAdminMixin, admin.ModelAdmin):
    """Some rows the list never shows, others the user may see but not change."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and (obj is None or obj.note != "fixed")


class HailingAdmin(ActionsModelAdmin):
    """A base that has buttons of its own by django-admin-actions, and two fields on one line."""

    list_display = ["note"]
    actions_list = ("hail_all",)
    actions_row = actions_detail = ("hail_row",)

    def get_list_display(self, request: HttpRequest) -> Any:
        return [*super().get_list_display(request), "id"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [["note", "status"]]

    def hail_all(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("all hailed")

    def hail_row(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(f"{pk} hailed")


@admin.register(models.Parent)
class ParentAdmin(ClaimAdminMixin, HailingAdmin):
    """Our buttons beside those of the user's own, whose names are not taken."""

    row_buttons = list_buttons = model_buttons = "of the user's own"
