"""``populate()`` gives each source one companion, for every kind of link, and may be repeated at any time."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.db.models.functions import Upper
from django.test.utils import isolate_apps

from django_taskclaim.companions import load_sources
from tests.commands import run
from tests.companions.app.models import (
    Draft,
    DraftTask,
    FarTask,
    Line,
    Page,
    PageCheck,
    PageTask,
    Task,
    TaskAudit,
)
from tests.companions.conftest import make_sources
from tests.querysets.support import at_once, execute

pytestmark = pytest.mark.django_db(databases=["default", "other"])


class Hiding(models.Manager[Any]):
    def get_queryset(self) -> Any:
        return super().get_queryset().none()


def linked(model: Any) -> list[tuple[Any, ...]]:
    names = [field.attname for field in model._meta.get_field("source").local_related_fields]
    return sorted(model.objects.values_list(*names))


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_each_source_gets_one_open_row(companion: Any, chunk_size: int | None) -> None:
    """The next call adds only rows for sources that have none."""
    sources = make_sources(companion, 10)
    some = sources.filter(pk__in=[row.pk for row in sources.order_by("pk")[:3]])
    assert companion.objects.populate(some) == 3
    assert companion.objects.populate(sources, chunk_size=chunk_size) == 7
    assert companion.objects.populate(sources, chunk_size=chunk_size) == 0
    key = companion._meta.get_field("source").related_model._meta.pk_fields
    keys = sorted(sources.values_list(*(field.attname for field in key)))
    assert linked(companion) == keys
    assert companion.objects.progress().open == 10
    companion.objects.filter(pk=companion.objects.order_by("pk").first().pk).delete()
    assert companion.objects.populate(sources, chunk_size=chunk_size) == 1
    assert linked(companion) == keys


def test_a_filter_chooses_sources_and_may_show_one_several_times() -> None:
    make_sources(PageTask, 5)
    made = list(Page.objects.order_by("pk"))
    Line.objects.bulk_create(
        [Line(page=page, number=number, text="x") for page in made[:2] for number in range(3)]
    )
    assert PageTask.objects.populate(Page.objects.filter(line__text="x")) == 2
    assert PageTask.objects.populate(Page.objects.exclude(pk=made[4].pk)) == 2
    assert PageTask.objects.populate(Page.objects.none()) == 0
    assert PageTask.objects.populate(Page.objects) == 1


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
@pytest.mark.parametrize("model", [PageTask, FarTask])
def test_several_at_once_add_each_source_once(model: Any) -> None:
    sources = make_sources(model, 60)

    def populating(chunk_size: int | None) -> Callable[[], int]:
        return lambda: model.objects.populate(sources, chunk_size=chunk_size)

    assert sum(at_once(populating(None), populating(7), populating(None))) == 60
    assert len(linked(model)) == 60


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not connection.features.has_select_for_update, reason="needs two writers")
def test_rows_that_others_add_meanwhile_are_skipped() -> None:
    """Another session adds a row after the look for rows."""
    pages = make_sources(PageTask, 3)
    first = list(pages.order_by("pk")[:1])

    def meanwhile(execute: Any, statement: str, *rest: Any) -> Any:
        if first and "SELECT" in statement and statement.startswith("INSERT"):
            at_once(lambda: PageTask.objects.create(source=first.pop()))
        return execute(statement, *rest)

    with connection.execute_wrapper(meanwhile):
        assert PageTask.objects.populate(pages) == 2
    assert len(linked(PageTask)) == 3


@pytest.mark.django_db(transaction=True)
def test_keys_may_be_sorted_in_another_way_than_their_sources() -> None:
    """As those of a legacy table, whose collation is often not the one of the database."""
    collation = {"sqlite": "NOCASE", "mysql": "utf8mb4_bin", "postgresql": "und-x-icu"}
    is_there = "SELECT 1 FROM pg_collation WHERE collname = 'und-x-icu'"
    if connection.vendor == "postgresql" and not execute(is_there):
        pytest.skip("needs collations of ICU")
    link: Any = PageTask._meta.get_field("source")
    sorted_otherwise: Any = models.CharField(
        max_length=60, unique=True, db_column="source_id", db_collation=collation[connection.vendor]
    )
    sorted_otherwise.set_attributes_from_name("source")
    sorted_otherwise.model = PageTask
    Page.objects.bulk_create([Page(slug=slug) for slug in "aBcD"])
    with connection.schema_editor() as editor:
        editor.alter_field(PageTask, link, sorted_otherwise)
    try:
        for added in (4, 0):
            assert PageTask.objects.populate(Page.objects.all(), chunk_size=2) == added
    finally:
        with connection.schema_editor() as editor:
            editor.alter_field(PageTask, sorted_otherwise, link)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs LISTEN and NOTIFY")
@pytest.mark.parametrize("model", [PageTask, PageCheck])
def test_new_rows_wake_idle_workers(
    model: Any, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    """Those of one INSERT … SELECT, and those that are copied."""
    monkeypatch.setattr("django_taskclaim.db.notify.called_for", {model})
    sources = make_sources(model, 2)
    with django_capture_on_commit_callbacks() as hooks:
        assert model.objects.populate(sources) == 2
    assert len(hooks) == 1


class Stamped(models.CharField):  # type: ignore[type-arg]  # not generic when it runs
    def pre_save(self, model_instance: Any, add: bool) -> str:
        return str(model_instance.source_id)


def test_what_another_constraint_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is no duplicate is never left out silently; values that fields make when saved are no duplicates."""
    with pytest.raises(IntegrityError), transaction.atomic():
        TaskAudit.objects.populate(make_sources(TaskAudit, 2))
    assert TaskAudit.objects.count() == 0
    monkeypatch.setattr(TaskAudit._meta.get_field("only"), "__class__", Stamped)
    assert TaskAudit.objects.populate(make_sources(TaskAudit, 2)) == 2


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_a_source_without_the_key_that_is_linked_gets_no_row(chunk_size: int | None) -> None:
    Draft.objects.bulk_create([Draft(), Draft(code="x"), Draft()])
    assert DraftTask.objects.populate(Draft.objects, chunk_size=chunk_size) == 1
    assert DraftTask.objects.populate(Draft.objects, chunk_size=chunk_size) == 0


