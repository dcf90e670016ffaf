"""Children that die or hang: the supervisor replaces them, and gives up where none can be kept alive."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testapp.models import Job
from tests.worker.conftest import Worker, jobs, states, wait_until

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True, databases="__all__")]

Start = Callable[..., Worker]


def errors(worker: Worker) -> list[str]:
    return [event["text"] for event in worker.events() if event["level"] == "ERROR"]


@pytest.mark.promise(11)
def test_a_child_that_dies_before_it_is_ready_is_tried_five_times(start_worker: Start) -> None:
    """The pauses grow; then the worker ends with 1, and nothing was claimed."""
    jobs(1)
    worker = start_worker(TASKCLAIM_TEST_STILLBORN="7")
    assert worker.wait() == 1
    said = errors(worker)
    assert len(said) == 5
    assert all("died with code 7" in text for text in said[:-1])
    assert "giving up" in said[-1]
    assert states() == {"open": 1}


def test_a_stop_is_heeded_between_two_tries(start_worker: Start) -> None:
    worker = start_worker(TASKCLAIM_TEST_STILLBORN="7")
    wait_until(lambda: errors(worker))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.promise(10)
def test_rows_that_kill_their_process_do_not_end_the_worker(start_worker: Start) -> None:
    """However many processes die at work, another one takes over at once."""
    jobs(7, "die", priority=1)
    (good,) = jobs(1)
    worker = start_worker("--batch-size", "1", "--lease", "3600")
    wait_until(lambda: Job.objects.get(pk=good).status == "complete")
    assert worker.process.poll() is None
    assert len([text for text in errors(worker) if "died with code 9" in text]) > 5


@pytest.mark.promise(7)
def test_a_child_whose_thread_hangs_is_replaced(start_worker: Start) -> None:
    """It would never do any work again; its rows go back as those of a dead child."""
    jobs(1, "hang")
    worker = start_worker("--lease", "4", "--grace", "1")
    wait_until(lambda: states() == {"complete": 1})
    (before,) = worker.children()
    jobs(1)
    wait_until(lambda: [pid for pid in worker.children() if pid != before], what="a new process")
    wait_until(lambda: states() == {"complete": 2})
    assert any("hangs" in text for text in errors(worker))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_processes_have_titles_where_setproctitle_is_installed(start_worker: Start) -> None:
    pytest.importorskip("setproctitle")
    worker = start_worker("--processes", "2")

    def titles() -> list[str]:
        files = [Path(f"/proc/{pid}/cmdline") for pid in (worker.pid, *worker.children())]
        return sorted(one.read_bytes().strip(b"\0").decode() for one in files)

    expected = [
        "claimworker: child worker-1, testapp.Job",
        "claimworker: child worker-2, testapp.Job",
        "claimworker: supervisor, testapp.Job",
    ]
    wait_until(lambda: titles() == expected)
    os.killpg(worker.pid, signal.SIGTERM)
    assert worker.wait() == 0
