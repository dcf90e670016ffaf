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


@pytest.mark.once
def test_a_worker_goes_on_by_itself_once_the_migrations_have_run(
    project: Project, parcel: Any, process_env: dict[str, str]
) -> None:
    project.adopt("adoption.Parcel")
    path = [str(project.folder.parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = process_env | {
        "DJANGO_SETTINGS_MODULE": "tests.adoption.settings",
        "TASKCLAIM_TEST_MIGRATIONS": project.folder.name,
        "PYTHONPATH": os.pathsep.join(path),
    }
    health = project.folder / "alive"
    words = ["claimworker", "adoption.Parcel", "--max-rows", "1", "--health-file", str(health)]
    worker = subprocess.Popen(
        [sys.executable, "-m", "django", *words], env=env, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    assert worker.stderr is not None
    listener = threading.Thread(target=said.extend, args=[worker.stderr], daemon=True)
    listener.start()
    try:
        wait_until(lambda: any("Waiting: " in line for line in said))
        wait_until(health.exists)
        project.migrate()
        execute("INSERT INTO adoption_parcel (address) VALUES ('new')")
        wait_until(lambda: worker.poll() is not None)
        assert worker.returncode == 0
    finally:
        worker.kill()
        worker.wait()
        listener.join(10)
        worker.stderr.close()
    told = [line for line in said if " WARNING " in line]
    assert "lacks the columns" in told[0]
    assert "manage.py migrate adoption" in told[0]
    assert len(told) == 2, "once that it waits, once that it goes on"
    assert set(parcel.objects.values_list("address", "status")) == {
        *((f"old {number}", "paused") for number in range(5)),
        ("new", "complete"),
    }
