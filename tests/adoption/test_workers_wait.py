"""A worker whose code is ahead of the database waits until it is not, and says so once."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.adoption.conftest import Project, execute
from tests.worker.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parent.parent.parent

GUARD = """
from django.db import migrations
from django_taskclaim.adoption.operations import RequireComplete


class Migration(migrations.Migration):
    dependencies = [("adoption", "0003_adopt_parcel_index")]
    operations = [RequireComplete("adoption.Parcel")]
"""


@pytest.mark.once
def test_a_worker_goes_on_by_itself_once_the_migrations_have_run(
    project: Project, parcel: Any, process_env: dict[str, str]
) -> None:
    """A migration that waits for the worker's own rows is not waited for."""
    project.adopt("adoption.Parcel")
    project.write("0004_guard", GUARD)
    path = [str(project.folder.parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = process_env | {
        "DJANGO_SETTINGS_MODULE": "tests.adoption.settings",
        "TASKCLAIM_TEST_MIGRATIONS": project.folder.name,
        "PYTHONPATH": os.pathsep.join(path),
    }
    health = project.folder / "alive"
    words = ["claimworker", "adoption.Parcel", "--drain", "--health-file", str(health)]
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
        project.migrate("0003")
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
