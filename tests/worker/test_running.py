"""What a worker does with rows that go well, and with rows that go badly."""

from collections.abc import Callable

import pytest

from tests.testapp.models import Job, Ledger, TextKey
from tests.worker.conftest import Worker, jobs, states, wait_until

Start = Callable[..., Worker]


def test_drain_completes_every_row_once(start_worker: Start) -> None:
    """A drain ends with 0 when nothing is left, and each row was run and written once."""
    jobs(120)
    worker = start_worker("--drain", "--processes", "2", "--threads", "2", "--batch-size", "7")
    assert worker.wait() == 0
    assert states() == {"complete": 120}
    assert set(Job.objects.values_list("counter", flat=True)) == {1}
    assert Ledger.objects.count() == 120


def test_one_bad_row_stops_no_other(start_worker: Start) -> None:
    """An exception, SystemExit or a refused result ends in ``failed`` after its tries; the rest is complete."""
    good = jobs(10)
    bad = {act: jobs(1, act)[0] for act in ("fail", "permanent", "leave", "too_long")}
    assert start_worker("--drain", "--in-process").wait() == 0
    assert states() == {"complete": 10, "failed": 4}
    assert set(Job.objects.filter(pk__in=good).values_list("counter", flat=True)) == {1}
    tried = {act: Job.objects.get(pk=pk).attempts for act, pk in bad.items()}
    assert tried == {"fail": 3, "permanent": 1, "leave": 3, "too_long": 3}
    assert Job.objects.get(pk=bad["fail"]).error_class == "ValueError"
    assert (
        Job.objects.get(pk=bad["permanent"]).last_error == f"job {bad['permanent']} will never work"
    )


def test_retry_later_is_not_counted(start_worker: Start) -> None:
    """``RetryLater`` puts the row back as often as it likes without charging a try."""
    (key,) = jobs(1, "later")
    assert start_worker("--drain", "--in-process").wait() == 0
    row = Job.objects.get(pk=key)
    assert (row.status, row.attempts, row.iteration) == ("complete", 0, 3)


@pytest.mark.parametrize("model", ["testapp.Job", "testapp.AtomicJob"])
def test_a_handler_may_end_the_claim_itself(start_worker: Start, model: str) -> None:
    """After a verb of the handler's own, or a delete, the worker writes nothing more, and tells what that came to."""
    for act in ("complete", "delete", "give_up", "give_up:for good", "give_back"):
        jobs(2, act)
    worker = start_worker("--drain", "--in-process", model=model)
    assert worker.wait() == 0
    # Three tries for two that are given up with a try left, and two turns for those that are given back.
    assert states() == {"complete": 4, "failed": 4}
    assert worker.events("lost") == []
    assert sum(event["rows"] for event in worker.events("completed")) == 4
    failed = worker.events("failed")
    assert sorted(event["final"] for event in failed) == 4 * [False] + 4 * [True]
    assert all("is given up" in event["told"] for event in failed)
    (summary,) = worker.events("summary")
    assert (summary["done"], summary["failed"]) == (4, 4)


def test_rows_that_kill_their_process_fail_alone(start_worker: Start) -> None:
    """A row that takes its process down ends in ``failed``; the others get done, those behind it uncharged."""
    good = jobs(9)
    (poison,) = jobs(1, "die")
    good += jobs(9)
    worker = start_worker(
        "--drain", "--lease", "2", "--batch-size", "50", TASKCLAIM_TEST_ATTEMPTS="2"
    )
    assert worker.wait(240) == 0
    assert Job.objects.get(pk=poison).status == "failed"
    assert Job.objects.filter(pk__in=good, status="complete").count() == 18
    # What was done before it may not have been written yet, and so had begun.
    assert Job.objects.filter(pk__in=good[9:], attempts=0).count() == 9


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("size", "positions"), [(50, (1, 25, 50)), (1000, (1, 500, 1000))], ids=["fifty", "thousand"]
)
def test_poison_anywhere_in_a_batch_fails_alone(
    start_worker: Start, size: int, positions: tuple[int, ...]
) -> None:
    """First, in the middle and last of a batch: exactly the rows that kill their process end in ``failed``."""
    made = jobs(2 * size)
    poison = [made[position - 1] for position in positions]
    Job.objects.filter(pk__in=poison).update(act="die")
    options = ("--drain", "--lease", "2", "--batch-size", str(size))
    worker = start_worker(*options, TASKCLAIM_TEST_ATTEMPTS="2")
    assert worker.wait(1000) == 0
    assert set(Job.objects.failed().values_list("pk", flat=True)) == set(poison)
    assert states() == {"complete": 2 * size - len(poison), "failed": len(poison)}
    assert set(Job.objects.filter(status="complete").values_list("counter", flat=True)) == {1}


