"""What a project needs for the admin, and what it is told where it has not."""

import importlib
import sys
from typing import Any

import pytest
from django.conf import settings
from django.contrib import admin
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings
from django.urls import reverse

from django_taskclaim.admin import ClaimAdminMixin
from django_taskclaim.admin.checking import problems
from tests.factories import make
from tests.testapp.models import CompositeKey, Parent, Photo


def the_admin() -> Any:
    return admin.site._registry[Photo]


@pytest.mark.django_db(databases="__all__")  # some fields ask the database what it supports
def test_nothing_is_wrong_here() -> None:
    assert problems(the_admin()) == []
    assert [one for one in run_checks() if "admin" in str(one.id)] == []


def test_without_the_app_that_draws_the_buttons_the_project_is_told() -> None:
    apps = [name for name in settings.INSTALLED_APPS if name != "admin_actions"]
    with override_settings(INSTALLED_APPS=apps):
        (found,) = problems(the_admin())
    assert found.id == "taskclaim.E021"
    assert "before 'django.contrib.admin'" in str(found.hint)


def test_behind_the_admin_it_draws_nothing_and_the_project_is_told() -> None:
    apps = [name for name in settings.INSTALLED_APPS if name != "admin_actions"]
    with override_settings(INSTALLED_APPS=[*apps, "admin_actions"]):
        (found,) = problems(the_admin())
    assert found.id == "taskclaim.W021"


def test_without_the_extra_a_project_starts_and_only_the_mixin_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Django imports ``django_taskclaim.admin`` in every project that has an admin."""
    import django_taskclaim.admin as package

    monkeypatch.setitem(sys.modules, "admin_actions", None)
    monkeypatch.setitem(sys.modules, "admin_actions.admin", None)
    monkeypatch.delitem(sys.modules, "django_taskclaim.admin.mixin")
    monkeypatch.delattr(package, "mixin")
    importlib.reload(package)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-taskclaim\[admin\]'"):
        _ = package.ClaimAdminMixin


def test_a_composite_key_has_no_admin_in_django() -> None:
    class CompositeAdmin(ClaimAdminMixin, admin.ModelAdmin):
        pass

    with pytest.raises(ImproperlyConfigured, match="composite primary key"):
        admin.AdminSite().register(CompositeKey, CompositeAdmin)


@pytest.mark.django_db
def test_buttons_of_the_users_own_stand_beside_ours(boss: Client) -> None:
    (row,) = make(Parent)
    text = boss.get(reverse("admin:testapp_parent_changelist")).content.decode()
    page = boss.get(reverse("admin:testapp_parent_change", args=[row.pk])).content.decode()
    theirs = reverse("admin:hail_row", args=[row.pk])
    ours = reverse("admin:testapp_parent_claim_pause_row", args=[row.pk])
    for shown in (text, page):
        assert f'href="{theirs}"' in shown
        assert f'href="{ours}' in shown
    assert f'href="{reverse("admin:hail_all")}"' in text
    assert boss.get(theirs).content.decode() == f"{row.pk} hailed"


def test_every_base_in_any_order_makes_an_admin() -> None:
    class Base(admin.ModelAdmin):
        list_display = ["__str__"]

    class First(ClaimAdminMixin, Base):
        pass

    class Last(Base, ClaimAdminMixin):
        pass

    for kind in (First, Last):
        assert kind(Photo, admin.AdminSite()).check() == []
