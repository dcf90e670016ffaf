"""Rows that the database lets nobody write, among the rows of a real worker."""

import pytest

from django_taskclaim.models import WorkerProcess
from tests.querysets.refusing import FROZEN, refused
from tests.querysets.support import clock, set_raw
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Start, jobs, states, wait_until

pytestmark = pytest.mark.promise(10)


def freeze(*keys: int) -> None:
    Job.objects.filter(pk__in=keys).update(note=FROZEN)


def test_a_worker_does_all_others_and_names_those_refused(start_worker: Start) -> None:
    """Nobody can claim one of them, and nobody can put back the other."""
    expired = jobs(3)
    for row in Job.objects.claim_batch(3):
        set_raw(row, "expires_at", clock("-1 HOUR"))
    made = jobs(40)
    freeze(made[3], expired[1])
    with refused(Job):
        worker = start_worker("--in-process")
        wait_until(lambda: states() == {"complete": 41, "open": 1, "processing": 1})
        frozen = {str(made[3]), str(expired[1])}
        wait_until(
            lambda: {key for event in worker.events("refused") for key in event["keys"]} == frozen
        )
        wait_until(lambda: WorkerProcess.objects.filter(last_error__contains="cannot be written"))
        # On SQLite a report may meet a lock.
        troubles = worker.events("trouble", "failed")
        assert not [event for event in troubles if "is locked" not in event["text"]]


@pytest.mark.promise(8)
def test_a_refused_renewal_costs_no_other_row_its_lease(start_worker: Start) -> None:
    made = jobs(4, "stay")
    worker = start_worker("--in-process", "--threads", "4", "--lease", "10")
    wait_until(lambda: Ledger.objects.count() == 4, what="all rows run")
    freeze(made[2])
    others = Job.objects.exclude(pk=made[2])
    with refused(Job):
        wait_until(lambda: worker.events("lost"), what="its lease ends")
        known = dict(others.values_list("pk", "expires_at"))
        wait_until(lambda: all(row.expires_at > known[row.pk] for row in others.all()))
    others.update(act="work")
    wait_until(lambda: others.filter(status="complete").count() == 3)
    assert {key for event in worker.events("lost") for key in event["keys"]} == {str(made[2])}
    assert Ledger.objects.exclude(key=str(made[2])).count() == 3
