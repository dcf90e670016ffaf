"""Signals, pauses and the end of a supervisor: what a worker gives back, and its exit code.

The lease is an hour where rows come back, so no reaper can have brought them.
"""

import os
import signal
import time
from contextlib import closing

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_taskclaim.handlers import handler_for
from django_taskclaim.switch import pause, resume
from django_taskclaim.worker.batch import Notes, hold, shared_memory
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.process import Process
from django_taskclaim.worker.stop_signals import StopSignals
from tests.testapp.models import Effect, Job, Ledger
from tests.worker.conftest import Start, jobs, states, wait_until

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

HOUR = ("--lease", "3600")


def finish_what_runs() -> None:
    Job.objects.filter(status="processing").update(act="work")


@pytest.mark.promise(11)
@pytest.mark.parametrize(
    ("mode", "number"),
    [
        pytest.param([], signal.SIGTERM, id="supervised", marks=pytest.mark.once),
        pytest.param(["--in-process"], signal.SIGINT, id="in-process"),
    ],
)
def test_a_stop_gives_back_what_has_not_started_and_a_second_signal_the_rest(
    start_worker: Start, mode: list[str], number: int
) -> None:
    """Waiting rows are open again, uncounted, while one row still runs; it has an hour, and is not waited for."""
    jobs(6, "stay")
    worker = start_worker(*HOUR, "--batch-size", "6", "--grace", "3600", *mode)
    wait_until(Ledger.objects.exists)
    worker.signal(number)
    wait_until(lambda: states() == {"open": 5, "processing": 1}, what="five rows given back")
    worker.signal(number)
    assert worker.wait() == 1
    assert states() == {"open": 6}
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}
    assert Ledger.objects.count() == 1


@pytest.mark.once
@pytest.mark.promise(11)
def test_a_row_that_ends_in_its_grace_period_is_complete(start_worker: Start) -> None:
    """After Ctrl-C, which the whole group hears. A drain that was asked to stop ends with 0, though work is left."""
    jobs(6, "stay")
    worker = start_worker(*HOUR, "--drain", "--batch-size", "6", "--grace", "600")
    wait_until(Ledger.objects.exists)
    os.killpg(worker.pid, signal.SIGINT)
    wait_until(lambda: states() == {"open": 5, "processing": 1}, what="five rows given back")
    finish_what_runs()
    assert worker.wait() == 0
    assert states() == {"open": 5, "complete": 1}


@pytest.mark.once
@pytest.mark.promise(11)
def test_the_grace_period_ends_what_still_runs(start_worker: Start) -> None:
    """A row that outlives the grace period is given back, and the exit code is 1."""
    jobs(1, "stay")
    worker = start_worker(*HOUR, "--grace", "0.5")
    wait_until(Ledger.objects.exists)
    assert worker.stop() == 1
    assert states() == {"open": 1}


@pytest.mark.promise(11)
@pytest.mark.skipif(not connection.features.has_select_for_update, reason="needs row locks")
def test_a_row_that_its_handler_has_locked_goes_back(start_worker: Start) -> None:
    """The worker ends the handler's session first, so nothing that it wrote stays."""
    jobs(1, "hold:600")
    worker = start_worker(*HOUR, "--grace", "1", model="testapp.AtomicJob")

    def is_locked() -> bool:
        with transaction.atomic():
            return not Job.objects.select_for_update(skip_locked=True).exists()

    # Before that the claim itself has it locked.
    wait_until(lambda: states() == {"processing": 1})
    wait_until(is_locked, what="the handler has its row locked")
    assert worker.stop() == 1
    assert states() == {"open": 1}
    assert (Job.objects.get().attempts, Job.objects.get().note) == (0, "")
    assert not Effect.objects.exists()


@pytest.mark.once
@pytest.mark.promise(11)
def test_a_stop_while_children_start_claims_nothing(start_worker: Start) -> None:
    """Every child hears the signal too, before it has a line of Python of its own."""
    jobs(3)
    # A child has to start before it can end, and nobody knows how long that takes.
    worker = start_worker("--processes", "2", "--grace", "600")
    wait_until(worker.children, what="a child")
    os.killpg(worker.pid, signal.SIGTERM)
    assert worker.wait() == 0
    assert states().get("processing") is None


