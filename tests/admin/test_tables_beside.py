"""The admin of companions and of ranges, whose rows point at rows of another table."""

import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.utils import quote
from django.test import Client, override_settings
from django.urls import path, reverse

from django_taskclaim.admin import ClaimAdminMixin
from django_taskclaim.worker import records
from tests.behaviour.support import execute, table_of
from tests.ranges.conftest import fill
from tests.sources.app.models import FarPage, FarTask, Page, PageCheck, PageTask, Task, TaskAudit
from tests.test_commands import run
from tests.testapp.models import CompositeRange, IntRange, TextRange
from tests.urls import urlpatterns as project

pytestmark = pytest.mark.django_db(databases=["default", "other"])

site = AdminSite("beside")


class PlainAdmin(ClaimAdminMixin, ModelAdmin):  # type: ignore[type-arg]
    """As the README shows it, without a word of its own."""


class PageAdmin(ModelAdmin):  # type: ignore[type-arg]
    search_fields = ["slug"]


class SearchingAdmin(PlainAdmin):
    """Has a way of its own to choose the source."""

    autocomplete_fields = ["source"]


site.register([PageTask, FarTask, TaskAudit, IntRange, TextRange, CompositeRange], PlainAdmin)
site.register(PageCheck, SearchingAdmin)
site.register(Page, PageAdmin)
urlpatterns = [*project, path("beside/", site.urls)]


@pytest.fixture(autouse=True)
def _routes() -> Iterator[None]:
    with override_settings(ROOT_URLCONF=__name__):
        yield


def address(model: Any, page: str, *args: Any) -> str:
    meta = model._meta
    return reverse(f"beside:{meta.app_label}_{meta.model_name}_{page}", args=args)


