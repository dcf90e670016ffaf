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
from tests.factories import make
from tests.testapp.models import Child, PrefixedOwnStatus

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
    assert "so nothing was dropped: it has rows that are open (" in sentence
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
    stopped = f"{label} is not complete on 'default', so nothing was dropped: it has rows that are "
    assert f"{stopped}open (" in why_not(label)
    model.objects.complete(model.objects.claim_batch(8))
    (running, failed) = model.objects.claim_batch(2)
    failed.claim.fail("no", retry=False)
    model.objects.open().filter(pk=made[-1].pk).pause_rows()
    assert "open, processing, failed and paused" in why_not(label)
    apply(RequireComplete(label, filter=Q(pk=made[0].pk)))
    model.objects.resume_rows()
    running.claim.complete()
    finish(model)
    assert f"{stopped}failed (" in why_not(label)
    apply(RequireComplete(label, ~Q(**{model.claim_fields["status"]: "failed"})))


def test_what_cannot_be_asked_is_refused_in_one_sentence() -> None:
    """Even on a fresh database, so that the first run of the tests finds it."""
    assert "has no claim columns" in why_not("testapp.Author")


def test_a_table_that_is_missing_is_complete() -> None:
    """Nothing makes a table with ``managed = False`` in a fresh database."""
    state = present().clone()
    state.alter_model_options("testapp", "photo", {"db_table": "gone"}, ["db_table"])
    apply(RequireComplete("testapp.Photo"), state=state)


# The document

TEXT = (Path(__file__).parents[2] / "docs" / "when-it-is-done.md").read_text(encoding="utf-8")


@pytest.mark.once
@pytest.mark.parametrize("source", documents.blocks(TEXT, "python"))
def test_a_block_of_the_documentation_is_a_migration_with_a_guard_first(source: str) -> None:
    names: dict[str, Any] = {"__name__": "photos.migrations.0008_drop"}
    documents.run(source, names, "when-it-is-done.md")
    migration: Migration = names["Migration"]("0008_drop", "photos")
    assert isinstance(migration.operations[0], RequireComplete)