def test_limits_of_rows_end_a_worker(start_worker: Start) -> None:
    """``--max-rows`` takes no more than that many rows and ends with 0."""
    jobs(20)
    assert start_worker("--max-rows", "13", "--batch-size", "5", "--in-process").wait() == 0
    assert states() == {"complete": 13, "open": 7}


def test_rows_run_longer_than_their_lease(start_worker: Start) -> None:
    """Renewal keeps the rows of a slow handler, the waiting ones of its batch too."""
    jobs(1, "sleep:9")
    jobs(2)
    # Longer than a machine stands still: what could not be renewed in time would be lost, and rightly so.
    worker = start_worker("--drain", "--in-process", "--lease", "8")
    assert worker.wait() == 0
    assert states() == {"complete": 3}
    assert worker.events("lost", "expired") == []
    assert Ledger.objects.count() == 3


@pytest.mark.parametrize("act", ["leave_open", "autocommit_off"])
def test_a_handler_that_leaves_a_transaction_open_fails_its_row_alone(
    start_worker: Start, act: str
) -> None:
    """Nothing it wrote would be committed: its row fails with a sentence, and its thread does the next ones."""
    (bad,) = jobs(1, act)
    jobs(5)
    assert start_worker("--drain", "--in-process").wait() == 0
    assert states() == {"complete": 5, "failed": 1}
    assert "left a transaction open" in Job.objects.get(pk=bad).last_error


def test_an_error_about_another_instance_loses_no_claim(start_worker: Start) -> None:
    """A ClaimLost that a handler brings about on a second instance of its row is a failure like any other."""
    (key,) = jobs(1, "other_instance")
    assert start_worker("--drain", "--in-process").wait() == 0
    assert Job.objects.get(pk=key).error_class.endswith("ClaimLost")


def test_each_kind_of_error_has_its_own_rule(start_worker: Start) -> None:
    """By ``errors=``: one kind is permanent, one has tries of its own, one is not counted."""
    (permanent,) = jobs(1, "lookup")
    (patient,) = jobs(1, "connect")
    (uncounted,) = jobs(1, "time_out")
    worker = start_worker("--drain")
    assert worker.wait() == 0
    stored = {job.pk: (job.status, job.attempts) for job in Job.objects.all()}
    assert stored == {permanent: ("failed", 1), patient: ("failed", 5), uncounted: ("complete", 0)}
    assert Job.objects.get(pk=patient).error_class == "ConnectionRefusedError"


def test_several_models_take_turns(start_worker: Start) -> None:
    """A model with slow rows and a long queue does not make the rows of another one wait until it is done."""
    jobs(60, "sleep:0.1")
    TextKey.objects.bulk_create([TextKey(key=f"key {number}") for number in range(20)])
    options = ["--drain", "--batch-size", "10", "--lease", "60"]
    worker = start_worker(*options, model="testapp.Job testapp.TextKey")
    assert worker.wait() == 0
    assert states() == {"complete": 60}
    assert TextKey.objects.progress().complete == 20
    claims = [event["model"] for event in worker.events("claimed")]
    *_, last = (at for at, model in enumerate(claims) if model == "testapp.TextKey")
    # Of six: a batch of each is worked on in turns, and the next of each is claimed when it is through.
    assert claims[:last].count("testapp.Job") <= 3
    last_of_them = TextKey.objects.latest("completed_at").completed_at
    assert Job.objects.filter(completed_at__lte=last_of_them).count() < 60


def test_a_short_lease_is_renewed_beside_a_long_one(start_worker: Start) -> None:
    """A row that comes while another runs under a lease of a minute is renewed by its own lease of 8 s."""
    (long,) = jobs(1, "stay")
    worker = start_worker("--drain", "--threads", "2", model="testapp.Job testapp.TextKey")
    wait_until(lambda: states().get("processing"))
    TextKey.objects.create(key="slow")
    wait_until(lambda: TextKey.objects.progress().complete == 1)
    Job.objects.filter(pk=long).update(act="work")
    assert worker.wait() == 0
    assert TextKey.objects.get().attempts == 0
    assert not worker.events("lost", "expired")