def read(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, answer
    return answer.content.decode()


def two_pages() -> tuple[Page, Page]:
    return Page.objects.create(slug="first"), Page.objects.create(slug="second")


def test_admins_of_companions_and_ranges_pass_the_checks() -> None:
    found = [problem for one in site._registry.values() for problem in one.check()]
    assert [problem for problem in found if problem.id != "taskclaim.W021"] == []


def test_the_source_of_a_new_companion_is_named_by_its_key_and_not_chosen_among_all(
    boss: Client,
) -> None:
    two_pages()
    url = address(PageTask, "add")
    assert "<option" not in read(boss, url)
    assert boss.post(url, {"source": "second"}).status_code == 302
    assert PageTask.objects.get().source_id == "second"


def test_a_way_of_the_users_own_to_choose_the_source_stays(boss: Client) -> None:
    assert "admin-autocomplete" in read(boss, address(PageCheck, "add"))


def test_a_companion_keeps_its_source(boss: Client) -> None:
    two_pages()
    PageTask.objects.populate(Page.objects.filter(pk="first"))
    (task,) = PageTask.objects.claim_batch(1)
    task.claim.complete()
    url = address(PageTask, "change", task.pk)
    page = read(boss, url)
    assert 'name="source"' not in page
    assert address(Page, "change", "first") in page
    assert boss.post(url, {"source": "second"}).status_code == 302
    assert PageTask.objects.get().source_id == "first"


def test_a_companion_whose_source_is_gone_can_be_looked_at(boss: Client) -> None:
    first, _second = two_pages()
    PageTask.objects.populate(Page.objects.all())
    task = PageTask.objects.get(source_id="first")
    url = address(PageTask, "change", task.pk)
    assert "whose row is gone" not in read(boss, url)
    Page.objects.filter(pk=first.pk).delete()
    page = read(boss, url)
    assert "Source:" in page
    assert "first, whose row is gone" in page


def test_the_users_own_place_for_the_source_tells_that_it_is_gone(boss: Client) -> None:
    """In a line with other fields, too."""
    FarPage.objects.using("other").create(title="far away")
    FarTask.objects.populate(FarPage.objects.all())
    task = FarTask.objects.get()
    FarPage.objects.using("other").all().delete()
    placed = [(None, {"fields": [("source", "title")]})]
    with patch.object(site._registry[FarTask], "fieldsets", placed):
        page = read(boss, address(FarTask, "change", task.pk))
    assert page.count(f"{task.source_number}, whose row is gone") == 1


def test_a_list_names_the_source_of_each_companion(boss: Client) -> None:
    """By its key, whether it is there or not."""
    first, _second = two_pages()
    PageTask.objects.populate(Page.objects.all())
    Page.objects.filter(pk=first.pk).delete()
    told = re.findall(
        r'<td class="field-claim_source">(.*?)</td>', read(boss, address(PageTask, "changelist"))
    )
    assert sorted(told) == ["first", "second"]
    with patch.object(site._registry[PageTask], "list_display", ["pk", "source"]):
        assert "field-claim_source" not in read(boss, address(PageTask, "changelist"))


def test_failed_companions_are_named_by_their_sources_too(
    boss: Client,
) -> None:
    """In the control room, its export, claimstatus and the log; a key that is the source's itself is told once."""
    two_pages()
    for model in (PageTask, PageCheck):
        model.objects.populate(Page.objects.filter(pk="first"))
        (row,) = model.objects.claim_batch(1, durable=False)
        row.claim.fail("no title", retry=False)
        name = f"{row.pk} (source first)" if model is PageTask else "first"
        assert f">{name}</a>" in read(boss, address(model, "control"))
        answer: Any = boss.get(address(model, "control_export"))
        lines = b"".join(answer.streaming_content).decode("utf-8-sig").splitlines()
        assert lines[0].startswith("key,source,error,")
        assert lines[1].startswith(f"{row.pk},first,")
        assert f"failed: {name}\n" in run("claimstatus", model._meta.label)
        assert records.named(row) == f"{model._meta.label} {name}"


def test_claimstatus_names_a_few_failed_companions() -> None:
    Page.objects.bulk_create([Page(slug=f"p{n}") for n in range(5)])
    PageTask.objects.populate(Page.objects.all())
    assert "failed:" not in run("claimstatus", "sources.PageTask")
    PageTask.objects.fail(PageTask.objects.claim_batch(5, durable=False), "no", retry=False)
    (line,) = re.findall("failed: (.*)", run("claimstatus", "sources.PageTask"))
    assert line.count("(source p") == 3
    assert line.endswith(" and 2 more")


def test_a_companion_linked_by_a_copied_key_shows_its_source_and_is_made_by_populate_alone(
    boss: Client,
) -> None:
    far = FarPage.objects.using("other").create(title="far away")
    FarTask.objects.populate(FarPage.objects.all())
    page = read(boss, address(FarTask, "change", FarTask.objects.get().pk))
    assert str(far) in page
    assert boss.get(address(FarTask, "add")).status_code == 403


@pytest.mark.parametrize("model", [IntRange, TextRange, CompositeRange])
def test_ranges_are_made_by_their_plan_alone(boss: Client, model: Any) -> None:
    assert boss.get(address(model, "add")).status_code == 403
    assert address(model, "add") not in read(boss, address(model, "changelist"))


def test_a_range_is_told_as_people_speak(boss: Client) -> None:
    fill(IntRange, 100)
    IntRange.objects.plan(chunk_size=60)
    first, second = IntRange.objects.order_by("position")
    page = read(boss, address(IntRange, "change", first.pk))
    assert "Range of keys" in page
    assert "with the first row" in page
    assert str(first.upper_key) in page
    assert "0 of about 60" in page
    execute(
        f"UPDATE {table_of(IntRange)} SET checkpoint = '{first.upper_key + 5}', rows_done = 1234"
        f" WHERE id = {second.pk}"
    )
    page = read(boss, address(IntRange, "change", second.pk))
    assert f"{first.upper_key + 5}" in page
    assert "1,234 of about 40" in page
    for name in ("lower", "upper", "checkpoint", "rows_done", "position"):
        assert f'name="{name}"' not in page


def test_the_keys_of_a_range_are_text_whatever_they_are(boss: Client) -> None:
    for model in (TextRange, CompositeRange):
        fill(model, 20)
        model.objects.plan(chunk_size=10)
        last = model.objects.order_by("position").last()
        assert "about 10" in read(boss, address(model, "change", quote(last.pk)))
    assert ", ".join(map(str, last.upper_key)) in read(
        boss, address(CompositeRange, "change", last.pk)
    )


def test_a_companion_of_a_claimable_model_keeps_its_source_too(boss: Client) -> None:
    source = Task.objects.create(note="x")
    TaskAudit.objects.populate(Task.objects.all())
    page = read(boss, address(TaskAudit, "change", TaskAudit.objects.get().pk))
    assert 'name="source"' not in page
    assert str(source) in page
