"""The health file: touched while all is well, left to age when something hangs."""

import os
import signal
import time
from pathlib import Path

import pytest

from django_taskclaim.models import WorkerProcess
from django_taskclaim.switch import pause
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.process import Process
from tests.factories import make
from tests.freezing import freeze
from tests.testapp.models import Job, UuidKey
from tests.worker.conftest import Start, jobs, states, wait_until

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True, databases="__all__")]


def touched(path: Path) -> float:
    """Return when the file was last touched; 0 where it is absent."""
    return path.stat().st_mtime if path.exists() else 0.0


def wait_for_a_touch(path: Path) -> None:
    before = touched(path)
    wait_until(lambda: touched(path) > before, what="the file is touched")


def wait_until_it_ages(path: Path) -> None:
    """Wait until nobody has touched the file for many times the usual interval."""
    wait_until(lambda: time.time() - touched(path) > 20, what="nobody touches the file")


def is_throttled() -> bool:
    return WorkerProcess.objects.exclude(throttles=[]).exists()


def test_it_is_touched_while_the_worker_lives(start_worker: Start, tmp_path: Path) -> None:
    """A throttle or a pause is no illness; the old file of a dead worker is used again."""
    path = tmp_path / "alive"
    path.touch()
    os.utime(path, (0, 0))
    make(UuidKey, 1)
    settings = {"DJANGO_SETTINGS_MODULE": "tests.throttling.worker_settings"}
    worker = start_worker("--health-file", str(path), TASKCLAIM_TEST_CHECKS="rows", **settings)
    wait_until(is_throttled)
    wait_for_a_touch(path)
    pause(Job)
    UuidKey.objects.all().delete()
    jobs(1)
    wait_until(lambda: not is_throttled())
    wait_for_a_touch(path)
    assert states() == {"open": 1}
    assert worker.stop() == 0


@pytest.mark.long
def test_a_frozen_child_lets_it_age(start_worker: Start, tmp_path: Path) -> None:
    """One child of two is enough; once it goes on, all is well again."""
    path = tmp_path / "alive"
    worker = start_worker("--health-file", str(path), "--processes", "2")
    wait_until(lambda: touched(path))
    child = worker.children()[0]
    freeze(child)
    wait_until_it_ages(path)
    os.kill(child, signal.SIGCONT)
    wait_for_a_touch(path)


def test_no_sign_is_given_while_a_handler_that_has_overrun_is_replaced() -> None:
    process = Process(WorkerOptions(("testapp.Job",), "w", "default"))
    process.service.keeper.has_overrun = True
    process.stop(grace=1.0)
    assert "a handler has overrun" in process.faults()
