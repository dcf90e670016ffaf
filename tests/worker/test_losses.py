"""What a real worker says of a row that it lost."""

import os
import signal
from collections.abc import Callable

from django_taskclaim.fields import CRASHED
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until


def test_a_worker_logs_each_loss_once(start_worker: Callable[..., Worker]) -> None:
    """The verb that writes the result notices the loss, and so may a renewal: one record all the same."""
    (key,) = jobs(1, "stay")
    worker = start_worker("--in-process", "--drain", "--lease", "12")
    wait_until(lambda: Ledger.objects.count() == 1, what="the row runs")
    assert Job.objects.reset(running=True) == 1
    wait_until(lambda: worker.events("lost"), what="a renewal notices")
    Job.objects.filter(pk=key).update(act="work")
    assert worker.wait() == 0
    assert states() == {"complete": 1}
    assert [event["keys"] for event in worker.events("lost")] == [[str(key)]]
    assert Ledger.objects.count() == 2


def test_a_row_that_may_kill_is_not_held_while_another_runs(
    start_worker: Callable[..., Worker],
) -> None:
    """The process dies of the other one, so the row that waited is neither charged nor failed."""
    (slow,) = jobs(1, "stay")
    worker = start_worker("--threads", "2", "--lease", "8", TASKCLAIM_TEST_ATTEMPTS="1")
    wait_until(lambda: Ledger.objects.filter(key=str(slow)).exists(), what="the slow row runs")
    (waiting,) = jobs(1, not_before=CRASHED)
    wait_until(lambda: worker.events("released"), what="it was claimed, and put back for a moment")
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    Job.objects.filter(pk=slow).update(act="work")
    wait_until(lambda: states() == {"complete": 2})
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}
    assert Ledger.objects.filter(key=str(waiting)).count() == 1
