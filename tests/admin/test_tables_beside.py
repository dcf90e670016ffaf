"""The admin of companions and of ranges, whose rows point at rows of another table."""

from typing import Any

import pytest
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import path

from django_taskclaim.admin import ClaimAdminMixin
from tests.admin.room import address, group_of, overview, text_of
from tests.companions.app.models import FarPage, FarTask, Page, PageTask
from tests.querysets.support import execute, table_of
from tests.ranges.conftest import fill
from tests.testapp.models import CompositeRange, IntRange, TextRange
from tests.urls import urlpatterns as project

pytestmark = [
    pytest.mark.once,
    pytest.mark.urls(__name__),
    pytest.mark.django_db(databases=["default", "other"]),
]

site = AdminSite("beside")


class PlainAdmin(ClaimAdminMixin, ModelAdmin):  # type: ignore[type-arg]
    """As the README shows it."""


site.register([PageTask, FarTask, IntRange, TextRange, CompositeRange], PlainAdmin)
site.register(Page, ModelAdmin)
urlpatterns = [*project, path("beside/", site.urls)]


def beside(model: Any, page: str, *args: Any) -> str:
    return address(model, page, *args, site="beside")


def shown(client: Client, url: str) -> str:
    return client.get(url).content.decode()


def two_pages() -> tuple[Page, Page]:
    return Page.objects.create(slug="first"), Page.objects.create(slug="second")


def test_their_admins_pass_the_checks() -> None:
    assert [problem for one in site._registry.values() for problem in one.check()] == []


def test_a_companion_is_made_by_populate_and_keeps_its_source(boss: Client) -> None:
    two_pages()
    assert boss.get(beside(PageTask, "add")).status_code == 403
    PageTask.objects.populate(Page.objects.filter(pk="first"))
    url = beside(PageTask, "change", PageTask.objects.get().pk)
    page = shown(boss, url)
    assert 'name="source"' not in page
    assert beside(Page, "change", "first") in page
    assert boss.post(url, {"source": "second"}).status_code == 302
    assert PageTask.objects.get().source_id == "first"


def test_failed_companions_are_named_by_their_sources(boss: Client) -> None:
    two_pages()
    PageTask.objects.populate(Page.objects.filter(pk="first"))
    (row,) = PageTask.objects.claim_batch(1, durable=False)
    row.claim.fail("no title", retry=False)
    assert f"{row.pk} (source first)" in text_of(
        boss.get(overview("sources.pagetask", site="beside"))
    )
    answer: Any = boss.post(overview("sources.pagetask", "export", site="beside"))
    lines = answer.content.decode("utf-8-sig").splitlines()
    assert lines[0].startswith("key,source,error,")
    assert lines[1].startswith(f"{row.pk},first,")
    Page.objects.filter(pk="first").delete()
    page = text_of(boss.get(beside(PageTask, "change", row.pk)))
    assert "Source key first" in page


def test_a_companion_with_a_copied_key_shows_its_source(boss: Client) -> None:
    far = FarPage.objects.using("other").create(title="far away")
    FarTask.objects.populate(FarPage.objects.all())
    assert str(far) in shown(boss, beside(FarTask, "change", FarTask.objects.get().pk))


@pytest.mark.parametrize("model", [IntRange, TextRange, CompositeRange])
def test_ranges_are_made_by_their_plan_only_and_shown_in_words(boss: Client, model: Any) -> None:
    assert boss.get(beside(model, "add")).status_code == 403
    fill(model, 20)
    model.objects.plan(chunk_size=10)
    last = model.objects.order_by("position").last()
    execute(f"UPDATE {table_of(model)} SET checkpoint = lower, rows_done = 7 WHERE id = {last.pk}")
    page = shown(boss, beside(model, "change", quote(last.pk)))
    assert "Range of keys" in page
    assert "7 of about 10" in page
    for name in ("lower", "upper", "checkpoint", "rows_done", "position"):
        assert f'name="{name}"' not in page


def test_ranges_are_not_deleted_where_their_rows_would_not_be_planned_again(boss: Client) -> None:
    fill(IntRange, 20)
    IntRange.objects.plan(chunk_size=10)
    IntRange.objects.fail_rows("no")
    room = overview("testapp.intrange", site="beside")
    delete = f"{room}delete/?group={group_of(boss, room)}"
    assert f'href="{delete}"' not in shown(boss, room)
    assert boss.post(delete, {"reason": ""}).status_code == 403
    assert IntRange.objects.count() == 2
