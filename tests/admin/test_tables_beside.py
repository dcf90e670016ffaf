"""The admin of companions and of ranges, whose rows point at rows of another table."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.utils import quote
from django.test import Client, override_settings
from django.urls import path

from django_taskclaim.admin import ClaimAdminMixin
from tests.admin.room import address, text_of
from tests.companions.app.models import FarPage, FarTask, Page, PageCheck, PageTask, Task, TaskAudit
from tests.querysets.support import execute, table_of
from tests.ranges.conftest import fill
from tests.testapp.models import CompositeRange, IntRange, TextRange
from tests.urls import urlpatterns as project

pytestmark = [pytest.mark.once, pytest.mark.django_db(databases=["default", "other"])]

site = AdminSite("beside")


class PlainAdmin(ClaimAdminMixin, ModelAdmin):  # type: ignore[type-arg]
    """As the README shows it."""


class PageAdmin(ModelAdmin):  # type: ignore[type-arg]
    search_fields = ["slug"]


class SearchingAdmin(PlainAdmin):
    """Has its own way to choose the source."""

    autocomplete_fields = ["source"]


site.register([PageTask, FarTask, TaskAudit, IntRange, TextRange, CompositeRange], PlainAdmin)
site.register(PageCheck, SearchingAdmin)
site.register(Page, PageAdmin)
urlpatterns = [*project, path("beside/", site.urls)]


@pytest.fixture(autouse=True)
def _routes() -> Iterator[None]:
    with override_settings(ROOT_URLCONF=__name__):
        yield


def beside(model: Any, page: str, *args: Any) -> str:
    return address(model, page, *args, site="beside")


def read(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, answer
    return answer.content.decode()


def two_pages() -> tuple[Page, Page]:
    return Page.objects.create(slug="first"), Page.objects.create(slug="second")


def test_their_admins_pass_the_checks() -> None:
    found = [problem for one in site._registry.values() for problem in one.check()]
    assert [problem for problem in found if problem.id != "taskclaim.W021"] == []


def test_the_source_of_a_new_companion_is_named_by_its_key(boss: Client) -> None:
    """A list of all sources would not end; the user's own way to choose stays."""
    two_pages()
    url = beside(PageTask, "add")
    assert "<option" not in read(boss, url)
    assert boss.post(url, {"source": "second"}).status_code == 302
    assert PageTask.objects.get().source_id == "second"
    assert "admin-autocomplete" in read(boss, beside(PageCheck, "add"))


def test_a_companion_keeps_its_source(boss: Client) -> None:
    two_pages()
    PageTask.objects.populate(Page.objects.filter(pk="first"))
    url = beside(PageTask, "change", PageTask.objects.get().pk)
    page = read(boss, url)
    assert 'name="source"' not in page
    assert beside(Page, "change", "first") in page
    assert boss.post(url, {"source": "second"}).status_code == 302
    assert PageTask.objects.get().source_id == "first"
    source = Task.objects.create(note="x")
    TaskAudit.objects.populate(Task.objects.all())
    assert str(source) in read(boss, beside(TaskAudit, "change", TaskAudit.objects.get().pk))


def test_a_companion_whose_source_is_gone_can_be_looked_at(boss: Client) -> None:
    first, _second = two_pages()
    PageTask.objects.populate(Page.objects.all())
    task = PageTask.objects.get(source_id="first")
    Page.objects.filter(pk=first.pk).delete()
    assert "first, whose row is gone" in read(boss, beside(PageTask, "change", task.pk))
    page = text_of(boss.get(beside(PageTask, "changelist")))
    assert "first" in page
    assert "second" in page


def test_failed_companions_are_named_by_their_sources(boss: Client) -> None:
    two_pages()
    PageTask.objects.populate(Page.objects.filter(pk="first"))
    (row,) = PageTask.objects.claim_batch(1, durable=False)
    row.claim.fail("no title", retry=False)
    assert f"{row.pk} (source first)" in text_of(boss.get(beside(PageTask, "control")))
    answer: Any = boss.get(beside(PageTask, "control_export"))
    lines = b"".join(answer.streaming_content).decode("utf-8-sig").splitlines()
    assert lines[0].startswith("key,source,error,")
    assert lines[1].startswith(f"{row.pk},first,")


def test_a_companion_with_a_copied_key_shows_its_source_and_is_made_by_populate_only(
    boss: Client,
) -> None:
    far = FarPage.objects.using("other").create(title="far away")
    FarTask.objects.populate(FarPage.objects.all())
    assert str(far) in read(boss, beside(FarTask, "change", FarTask.objects.get().pk))
    assert boss.get(beside(FarTask, "add")).status_code == 403


@pytest.mark.parametrize("model", [IntRange, TextRange, CompositeRange])
def test_ranges_are_made_by_their_plan_only_and_shown_in_words(boss: Client, model: Any) -> None:
    assert boss.get(beside(model, "add")).status_code == 403
    fill(model, 20)
    model.objects.plan(chunk_size=10)
    last = model.objects.order_by("position").last()
    page = read(boss, beside(model, "change", quote(last.pk)))
    assert "Range of keys" in page
    assert "about 10" in page
    for name in ("lower", "upper", "checkpoint", "rows_done", "position"):
        assert f'name="{name}"' not in page


def test_a_range_shows_how_far_it_has_got(boss: Client) -> None:
    fill(IntRange, 20)
    IntRange.objects.plan(chunk_size=10)
    last = IntRange.objects.order_by("position").last()
    assert last is not None
    execute(
        f"UPDATE {table_of(IntRange)} SET checkpoint = '17', rows_done = 7 WHERE id = {last.pk}"
    )
    assert "7 of about 10" in text_of(boss.get(beside(IntRange, "change", last.pk)))