@isolate_apps("tests.companions.app")
def test_a_companion_of_two_tables_is_refused() -> None:
    deep: Any = type("Deep", (PageTask,), {"__module__": PageTask.__module__})
    with pytest.raises(TypeError, match="several tables"):
        deep.objects.populate(Page.objects.all())


@pytest.mark.once
@pytest.mark.promise(14)
@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Page.objects.all()[:3],
        lambda: Page.objects.all().union(Page.objects.all()),
        lambda: Page.objects.annotate(n=models.Count("line")),
        lambda: Task.objects.all(),
        lambda: [Page(slug="a")],
        lambda: None,
    ],
)
def test_anything_but_a_filtered_queryset_of_the_source_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"populate\(\) of sources\.PageTask|rows of Page cannot"):
        PageTask.objects.populate(wrong())


@pytest.mark.once
def test_the_command_populates() -> None:
    make_sources(PageTask, 25)
    said = run("claimpopulate", "sources.PageTask", "--filter", "slug__lt=page 00005")
    assert "Added 5 rows to sources.PageTask." in said
    assert "Added 20 rows" in run("claimpopulate", "sources.PageTask")
    assert PageTask.objects.progress().open == 25


def test_a_source_that_its_base_manager_hides_is_not_gone(
    companion: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = make_sources(companion, 3)
    companion.objects.populate(sources)
    hiding = Hiding()
    hiding.model = sources.model
    monkeypatch.setitem(vars(sources.model._meta), "base_manager", hiding)
    assert load_sources(companion.objects.claim_batch(10)) == []


@pytest.mark.skipif(connection.vendor != "mysql", reason="compares texts byte for byte")
def test_a_source_whose_key_is_spelled_otherwise_is_found() -> None:
    PageTask.objects.populate(make_sources(PageTask, 2))
    Page.objects.update(slug=Upper("slug"))
    assert load_sources(PageTask.objects.claim_batch(10)) == []
