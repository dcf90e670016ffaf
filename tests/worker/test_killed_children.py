"""A child that is killed: what it had not begun comes back at once and uncharged, what it had begun follows its lease.

The lease is an hour, so nothing here can have come back by its end.
"""

import os
import signal
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from django_taskclaim.switch import pause, resume
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until

Start = Callable[..., Worker]

HOUR = ("--lease", "3600", "--batch-size", "147")


def kill(worker: Worker) -> None:
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)


def only_begun_rows_are_left(begun: list[int], others: list[int]) -> None:
    """Wait until the *others* are done, uncharged; the rows that had *begun* have their claim and its lease."""
    wait_until(lambda: Job.objects.filter(pk__in=others, status="complete").count() == len(others))
    assert set(Job.objects.filter(pk__in=others).values_list("attempts", "iteration")) == {(0, 1)}
    left = Job.objects.filter(pk__in=begun, status="processing", attempts=0, iteration=0)
    assert left.filter(expires_at__gt=timezone.now() + timedelta(minutes=50)).count() == len(begun)


def test_what_a_killed_child_had_not_begun_comes_back(start_worker: Start) -> None:
    """Of 147 rows two threads have begun two."""
    begun, others = jobs(2, "stay"), jobs(145)
    worker = start_worker(*HOUR, "--threads", "2")
    wait_until(lambda: Ledger.objects.count() == 2, what="two rows run")
    assert states() == {"processing": 147}
    kill(worker)
    only_begun_rows_are_left(begun, others)
    assert Ledger.objects.count() == 147


@pytest.mark.parametrize("act", ["die", "segfault"])
def test_what_a_row_that_kills_leaves_comes_back(start_worker: Start, act: str) -> None:
    begun, others = jobs(1, act), jobs(146)
    start_worker(*HOUR)
    only_begun_rows_are_left(begun, others)


def test_a_batch_that_was_handed_over_has_begun(start_worker: Start) -> None:
    """The batch that waits behind it has not."""
    begun, others = jobs(10, "sleep:600"), jobs(10)
    worker = start_worker("--lease", "3600", "--batch-size", "10", model="testapp.BatchJob")
    wait_until(lambda: Ledger.objects.count() == 10 and states() == {"processing": 20})
    kill(worker)
    only_begun_rows_are_left(begun, others)


def test_coroutines_that_run_have_begun(start_worker: Start) -> None:
    begun, others = jobs(20, "sleep:600"), jobs(30)
    worker = start_worker(*HOUR, model="testapp.AsyncJob")
    wait_until(lambda: Ledger.objects.count() == 20 and states() == {"processing": 50})
    kill(worker)
    only_begun_rows_are_left(begun, others)


def test_atomic_rows_come_back(start_worker: Start) -> None:
    begun, others = jobs(1, "stay"), jobs(20)
    worker = start_worker(*HOUR, model="testapp.AtomicJob")
    wait_until(lambda: states() == {"processing": 21})
    kill(worker)
    only_begun_rows_are_left(begun, others)


def test_a_successor_that_is_killed_at_once_loses_nothing(start_worker: Start) -> None:
    """The one after it gives the rows back."""
    begun, others = jobs(1, "stay"), jobs(20)
    worker = start_worker(*HOUR)
    wait_until(lambda: Ledger.objects.count() == 1 and states() == {"processing": 21})
    first = worker.children()
    for number in range(2):
        kill(worker)
        if not number:
            (second,) = wait_until(lambda: [pid for pid in worker.children() if pid not in first])
            assert second not in first
    only_begun_rows_are_left(begun, others)


def test_several_children_that_die_together(start_worker: Start) -> None:
    """Each has a batch, of which the first row runs."""
    begun, others = list[int](), list[int]()
    for _ in range(3):
        begun, others = begun + jobs(1, "stay"), others + jobs(10)
    worker = start_worker("--lease", "3600", "--batch-size", "11", "--processes", "3")
    wait_until(lambda: Ledger.objects.count() == 3 and states() == {"processing": 33})
    for child in worker.children():
        os.kill(child, signal.SIGKILL)
    only_begun_rows_are_left(begun, others)


def test_rows_come_back_while_their_model_is_paused(start_worker: Start) -> None:
    """Nobody claims them then; a paused worker gives back by itself, so the pause comes with the kill."""
    begun, others = jobs(1, "stay"), jobs(20)
    worker = start_worker(*HOUR)
    wait_until(lambda: Ledger.objects.count() == 1 and states() == {"processing": 21})
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    pause(Job, using="default")
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: states() == {"processing": 1, "open": 20})
    resume(Job, using="default")
    only_begun_rows_are_left(begun, others)
