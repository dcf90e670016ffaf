"""What a project needs for the admin, and what a check says where it is missing."""

import importlib
import sys
from typing import Any

import pytest
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings
from django.urls import reverse

import django_taskclaim.admin as package
from django_taskclaim.admin import ClaimAdminMixin
from tests.admin.room import act_on, address
from tests.factories import make
from tests.testapp.models import Parent, Photo, UuidKey

pytestmark = [pytest.mark.once, pytest.mark.promise(14)]


def ids_of(model_admin: Any) -> list[str]:
    return [str(found.id) for found in model_admin.check()]


def listing(model: Any, *names: str) -> Any:
    """Return the admin of a model whose list edits some columns."""

    class Listing(ClaimAdminMixin, admin.ModelAdmin):
        list_display = ["pk", *names]
        list_editable = names

    return Listing(model, admin.AdminSite())


@override_settings(
    INSTALLED_APPS=[one for one in settings.INSTALLED_APPS if one != "admin_actions"]
)
def test_without_the_extra_a_project_starts_and_only_the_mixin_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Django imports ``django_taskclaim.admin`` in every project that has an admin."""
    with pytest.raises(ImproperlyConfigured, match="add 'admin_actions' to INSTALLED_APPS"):
        listing(Photo)
    monkeypatch.setitem(sys.modules, "admin_actions.admin", None)
    monkeypatch.delitem(sys.modules, "django_taskclaim.admin.mixin")
    monkeypatch.delattr(package, "mixin")
    mixin = importlib.import_module("django_taskclaim.admin.mixin").ClaimAdminMixin
    with pytest.raises(ImproperlyConfigured, match="pip install django-admin-actions"):
        type("PhotoAdmin", (mixin, admin.ModelAdmin), {})(Photo, admin.AdminSite())


def test_a_model_that_is_not_claimable_and_a_list_that_would_edit_claim_columns_are_refused() -> (
    None
):
    with pytest.raises(TypeError, match="User has no claim columns"):
        listing(User)
    assert ids_of(listing(Photo, "status")) == ["admin.E125"]
    assert ids_of(listing(UuidKey, "priority", "note")) == []


@pytest.mark.django_db
def test_buttons_of_the_users_own_stand_beside_ours(boss: Client) -> None:
    (row,) = make(Parent)
    theirs = reverse("admin:hail_row", args=[row.pk])
    assert "id" in boss.get(address(Parent)).context["cl"].list_display
    for page in (address(Parent), address(Parent, "change", row.pk)):
        shown = boss.get(page).content.decode()
        assert f'href="{theirs}"' in shown
        assert f'href="{act_on(Parent, "pause-rows", row)}' in shown
