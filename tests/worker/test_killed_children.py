"""Processes that are killed, and rows that kill: what had not started comes back uncharged, what kills ends in failed.

Where the lease is an hour, nothing can have come back by its end.
"""

import os
import signal
from datetime import timedelta

import pytest
from django.utils import timezone

from django_taskclaim.fields import QUARANTINED
from django_taskclaim.switch import pause, resume
from tests.freezing import freeze
from tests.querysets.support import clock, set_raw
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Start, Worker, jobs, states, wait_until

HOUR = ("--lease", "3600", "--batch-size", "50")


def kill(worker: Worker) -> None:
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)


def only_started_rows_are_left(started: list[int], others: list[int]) -> None:
    """Wait until the *others* are done, uncharged; the rows that had *started* keep their claim and its lease."""
    wait_until(lambda: Job.objects.filter(pk__in=others, status="complete").count() == len(others))
    back = Job.objects.filter(pk__in=others)
    # On a machine that stands still for long, a process may be replaced once more, which costs nobody a try either.
    assert set(back.values_list("attempts", flat=True)) == {0}
    assert not back.filter(iteration=0).exists()
    left = Job.objects.filter(pk__in=started, status="processing", attempts=0, iteration=0)
    far = timezone.now() + timedelta(minutes=30)
    assert left.filter(expires_at__gt=far).count() == len(started)


@pytest.mark.promise(7, 10)
@pytest.mark.parametrize(
    ("kind", "act", "started"),
    [
        ("Job", "stay", 1),
        pytest.param("AtomicJob", "stay", 1, marks=pytest.mark.once),
        pytest.param("BatchJob", "sleep:600", 50, marks=pytest.mark.once),
        pytest.param("AsyncJob", "sleep:600", 20, marks=pytest.mark.once),
        pytest.param("Job", "segfault", 1, marks=pytest.mark.long),
    ],
)
def test_what_a_killed_child_had_not_started_comes_back(
    start_worker: Start, kind: str, act: str, started: int
) -> None:
    """A batch and the coroutines of one loop have started together; the batch that waits has not."""
    running, others = jobs(started, act), jobs(30)
    worker = start_worker(*HOUR, model=f"testapp.{kind}")
    if act != "segfault":
        wait_until(lambda: states() == {"processing": started + 30}, what="all are claimed")
        if kind == "AtomicJob":  # Its row in the ledger is not committed.
            wait_until(lambda: worker.events("stays"), what="the first one runs")
        else:
            wait_until(lambda: Ledger.objects.count() == started, what="the first ones run")
        kill(worker)
    only_started_rows_are_left(running, others)


@pytest.mark.once
@pytest.mark.promise(7)
def test_rows_come_back_while_their_model_is_paused(start_worker: Start) -> None:
    """A successor gives them back even if it is killed at once, and its own successor has to do it."""
    started, others = jobs(1, "stay"), jobs(20)
    worker = start_worker(*HOUR)
    wait_until(lambda: Ledger.objects.count() == 1 and states() == {"processing": 21})
    (first,) = worker.children()
    freeze(first)
    pause(Job, using="default")
    os.kill(first, signal.SIGKILL)
    (second,) = wait_until(lambda: [pid for pid in worker.children() if pid != first])
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: states() == {"processing": 1, "open": 20})
    resume(Job, using="default")
    only_started_rows_are_left(started, others)


@pytest.mark.once
@pytest.mark.promise(7)
def test_rows_of_several_killed_processes_expire(start_worker: Start) -> None:
    """Their supervisor is killed with them, so another worker's reaper puts the rows back."""
    jobs(8, "stay")
    worker = start_worker("--lease", "8", "--batch-size", "4", "--processes", "2")
    wait_until(lambda: Ledger.objects.count() == 2 and states() == {"processing": 8})
    os.killpg(worker.pid, signal.SIGKILL)
    Job.objects.update(act="work")
    start_worker("--in-process", "--lease", "8")
    wait_until(lambda: states() == {"complete": 8})
    assert set(Job.objects.values_list("counter", flat=True)) == {1}


# Rows that kill their process


@pytest.mark.once
@pytest.mark.promise(10)
def test_rows_that_kill_their_process_fail_alone(start_worker: Start) -> None:
    """First, in the middle and last of a batch; however many processes die at work, another one takes over."""
    made = jobs(30)
    poison = {made[0], made[15], made[29]}
    Job.objects.filter(pk__in=poison).update(act="die")
    worker = start_worker("--drain", "--lease", "4", TASKCLAIM_TEST_ATTEMPTS="1")
    assert worker.wait(500) == 0
    assert set(Job.objects.failed().values_list("pk", flat=True)) == poison
    assert states() == {"complete": 27, "failed": 3}
    assert set(Job.objects.filter(status="complete").values_list("counter", flat=True)) == {1}
    assert len([one for one in worker.events() if "ended with code 9" in one["text"]]) > 5


@pytest.mark.once
@pytest.mark.promise(10)
def test_a_quarantined_row_that_kills_is_blamed(start_worker: Start) -> None:
    """It was claimed alone and had started, so the end of that claim makes it ``failed``."""
    jobs(1, "die", not_before=QUARANTINED)
    first = start_worker("--in-process", "--max-rows", "1", TASKCLAIM_TEST_ATTEMPTS="1")
    assert first.wait() == 9
    set_raw(Job.objects.get(), "expires_at", clock("-1 SECOND"))
    assert start_worker("--in-process", "--drain", TASKCLAIM_TEST_ATTEMPTS="1").wait() == 0
    assert states() == {"failed": 1}


@pytest.mark.once
@pytest.mark.promise(10)
def test_a_quarantined_row_waits_while_another_runs(start_worker: Start) -> None:
    """After a while it gives way to others. Its process dies of the first: neither of the two is charged."""
    (slow,) = jobs(1, "stay")
    worker = start_worker("--threads", "2", "--lease", "8", TASKCLAIM_TEST_ATTEMPTS="1")
    wait_until(Ledger.objects.exists)
    (waiting,) = jobs(1, not_before=QUARANTINED)
    lease = Job.objects.get(pk=slow).expires_at
    wait_until(lambda: Job.objects.get(pk=slow).expires_at > lease, what="many polls later")
    others = jobs(3)
    wait_until(lambda: Job.objects.filter(pk__in=others, status="complete").count() == 3)
    assert not Ledger.objects.filter(key=str(waiting)).exists()
    kill(worker)
    Job.objects.filter(pk=slow).update(act="work")
    wait_until(lambda: states() == {"complete": 5})
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@pytest.mark.once
@pytest.mark.promise(10)
def test_nothing_else_runs_beside_a_quarantined_row(start_worker: Start) -> None:
    """Should it kill the process, no other row runs there."""
    (alone,) = jobs(1, "stay", not_before=QUARANTINED)
    start_worker("--in-process", "--threads", "2")
    wait_until(Ledger.objects.exists)
    others = jobs(5)
    renewed = Job.objects.get(pk=alone).expires_at
    wait_until(lambda: Job.objects.get(pk=alone).expires_at > renewed, what="many polls later")
    assert Ledger.objects.count() == 1
    Job.objects.filter(pk=alone).update(act="work")
    wait_until(lambda: states() == {"complete": 6})
    done = Job.objects.in_bulk()
    assert all(done[alone].completed_at <= done[key].completed_at for key in others)
