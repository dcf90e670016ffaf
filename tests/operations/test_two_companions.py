"""A second and a third piece of work on one table, done at once, and thrown away by a guarded migration."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations import DeleteModel, Migration, RemoveField
from django.db.migrations.state import ProjectState

from django_taskclaim.operations import NotComplete, RequireComplete
from tests.sources.app import apps as tables
from tests.sources.app.models import Page, PageCheck, PageTask
from tests.testapp.models import Ledger
from tests.worker.conftest import Worker, start_worker, wait_until

__all__ = ["start_worker"]

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db(databases=["default", "other"], transaction=True),
]

DONE = {"every_source": True}


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
        RequireComplete("sources.PageTask", **DONE),
        RequireComplete("sources.PageCheck", **DONE),
        DeleteModel("PageTask"),
        DeleteModel("PageCheck"),
        RemoveField("page", "title"),
    ]
    with connection.schema_editor(atomic=migration.atomic) as editor:
        migration.apply(state, editor)


def title_is_there() -> bool:
    with connection.cursor() as cursor:
        table = connection.introspection.get_table_description(cursor, Page._meta.db_table)
    return "title" in {column.name for column in table}


@pytest.mark.usefixtures("tables_come_back")
@pytest.mark.parametrize(
    ("workers", "pages", "kills"),
    [
        pytest.param(2, 400, 1, id="two"),
        pytest.param(4, 4000, 12, id="four", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def test_two_companions_are_drained_at_once_and_then_dropped(
    start_worker: Callable[..., Worker], workers: int, pages: int, kills: int
) -> None:
    """Whoever is killed, and replaced where there are four, each result stands once.

    Nothing is dropped before both companions are complete.
    """
    Page.objects.bulk_create([Page(slug=f"{n:05d}", title="a b c") for n in range(pages)])
    for companion in (PageTask, PageCheck):
        assert companion.objects.populate(Page.objects.all()) == pages

    # One row is in the test's hands until the kills are over, so nothing is complete before, however fast workers are.
    kept = PageTask.objects.claim_batch(1, lease=600)
    words = ("--drain", "--in-process", "--batch-size", "5")

    def start(number: int) -> Worker:
        # On a busy machine a living worker is cut off from leases as short as those of the ones to be killed.
        lease = ("--lease", "1") if number < kills else ()
        return start_worker(*words, *lease, model="sources.PageTask sources.PageCheck")

    crew = [start(number) for number in range(workers)]
    for number in range(kills):
        share = (number + 1) * pages // (kills + 2)
        wait_until(lambda share=share: Ledger.objects.count() > share, what=f"{share} runs")
        with pytest.raises(NotComplete, match=r"sources\.PageTask is not complete"):
            drop_all()
        victim = crew.pop(0)
        victim.signal(signal.SIGKILL)
        victim.wait()
        if workers > 2:
            crew.append(start(workers + number))
    PageTask.objects.release(kept)
    assert {worker.wait(300) for worker in crew} == {0}

    for companion in (PageTask, PageCheck):
        assert companion.objects.progress().complete == pages
    assert set(Page.objects.values_list("words", "visits")) == {(3, 1)}
    assert set(PageCheck.objects.values_list("verdict", flat=True)) == {"good"}

    Page.objects.create(slug="late", title="has come since")
    with pytest.raises(NotComplete, match=r"1 row of sources\.Page has no row there"):
        drop_all()
    assert title_is_there()
    Page.objects.filter(slug="late").delete()
    drop_all()
    there: Any = connection.introspection.table_names()
    assert not {PageTask._meta.db_table, PageCheck._meta.db_table} & set(there)
    assert not title_is_there()
