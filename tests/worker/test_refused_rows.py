"""Rows that the database lets nobody write, among the rows of a real worker."""

from collections.abc import Callable

from django_taskclaim.models import WorkerProcess
from tests.admin.room import VIEW, somebody, text_of, url
from tests.behaviour.refusing import FROZEN, SAID, refused
from tests.behaviour.support import clock, set_raw
from tests.test_doctor import doctor
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until


def freeze(key: int) -> None:
    Job.objects.filter(pk=key).update(note=FROZEN)


def test_a_worker_does_all_others_and_names_those_refused(
    start_worker: Callable[..., Worker],
) -> None:
    """One of them nobody can claim, the other one nobody can put back."""
    expired = jobs(3)
    for row in Job.objects.claim_batch(3):
        set_raw(row, "expires_at", clock("-1 HOUR"))
    made = jobs(100)
    frozen = {str(made[3]), str(expired[1])}
    freeze(made[3])
    freeze(expired[1])
    with refused(Job):
        worker = start_worker("--in-process")
        wait_until(lambda: states() == {"complete": 101, "open": 1, "processing": 1})
        wait_until(
            lambda: {key for event in worker.events("refused") for key in event["keys"]} == frozen
        )
        wait_until(lambda: WorkerProcess.objects.filter(last_error__contains="cannot be written"))
        page = text_of(somebody(*VIEW).get(url()))
        assert any(f"testapp.Job {key} cannot be written: {SAID}" in page for key in frozen)
        assert "refuses to have rows of testapp.Job written" in page
        assert not worker.events("trouble", "failed")
        code, said = doctor("testapp.Job")
        assert code == 1
        assert all(f"{key}: " in said for key in frozen)
    assert Job.objects.get(pk=made[3]).claimed_by is None


def test_a_drain_ends_with_the_refused_rows_left(start_worker: Callable[..., Worker]) -> None:
    made = jobs(20)
    freeze(made[0])
    with refused(Job):
        worker = start_worker("--in-process", "--drain")
        assert worker.wait() == 3
    assert states() == {"complete": 19, "open": 1}
    said = [event["text"] for event in worker.events()]
    assert any("refuses to have the last rows of testapp.Job written" in one for one in said)


def test_a_refused_renewal_costs_no_other_row_its_lease(
    start_worker: Callable[..., Worker],
) -> None:
    made = jobs(6, "stay")
    worker = start_worker("--in-process", "--threads", "6", "--lease", "8")
    wait_until(lambda: Ledger.objects.count() == 6, what="all rows run")
    freeze(made[2])
    with refused(Job):
        wait_until(lambda: worker.events("lost"), what="its lease ends")
        ends = Job.objects.exclude(pk=made[2]).values_list("pk", "expires_at")
        known = dict(ends)
        wait_until(lambda: all(end > known[key] for key, end in ends.all()), what="a renewal")
    Job.objects.exclude(pk=made[2]).update(act="work")
    wait_until(lambda: Job.objects.filter(status="complete").count() >= 5)
    assert {key for event in worker.events("lost") for key in event["keys"]} == {str(made[2])}
    others = Ledger.objects.exclude(key=str(made[2]))
    assert sorted(others.values_list("key", flat=True)) == sorted(
        str(key) for key in made if key != made[2]
    )