@pytest.mark.long
@pytest.mark.promise(11)
def test_a_stop_at_any_moment_of_the_start_leaves_nothing(start_worker: Start) -> None:
    """Only before the command's first line may the signal end the process as signals do."""
    jobs(400, "sleep:0.02")
    for tenths in range(0, 24, 3):
        worker = start_worker("--batch-size", "5", "--grace", "600")
        wait_until(lambda since=worker.began + tenths / 10: time.time() > since)
        assert worker.stop() in (0, -signal.SIGTERM)
        wait_until(lambda worker=worker: not worker.session(), what="nobody is left")
        assert states().get("processing") is None
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@pytest.mark.once
@pytest.mark.promise(11)
def test_a_stop_before_the_first_claim_gives_back_what_had_not_started(
    transactional_db: None,
) -> None:
    """In the process that is stopped, or in the one before it, which was killed."""
    jobs(3)
    memory, handler = shared_memory(), handler_for(Job)
    held = hold(handler, Job.objects.claim_batch(3))
    Notes(memory).add(held)
    held[0].batch.started[0] = 1
    process = Process(WorkerOptions(("testapp.Job",), "w", "default"), memory, is_child=True)
    process.stop(8.0)
    with closing(StopSignals()) as signals:
        process.run(signals, lambda word: None)
    assert states() == {"processing": 1, "open": 2}


def test_a_child_that_is_killed_during_a_stop_makes_the_code_1(start_worker: Start) -> None:
    """No new child takes its place."""
    jobs(1, "stay")
    worker = start_worker(*HOUR, "--grace", "3600")
    wait_until(Ledger.objects.exists)
    (child,) = worker.children()
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.events("stopping"))
    os.kill(child, signal.SIGKILL)
    assert worker.wait() == 1
    wait_until(lambda: not worker.session(), what="nobody is left")


@pytest.mark.once
@pytest.mark.promise(11)
def test_a_frozen_child_does_not_hold_up_a_stop(start_worker: Start) -> None:
    """The supervisor kills it after the grace period."""
    jobs(1, "stay")
    worker = start_worker("--grace", "1")
    wait_until(Ledger.objects.exists)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    assert worker.stop() == 1
    wait_until(lambda: not worker.session(), what="nobody is left")


# Children of a supervisor that was killed


@pytest.mark.once
@pytest.mark.promise(7)
def test_children_of_a_killed_supervisor_leave(start_worker: Start) -> None:
    """They are gone although a row runs and 200 are open, and they give back what they hold."""
    jobs(200, "stay")
    worker = start_worker(*HOUR, "--processes", "2", "--batch-size", "5")
    wait_until(lambda: Ledger.objects.count() == 2)
    worker.signal(signal.SIGKILL)
    worker.wait()
    wait_until(lambda: not worker.session(), what="both children are gone")
    assert states() == {"open": 200}
    assert Ledger.objects.count() == 2


# The switch


@pytest.mark.promise(9)
def test_a_pause_and_a_resume_are_noticed(start_worker: Start) -> None:
    """A busy worker gives back what it has not started; the running row finishes; a resume needs no poll.

    A second worker that starts during the pause claims nothing either.
    """
    (running,) = jobs(1, "stay", priority=1)
    jobs(50)
    options = (*HOUR, "--batch-size", "51", "--poll", "3600", "--in-process")
    worker = start_worker(*options)
    wait_until(Ledger.objects.exists)
    pause(Job, reason="test")
    wait_until(lambda: states() == {"open": 50, "processing": 1}, what="50 rows given back")
    finish_what_runs()
    wait_until(lambda: Job.objects.get(pk=running).status == "complete")
    assert start_worker("--drain", "--processes", "2").wait() == 3
    assert states() == {"open": 50, "complete": 1}
    resume(Job)
    wait_until(lambda: states() == {"complete": 51}, what="claims flow again")
    assert worker.stop() == 0
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


# Wrong usage


@pytest.mark.once
@pytest.mark.promise(14)
def test_without_posix_signals_the_supervisor_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows; ``--in-process`` works there."""
    jobs(1)
    for name in ("sigpending", "pthread_sigmask", "SIGCHLD"):
        monkeypatch.delattr(signal, name)
    with pytest.raises(CommandError, match="add --in-process") as error:
        call_command("claimworker", "testapp.Job", "--drain")
    assert error.value.returncode == 2
    assert states() == {"open": 1}
    call_command("claimworker", "testapp.Job", "--drain", "--in-process")
    assert states() == {"complete": 1}
