"""Children that die or hang: the supervisor replaces them, and gives up where none can be kept alive."""

import subprocess

import pytest

from tests.worker.conftest import Start, Worker, jobs, states, wait_until

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True, databases="__all__")]


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
    assert all("ended with code 7" in text for text in said[:-1])
    assert "giving up" in said[-1]
    assert states() == {"open": 1}


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
    assert worker.stop() == 0


def test_a_worker_that_polls_rarely_is_not_taken_for_hung(start_worker: Start) -> None:
    worker = start_worker("--poll", "3600", "--in-process")
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(60)
