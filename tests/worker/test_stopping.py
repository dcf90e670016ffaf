"""Signals, pauses and deaths: what a worker lets go of, how soon, and with which exit code."""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from django_taskclaim.switch import pause, resume
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

Start = Callable[..., Worker]


def running(n: int = 1) -> bool:
    """Say whether at least *n* jobs have been started."""
    return Ledger.objects.count() >= n


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("mode", [[], ["--in-process"]], ids=["supervised", "in-process"])
def test_a_signal_gives_back_what_has_not_started(
    start_worker: Start, number: int, mode: list[str]
) -> None:
    """After a signal waiting rows are open within 2 s, uncounted; the running one finishes; exit code 0."""
    jobs(6, "stay")
    worker = start_worker("--batch-size", "6", *mode)
    wait_until(running)
    worker.signal(number)
    wait_until(lambda: states() == {"open": 5, "processing": 1}, 2, "five rows given back")
    Job.objects.update(act="work")
    assert worker.wait() == 0
    assert states() == {"open": 5, "complete": 1}
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}
    assert Ledger.objects.count() == 1


def test_a_signal_to_the_whole_group_is_one_stop(start_worker: Start) -> None:
    """Ctrl-C and systemd reach supervisor and children alike; that still is one stop, with the grace it gives."""
    jobs(2, "stay")
    worker = start_worker("--batch-size", "2")
    wait_until(running)
    os.killpg(worker.pid, signal.SIGINT)
    wait_until(lambda: states() == {"open": 1, "processing": 1}, 2, "one row given back")
    Job.objects.update(act="work")
    assert worker.wait() == 0
    assert states() == {"open": 1, "complete": 1}


def test_the_grace_ends_what_still_runs(start_worker: Start) -> None:
    """A row that outlives the grace is given back and the exit code is 1."""
    jobs(1, "sleep:30")
    worker = start_worker("--grace", "0.5")
    wait_until(running)
    worker.signal(signal.SIGTERM)
    assert worker.wait(6) == 1
    assert states() == {"open": 1}


def test_a_second_signal_gives_everything_back(start_worker: Start) -> None:
    """A second signal to the supervisor leaves within 5 s, whatever runs, and gives everything back."""
    jobs(3, "sleep:30")
    worker = start_worker("--grace", "20", "--batch-size", "3")
    wait_until(running)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: states().get("open") == 2, 3)
    worker.signal(signal.SIGTERM)
    assert worker.wait(5) == 1
    assert states() == {"open": 3}


def test_a_signal_while_starting_ends_cleanly(start_worker: Start) -> None:
    """A stop that comes while children still import is a stop like any other: 0, and nothing was claimed."""
    jobs(3)
    worker = start_worker("--processes", "2")
    wait_until(worker.children, what="a child")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert states().get("processing") is None


def test_a_killed_child_is_replaced(start_worker: Start) -> None:
    """After SIGKILL of a child the supervisor starts another, and the dead one's rows are done by it."""
    jobs(4, "stay")
    # Long enough to be kept by a living worker whose disk is slow.
    worker = start_worker("--drain", "--lease", "4", "--batch-size", "4")
    wait_until(running)
    os.kill(worker.children()[0], signal.SIGKILL)
    Job.objects.update(act="work")
    assert worker.wait() == 0
    assert states() == {"complete": 4}
    assert set(Job.objects.values_list("counter", flat=True)) == {1}


def test_children_of_a_killed_supervisor_leave(start_worker: Start) -> None:
    """Children whose supervisor was killed claim nothing more and are gone within 8 s."""
    jobs(2000, "sleep:0.1")
    worker = start_worker("--processes", "2", "--batch-size", "5")
    wait_until(lambda: running(4))
    pids = wait_until(lambda: found if len(found := worker.children()) == 2 else None)
    worker.signal(signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in pids), 8, "both children gone")
    assert states().get("processing") is None
    assert Ledger.objects.count() < 2000


def test_a_pause_is_noticed_and_a_resume_too(start_worker: Start) -> None:
    """A busy worker gives back within 2 s of a pause what it has not started, claims nothing, and goes on after.

    It sees the resume by itself, however seldom it looks for rows.
    """
    jobs(200, "sleep:0.3")
    worker = start_worker("--batch-size", "200", "--poll", "60")
    wait_until(running)
    pause(Job, reason="test")
    wait_until(lambda: not states().get("processing"), 3, "everything given back")
    seen = Ledger.objects.count()
    assert seen < 200
    time.sleep(1)  # The time in which a worker that ignores the switch would claim.
    assert Ledger.objects.count() == seen
    resume(Job)
    wait_until(lambda: Ledger.objects.count() > seen, 5, "claims flow again")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_drain_says_what_it_waits_for(start_worker: Start) -> None:
    """Rows that others hold, or that are not due yet, are what it goes on for; it names one of each model."""
    jobs(1)
    (held,) = Job.objects.claim_batch(1, claimed_by="ada", lease=timedelta(hours=1))
    impatient = "from django_taskclaim.worker import work; work.WAITED = 0.2"
    worker = start_worker(
        "--drain", "--in-process", first=f"import django; django.setup(); {impatient}"
    )
    wait_until(lambda: worker.events("waits_for"))
    held.claim.release(delay=timedelta(hours=1))
    wait_until(lambda: "not due before" in worker.events("waits_for")[-1]["text"])
    Job.objects.all().delete()
    assert worker.wait() == 0
    said = worker.events("waits_for")[0]
    assert f"testapp.Job {held.pk}, held by ada until " in said["text"]
    assert said["keys"] == [str(held.pk)]


def test_a_drain_that_is_paused_ends_with_3(start_worker: Start) -> None:
    """A drain does not wait for a person: it says that work is left and ends with 3."""
    jobs(2)
    pause(Job, reason="test")
    worker = start_worker("--drain")
    assert worker.wait() == 3
    assert states() == {"open": 2}


def test_a_row_past_its_timeout_is_failed(start_worker: Start, settings: object) -> None:
    """A handler that outlives its timeout is not renewed for ever: its row fails and its process is replaced."""
    jobs(1, "sleep:60")
    good = jobs(2)
    worker = start_worker(
        "--drain", "--batch-size", "1", TASKCLAIM_TEST_TIMEOUT="6", TASKCLAIM_TEST_ATTEMPTS="1"
    )
    wait_until(lambda: states() == {"complete": 2, "failed": 1})
    assert Job.objects.filter(pk__in=good, status="complete").count() == 2
    assert worker.wait() == 0
    assert "ran longer" in Job.objects.failed().get().last_error
