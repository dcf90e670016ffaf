"""Real workers over companions, and the migration that drops companions when all is done."""

import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations import DeleteModel, Migration, RemoveField
from django.db.migrations.state import ProjectState

from django_taskclaim.operations import NotComplete, RequireComplete
from django_taskclaim.testing import run_due
from tests.companions.app import apps as tables
from tests.companions.app.models import FarPage, FarTask, Line, LineTask, Page, PageCheck, PageTask
from tests.companions.conftest import make_sources
from tests.querysets.support import held_open
from tests.testapp.models import Ledger
from tests.worker.conftest import Worker, start_worker, wait_until

__all__ = ["start_worker"]

pytestmark = pytest.mark.django_db(databases=["default", "other"], transaction=True)


@pytest.mark.promise(3, 7)
def test_every_kind_of_companion_is_drained_after_a_kill(
    start_worker: Callable[..., Worker],
) -> None:
    """Two companions work on one table at once; a source may be gone, go while it is worked on, or be locked.

    Results stand on the sources once each, because the fenced completion writes them.
    """
    Page.objects.bulk_create([Page(slug=f"{i:04d}", title="a b c") for i in range(40)])
    Page.objects.create(slug="vanish", title="vanish")
    make_sources(LineTask, 20)
    make_sources(FarTask, 20)
    for model in (PageTask, PageCheck, LineTask, FarTask):
        model.objects.populate(model._meta.get_field("source").related_model.objects.all())
    Line.objects.filter(number=0).delete()
    FarPage.objects.using("other").filter(title="0").delete()

    def start(*words: str) -> Worker:
        models = "sources.LineTask sources.FarTask sources.PageTask sources.PageCheck"
        return start_worker("--in-process", "--batch-size", "15", *words, model=models)

    # Only of the one that is killed: a living worker on a busy machine may lose leases as short as this.
    killed = start("--lease", "1")
    wait_until(lambda: Ledger.objects.count() > 5)
    killed.signal(signal.SIGKILL)
    killed.wait()

    def lock() -> int:
        return Page.objects.filter(slug="0039").update(title="a b c")

    # Where there is one writer, a lock would hold up everything.
    two_writers = connection.features.has_select_for_update
    with held_open(lock) if two_writers else nullcontext():
        drain = start("--drain")
        wait_until(lambda: PageTask.objects.progress().complete >= (39 if two_writers else 0))
    assert drain.wait() == 0

    assert PageTask.objects.progress().complete == 40
    assert set(Page.objects.values_list("words", "visits")) == {(3, 1)}
    assert PageTask.objects.get(source_id="vanish").error_class.endswith("SourceGone")
    good = PageCheck.objects.filter(verdict="good").values_list("source_id", flat=True)
    assert set(Page.objects.values_list("pk", flat=True)) <= set(good)
    assert set(Line.objects.values_list("number", "length")) == {(i, i) for i in range(1, 20)}
    assert LineTask.objects.failed().get().error_class.endswith("SourceGone")
    assert FarTask.objects.progress().complete == 20
    assert FarTask.objects.exclude(title="").count() == 19


@pytest.fixture
def tables_come_back() -> Iterator[None]:
    """What the migration drops is there for the next test."""
    yield
    there = set(connection.introspection.table_names())
    with connection.schema_editor() as editor:
        if Page._meta.db_table in there:
            editor.delete_model(Page)
    tables._made.clear()
    tables.empty_tables("default")


def drop_all() -> None:
    """Run the migration that drops both companions and the column which they have made needless."""
    state = ProjectState.from_apps(apps)
    for model in (Page, PageTask, PageCheck):
        # To the tests they are somebody else's; here they are what migrations made.
        state.models["sources", model._meta.model_name or ""].options["managed"] = True
    migration = Migration("0002_drop", "sources")
    migration.operations = [
        RequireComplete("sources.PageTask", every_source=True),
        RequireComplete("sources.PageCheck", every_source=True),
        DeleteModel("PageTask"),
        DeleteModel("PageCheck"),
        RemoveField("page", "title"),
    ]
    with connection.schema_editor(atomic=migration.atomic) as editor:
        migration.apply(state, editor)


@pytest.mark.usefixtures("tables_come_back")
def test_companions_are_dropped_by_a_migration_once_all_is_done() -> None:
    """Nothing is dropped before both are complete, and every source has its row."""
    make_sources(PageTask, 5)
    for companion in (PageTask, PageCheck):
        with pytest.raises(NotComplete, match=rf"sources\.{companion.__name__}|sources\.Page"):
            drop_all()
        companion.objects.populate(Page.objects.all())
        run_due(companion)
    Page.objects.create(slug="late", title="has come since")
    with pytest.raises(NotComplete, match=r"1 row of sources\.Page"):
        drop_all()
    Page.objects.filter(slug="late").delete()
    drop_all()
    there: Any = connection.introspection.table_names()
    assert not {PageTask._meta.db_table, PageCheck._meta.db_table} & set(there)
    with connection.cursor() as cursor:
        table = connection.introspection.get_table_description(cursor, Page._meta.db_table)
    assert "title" not in {column.name for column in table}
