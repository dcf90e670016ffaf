"""A worker whose code is ahead of the database waits until it is not, and says so once."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from django_taskclaim.worker.unmigrated import pending_migrations
from tests.adoption.conftest import Project, execute
from tests.worker.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parent.parent.parent


def pending(model: Any, *, lacking: bool = False) -> list[str]:
    return pending_migrations([model], "default", lacking=lacking)


def test_what_has_not_run_of_the_models_app_is_pending(project: Project, parcel: Any) -> None:
    assert pending(parcel) == []
    project.adopt("adoption.Parcel")
    assert pending(parcel) == ["adoption.0002_adopt_parcel", "adoption.0003_adopt_parcel_index"]
    project.migrate("0002")
    assert pending(parcel) == ["adoption.0003_adopt_parcel_index"]
    project.migrate()
    assert pending(parcel) == []


def test_other_apps_are_none_of_its_business(project: Project) -> None:
    from django_taskclaim.models import Switch

    project.adopt("adoption.Parcel")
    assert pending(Switch) == []


def test_tables_that_were_made_by_other_means_are_not_waited_for(
    project: Project, parcel: Any
) -> None:
    applied = MigrationRecorder(connection).migration_qs.filter(app="adoption")
    applied.delete()
    assert pending(parcel) == []
    assert pending(parcel, lacking=True) == ["adoption.0001_initial"]
    MigrationRecorder(connection).record_applied("adoption", "0001_initial")


def test_what_waits_for_the_worker_itself_is_not_waited_for(project: Project, parcel: Any) -> None:
    """Or neither would ever go on."""
    project.adopt("adoption.Parcel")
    guarded = """
from django.db import migrations


class RequireComplete(migrations.RunPython):
    pass


class Migration(migrations.Migration):
    dependencies = [("adoption", "0003_adopt_parcel_index")]
    operations = [RequireComplete(migrations.RunPython.noop)]
"""
    after = guarded.replace("0003_adopt_parcel_index", "0004_guard").replace(
        "[RequireComplete(migrations.RunPython.noop)]", "[]"
    )
    (project.folder / "0004_guard.py").write_text(guarded, encoding="utf-8")
    (project.folder / "0005_after.py").write_text(after, encoding="utf-8")
    project.refresh()
    assert [name for name in pending(parcel) if name > "adoption.0003_z"] == []
    assert len(pending(parcel)) == 2


@pytest.mark.parametrize("where", ["--in-process", "--processes=1"])
def test_a_worker_goes_on_by_itself_once_they_have_run(
    project: Project, parcel: Any, process_env: dict[str, str], where: str
) -> None:
    project.adopt("adoption.Parcel")
    path = [str(project.folder.parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = process_env | {
        "DJANGO_SETTINGS_MODULE": "tests.adoption.settings",
        "TASKCLAIM_TEST_MIGRATIONS": project.folder.name,
        "PYTHONPATH": os.pathsep.join(path),
    }
    health = project.folder / "alive"
    words = ["claimworker", "adoption.Parcel", "--drain", where, "--health-file", str(health)]
    worker = subprocess.Popen(
        [sys.executable, "-m", "django", *words], env=env, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    assert worker.stderr is not None
    listener = threading.Thread(target=said.extend, args=[worker.stderr], daemon=True)
    listener.start()
    try:
        wait_until(lambda: any("Waiting for migrations" in line for line in said))
        wait_until(health.exists)
        project.migrate("0002")
        # While it still waits for the other, or its drain could be over before.
        execute("INSERT INTO adoption_parcel (address) VALUES ('new')")
        project.migrate()
        wait_until(lambda: worker.poll() is not None)
        assert worker.returncode == 0
    finally:
        worker.kill()
        worker.wait()
        listener.join(10)
        worker.stderr.close()
    told = [line for line in said if "migrations" in line.lower()]
    assert "adoption.0002_adopt_parcel and adoption.0003_adopt_parcel_index" in told[0]
    assert len(told) == 2, "once that it waits, once that it goes on"
    assert set(parcel.objects.values_list("address", "status")) == {
        *((f"old {number}", "paused") for number in range(5)),
        ("new", "complete"),
    }
