"""What a project needs for the admin, and what it is told where it has not."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib import admin
from django.contrib.staticfiles import finders
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.test import Client, override_settings
from django.test.utils import isolate_apps
from django.urls import reverse

from django_taskclaim.admin import ClaimAdminMixin
from django_taskclaim.admin.checking import problems
from django_taskclaim.fields import StatusField
from django_taskclaim.models import ClaimMixin
from tests.factories import make
from tests.testapp.models import CompositeKey, Parent, Photo, PrefixedOwnStatus, UuidKey


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


def edited(model: Any, *names: str) -> Any:
    """Return the admin of a model whose list edits some columns."""

    class Edited(ClaimAdminMixin, admin.ModelAdmin):
        list_display = ["pk", *names]
        list_editable = names

    return Edited(model, admin.AdminSite())


def told(model_admin: Any) -> Any:
    """Return what is said of the edited claim columns, where Django may say something, too, of some of them."""
    (found,) = [one for one in model_admin.check() if one.id == "taskclaim.E022"]
    return found


@isolate_apps("tests.testapp")
def test_claim_columns_that_the_user_has_spelled_are_as_read_only_as_others() -> None:
    """Django sees nothing wrong there, and the list would end in an error."""

    class Spelled(ClaimMixin):
        claim_fields = {"status": "state"}
        status = None
        state = StatusField(default="open", db_default="open")

        class Meta:
            app_label = "testapp"

    (found,) = edited(Spelled, "state").check()
    assert (found.id, found.hint[:18]) == ("taskclaim.E022", "list_editable = []")


def test_a_list_that_would_edit_claim_columns_is_refused_with_what_to_write_instead() -> None:
    found = told(edited(Photo, "status", "note", "expires_at"))
    assert "['status', 'note', 'expires_at']" in found.msg
    assert "status and expires_at" in found.msg
    assert found.hint.startswith("list_editable = ['note'];")


def test_columns_of_any_name_are_known_as_ours() -> None:
    found = told(edited(PrefixedOwnStatus, "status", "claim_status"))
    assert "names claim_status," in found.msg


def test_the_users_own_columns_and_a_priority_that_is_declared_again_may_be_edited_in_the_list() -> (
    None
):
    assert edited(UuidKey, "priority", "note").check() == []


@isolate_apps("tests.testapp")
def test_a_model_with_a_status_of_its_own_is_left_to_the_checks_of_models() -> None:
    class OwnStatus(ClaimMixin):
        status = models.CharField(max_length=10)

        class Meta:
            app_label = "testapp"

    assert list(problems(edited(OwnStatus))) == []


@isolate_apps("tests.testapp")
def test_a_model_that_cannot_be_claimed_is_named() -> None:
    class Plain(models.Model):
        class Meta:
            app_label = "testapp"

    (found,) = problems(edited(Plain))
    assert found.msg.startswith("Plain has no claim columns")


@pytest.mark.parametrize("nonsense", ["status", None, 17])
def test_what_is_no_list_of_names_is_left_to_djangos_own_check(nonsense: Any) -> None:
    strange = edited(Photo)
    strange.list_editable = nonsense
    assert "taskclaim.E022" not in {one.id for one in problems(strange)}


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


@pytest.mark.parametrize("sheet", ["claims", "control_room"])
def test_a_theme_without_djangos_colours_leaves_no_part_of_a_page_unseen(sheet: str) -> None:
    """An unknown variable makes a border or a field invisible; Django's own values win where they are."""
    path = finders.find(f"taskclaim/{sheet}.css")
    text, known = Path(path).read_text(), Path(finders.find("taskclaim/theme.css")).read_text()
    assert '@import "theme.css";' in text
    used = set(re.findall(r"var\((--[\w-]+)\)", text))
    ours = set(re.findall(r"(--[\w-]+):", text))
    assert used - ours
    assert used - ours <= set(re.findall(r"(--[\w-]+):", known))
    assert "@layer taskclaim {" in known
