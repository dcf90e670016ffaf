"""``RequireComplete`` in migrations that are really run: it stops the one that would drop what is still needed."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import ManagementUtility
from django.db import connection
from django.db.migrations import Migration
from django.db.migrations.state import ProjectState
from django.db.models import Q

from django_taskclaim.adoption.operations import NotComplete, RequireComplete
from tests import documents
from tests.adoption.conftest import Project, execute, shape
from tests.companions.app.models import Page, PageTask
from tests.factories import make
from tests.ranges.conftest import fill, work_through
from tests.testapp.models import Child, IntRange, PrefixedOwnStatus

pytestmark = pytest.mark.django_db


@cache
def present() -> ProjectState:
    """Return all models as they are, rendered once, which is what takes time."""
    state = ProjectState.from_apps(apps)
    assert state.apps
    return state


def apply(*operations: Any, state: ProjectState | None = None) -> None:
    """Run a migration with these operations on the tables of the test database."""
    migration = Migration("0001", "testapp")
    migration.operations = list(operations)
    # Not entered: SQLite would have it outside the test's transaction, and nothing here changes a table.
    migration.apply(state or present(), connection.schema_editor(atomic=False))


def why_not(*arguments: Any, **options: Any) -> str:
    """Return the sentence that stops a migration."""
    with pytest.raises(NotComplete) as stopped:
        apply(RequireComplete(*arguments, **options))
    return str(stopped.value)


def finish(model: Any, limit: int = 100) -> None:
    model.objects.complete(model.objects.claim_batch(limit))


# A migration as people run it

GUARDED = """
from django.db import migrations
from django_taskclaim.adoption.operations import RequireComplete


class Migration(migrations.Migration):
    dependencies = [("adoption", "0003_adopt_parcel_index")]
    operations = [RequireComplete("adoption.Parcel"), migrations.RemoveField("parcel", "address")]
"""


@pytest.mark.django_db(transaction=True)
def test_migrate_stops_with_one_sentence_and_goes_on_when_all_is_done(
    project: Project, parcel: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The column stays until the rows are complete; ``sqlmigrate`` asks no rows."""
    project.adopt("adoption.Parcel", "--existing", "open")
    project.write("0004_drop_address", GUARDED)
    assert "CANNOT BE WRITTEN AS SQL" in project.run("sqlmigrate", "adoption", "0004")
    with pytest.raises(SystemExit) as ended:
        ManagementUtility(
            ["manage.py", "migrate", "adoption", "--verbosity=0", "--skip-checks"]
        ).execute()
    assert ended.value.code == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "so nothing was dropped: 5 are open" in sentence
    assert "address" in shape("adoption_parcel")[0]
    finish(parcel)
    project.migrate()
    assert "address" not in shape("adoption_parcel")[0]
    # The column comes back at the end without values.
    execute("DELETE FROM adoption_parcel")


# What is unfinished


@pytest.mark.parametrize("model", [Child, PrefixedOwnStatus], ids=lambda one: one.__name__)
def test_every_state_but_complete_stops_it(model: Any) -> None:
    """With the columns on any table and under any name; the user's own ``status`` does not count."""
    label = model._meta.label
    apply(RequireComplete(label))
    made = make(model, 12)
    assert f"{label} is not complete on 'default', so nothing was dropped: 12 are open" in why_not(
        label
    )
    model.objects.complete(model.objects.claim_batch(8))
    (running, failed) = model.objects.claim_batch(2)
    failed.claim.fail("no", retry=False)
    model.objects.open().filter(pk=made[-1].pk).pause_rows()
    assert "1 is open, 1 is processing, 1 is failed and 1 is paused" in why_not(label)
    apply(RequireComplete(label, filter=Q(pk=made[0].pk)))
    model.objects.resume_rows()
    running.claim.complete()
    finish(model)
    assert "1 is failed" in why_not(label)
    apply(RequireComplete(label, allow_failed=True))


def test_what_cannot_be_asked_is_refused_in_one_sentence() -> None:
    """Even on a fresh database, so that the first run of the tests finds it."""
    assert "has no claim columns" in why_not("testapp.Author")
    assert "is for companions" in why_not("testapp.Photo", every_source=True)
    assert 'source="app.Model"' in why_not("testapp.IntRange")
    for label in "Photo", "testapp.Typo", "typo.Photo":
        assert f"knows no model {label!r}" in why_not(label)
        assert f"knows no model {label!r}" in why_not("testapp.IntRange", source=label)


# Companions


def pages(n: int) -> None:
    have = Page.objects.count()
    Page.objects.bulk_create([Page(slug=f"{have + i:04d}") for i in range(n)])


def test_companions_and_sources_that_have_none() -> None:
    """Every companion is one thing, a companion for every source another: rows may have come since."""
    guard = RequireComplete("sources.PageTask")
    apply(guard)
    pages(3)
    PageTask.objects.populate(Page.objects.all())
    assert "3 are open" in why_not("sources.PageTask")
    finish(PageTask)
    pages(2)
    Page.objects.filter(slug="0004").update(status="draft")
    apply(guard)
    everyone = {"every_source": True}
    told = "2 rows of sources.Page have no row there"
    assert told in why_not("sources.PageTask", **everyone)
    published = {"every_source": {"status": "published"}}
    assert "1 row of sources.Page has no row there" in why_not("sources.PageTask", **published)
    PageTask.objects.populate(Page.objects.filter(status="published"))
    finish(PageTask)
    apply(RequireComplete("sources.PageTask", every_source={"status": "published"}))


def test_a_source_that_is_not_beside_its_companions() -> None:
    """Without companions this is a fresh database, where nothing makes a table with ``managed = False``."""
    state = present().clone()
    state.alter_model_options("sources", "page", {"db_table": "gone"}, ["db_table"])
    guard = RequireComplete("sources.PageTask", every_source=True)
    apply(guard, state=state)
    PageTask.objects.create(source_id="0001", status="complete")
    with pytest.raises(NotComplete, match="is for companions beside their source"):
        apply(guard, state=state)


# Ranges


def test_ranges_must_be_planned_to_the_end_and_done() -> None:
    """A plan that a growing source has outrun is not complete, nor is one that was never made."""
    words, source = (IntRange._meta.label,), {"source": "testapp.IntSource"}
    apply(RequireComplete(*words, **source))
    fill(IntRange, 10)
    assert "testapp.IntSource has rows and no range is planned" in why_not(*words, **source)
    IntRange.objects.plan(chunk_size=4)
    assert "3 are open" in why_not(*words, **source)
    work_through(IntRange, 4)
    apply(RequireComplete(*words, **source))
    fill(IntRange, 1)
    assert "testapp.IntSource has rows behind the last range" in why_not(*words, **source)
    IntRange.objects.plan()
    work_through(IntRange, 4)
    apply(RequireComplete(*words, **source))


# The document

TEXT = (Path(__file__).parents[2] / "docs" / "when-it-is-done.md").read_text(encoding="utf-8")


@pytest.mark.once
@pytest.mark.parametrize("source", documents.blocks(TEXT, "python"))
def test_a_block_of_the_documentation_is_a_migration_with_a_guard_first(source: str) -> None:
    names: dict[str, Any] = {"__name__": "photos.migrations.0008_drop"}
    documents.run(source, names, "when-it-is-done.md")
    migration: Migration = names["Migration"]("0008_drop", "photos")
    assert isinstance(migration.operations[0], RequireComplete)
