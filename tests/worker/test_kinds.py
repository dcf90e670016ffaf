"""Batch handlers, coroutine functions and atomic handlers, in real workers."""

from collections.abc import Callable

import pytest
from django.db import connection

from tests.testapp.models import Effect, Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until

Start = Callable[..., Worker]


def drain(start_worker: Start, kind: str, *options: str, **env: str) -> Worker:
    worker = start_worker("--in-process", "--drain", *options, model=f"testapp.{kind}", **env)
    assert worker.wait() == 0
    return worker


# Batches


def test_a_batch_that_says_nothing_is_done(start_worker: Start) -> None:
    """None completes every row, with its results; the log gives each its share of the time that the call took."""
    jobs(24)
    jobs(1, "sleep:0.5")
    worker = drain(start_worker, "BatchJob", "--batch-size", "10")
    assert states() == {"complete": 25}
    completed = worker.events("completed")
    lasted = completed[-1]["at"] - worker.events("claimed")[0]["at"]
    assert 0.5 <= sum(event["ran"] for event in completed) < lasted + 0.2
    assert set(Job.objects.values_list("counter", flat=True)) == {1}
    assert sorted(set(Ledger.objects.values_list("note", flat=True))) == ["10 rows", "5 rows"]


@pytest.mark.parametrize("shape", ["mapping", "pairs"])
def test_a_batch_answers_row_by_row(start_worker: Start, shape: str) -> None:
    """Each row gets its own outcome; one that is not mentioned has failed, and none is assumed done."""
    outcomes = [shape, "work", "value", "permanent", "later", "unmentioned", "odd"]
    keys = {outcome: jobs(1, outcome)[0] for outcome in outcomes}
    drain(start_worker, "BatchJob")
    stored = {job.pk: job for job in Job.objects.all()}
    done = {outcome for outcome, key in keys.items() if stored[key].status == "complete"}
    assert done == {shape, "work", "later"}
    assert stored[keys["value"]].last_error == "not this one"
    assert stored[keys["value"]].attempts == 3
    assert stored[keys["permanent"]].attempts == 1
    assert stored[keys["later"]].attempts == 0
    assert "said nothing about this row" in stored[keys["unmentioned"]].last_error
    assert "None or an exception" in stored[keys["odd"]].last_error


def test_a_batch_that_raises_is_halved_until_the_bad_row_is_alone(start_worker: Start) -> None:
    """The row that raises is charged and fails; the others are done, charged for nothing."""
    good = jobs(15)
    (bad,) = jobs(1, "raise")
    good += jobs(16)
    worker = drain(start_worker, "BatchJob", "--batch-size", "32")
    assert states() == {"complete": 31, "failed": 1}
    assert Job.objects.get(pk=bad).attempts == 3
    assert set(Job.objects.filter(pk__in=good).values_list("attempts", "iteration")) == {(0, 0)}
    assert len(worker.events("halved")) == 5


def test_the_halves_of_a_batch_leave_out_what_its_handler_has_ended(start_worker: Start) -> None:
    """A row that the handler completed itself is not called with again because another one raised."""
    (ended,) = jobs(1, "end")
    jobs(1, "raise")
    drain(start_worker, "BatchJob", TASKCLAIM_TEST_ATTEMPTS="1")
    assert states() == {"complete": 1, "failed": 1}
    assert Ledger.objects.filter(key=str(ended)).count() == 1


def test_an_answer_that_is_none_fails_row_by_row(start_worker: Start) -> None:
    """An answer of the wrong kind is an error like any other."""
    jobs(2, "nonsense")
    drain(start_worker, "BatchJob", TASKCLAIM_TEST_ATTEMPTS="1")
    assert states() == {"failed": 2}
    assert "not 7" in Job.objects.first().last_error


def test_a_batch_that_hangs_sets_its_rows_apart(start_worker: Start) -> None:
    """Nobody can tell which row held up the batch, so each is claimed alone; only the one that hangs is charged."""
    good = jobs(4)
    (bad,) = jobs(1, "sleep:30")
    good += jobs(3)
    worker = start_worker(
        "--drain",
        "--grace",
        "1",
        model="testapp.BatchJob",
        # Longer than a machine stands still, or another row would overrun, too.
        TASKCLAIM_TEST_TIMEOUT="6",
        TASKCLAIM_TEST_ATTEMPTS="1",
    )
    assert worker.wait() == 0
    assert states() == {"complete": 7, "failed": 1}
    assert "ran longer" in Job.objects.get(pk=bad).last_error
    assert set(Job.objects.filter(pk__in=good).values_list("attempts", flat=True)) == {0}


# Coroutine functions


def test_coroutines_run_side_by_side(start_worker: Start) -> None:
    """Twenty rows that wait for a second each take nothing like twenty seconds, in one process with one loop."""
    jobs(20, "sleep:1")
    jobs(5, "fail")
    jobs(5, "complete")
    worker = drain(start_worker, "AsyncJob", TASKCLAIM_TEST_ATTEMPTS="1")
    assert states() == {"complete": 25, "failed": 5}
    completed = worker.events("completed")
    ran = [event["ran"] for event in completed]
    assert max(ran) >= 1
    claimed = worker.events("claimed")
    assert sum(event["rows"] for event in claimed) == 30
    # Whatever the machine did meanwhile: one after the other they would take as long as all of them together.
    assert completed[-1]["at"] - claimed[0]["at"] < sum(ran) / 2


def test_a_coroutine_that_overruns_is_cancelled(start_worker: Start) -> None:
    """It is failed at its timeout, the process goes on, and the rows beside it are done."""
    jobs(1, "sleep:60")
    jobs(3, "sleep:0.1")
    worker = drain(
        start_worker, "AsyncJob", TASKCLAIM_TEST_TIMEOUT="6", TASKCLAIM_TEST_ATTEMPTS="1"
    )
    assert states() == {"complete": 3, "failed": 1}
    assert "ran longer" in Job.objects.failed().get().last_error
    assert not [event for event in worker.events() if "overran" in event["text"]]


def test_a_coroutine_that_holds_up_the_loop_is_got_rid_of(start_worker: Start) -> None:
    """A coroutine that never awaits cannot be cancelled: its row is failed and the process replaced."""
    jobs(1, "block:60")
    worker = start_worker(
        "--drain",
        "--grace",
        "1",
        model="testapp.AsyncJob",
        TASKCLAIM_TEST_TIMEOUT="1",
        TASKCLAIM_TEST_ATTEMPTS="1",
    )
    assert worker.wait() == 0
    assert states() == {"failed": 1}


@pytest.mark.parametrize("act", ["block:60", "block_below:60", "block:11"])
def test_a_coroutine_that_holds_up_the_loop_costs_its_neighbours_nothing(
    start_worker: Start, act: str
) -> None:
    """What they wait for the loop is not their time: they are neither failed nor charged."""
    neighbours = jobs(3, "sleep:1")
    (blocking,) = jobs(1, act)
    worker = start_worker(
        *("--drain", "--grace", "1"),
        model="testapp.AsyncJob",
        TASKCLAIM_TEST_TIMEOUT="10",
        TASKCLAIM_TEST_ATTEMPTS="1",
    )
    assert worker.wait() == 0
    assert set(Job.objects.filter(pk__in=neighbours).values_list("status", "attempts")) == {
        ("complete", 0)
    }
    assert act == "block:11" or Job.objects.get(pk=blocking).status == "failed"


# Atomic handlers


def effects() -> list[int]:
    return sorted(int(key) for key in Effect.objects.values_list("key", flat=True))


@pytest.mark.parametrize("kind", ["AtomicJob", "AtomicBatchJob"])
def test_effect_and_completion_are_one_transaction(start_worker: Start, kind: str) -> None:
    """Each row leaves one effect, and its results."""
    keys = jobs(30)
    worker = drain(start_worker, kind, "--batch-size", "8")
    assert states() == {"complete": 30}
    assert effects() == keys
    assert set(Job.objects.values_list("counter", flat=True)) == {1}
    assert sum(event["rows"] for event in worker.events("completed")) == 30


def test_what_a_failing_atomic_handler_wrote_is_gone(start_worker: Start) -> None:
    """Three tries, no effect."""
    jobs(1, "fail")
    drain(start_worker, "AtomicJob")
    assert states() == {"failed": 1}
    assert effects() == []
    assert Job.objects.get().attempts == 3


def test_an_atomic_batch_is_all_or_nothing(start_worker: Start) -> None:
    """Rows that are not done leave nothing behind; the others are done once each, in smaller transactions."""
    good = jobs(5)
    jobs(1, "permanent")
    good += jobs(4)
    worker = drain(start_worker, "AtomicBatchJob")
    assert states() == {"complete": 9, "failed": 1}
    assert effects() == good
    assert worker.events("halved")


def test_a_lost_transaction_is_never_completed(start_worker: Start) -> None:
    """Where the handler's transaction was undone behind its back, the row fails: no completion without the effect."""
    jobs(1, "lose")
    drain(start_worker, "AtomicJob", TASKCLAIM_TEST_ATTEMPTS="1")
    assert_nothing_was_kept()


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="an error ends the statement, not the transaction"
)
def test_a_swallowed_error_is_never_completed(start_worker: Start) -> None:
    """A bare ``except`` around a query that broke the transaction."""
    jobs(1, "swallow")
    drain(start_worker, "AtomicJob", TASKCLAIM_TEST_ATTEMPTS="1")
    assert_nothing_was_kept()


def test_a_doomed_transaction_is_never_completed(start_worker: Start) -> None:
    """Django rolls back what an error inside ``atomic(savepoint=False)`` has passed through, caught or not."""
    jobs(1, "doom")
    drain(start_worker, "AtomicJob", TASKCLAIM_TEST_ATTEMPTS="1")
    assert_nothing_was_kept()


def assert_nothing_was_kept() -> None:
    assert states() == {"failed": 1}
    assert effects() == []
    assert "nothing it wrote was kept" in Job.objects.get().last_error


def test_a_verb_in_an_atomic_handler_ends_the_claim(start_worker: Start) -> None:
    """The worker writes nothing more, and the effect stays."""
    keys = jobs(1, "complete") + jobs(1, "delete")
    drain(start_worker, "AtomicJob")
    assert states() == {"complete": 1}
    assert effects() == keys


def test_a_transaction_left_open_commits_nothing(start_worker: Start) -> None:
    """Neither the effect nor the completion."""
    jobs(1, "leave_open")
    drain(start_worker, "AtomicJob", TASKCLAIM_TEST_ATTEMPTS="1")
    assert states() == {"failed": 1}
    assert effects() == []


def test_a_hook_that_raises_after_the_commit_changes_nothing(start_worker: Start) -> None:
    """The row is complete, once; the error is logged."""
    keys = jobs(1, "hook")
    worker = drain(start_worker, "AtomicJob")
    assert states() == {"complete": 1}
    assert effects() == keys
    assert [event for event in worker.events() if "hook raised" in event["text"]]


@pytest.mark.skipif(
    not connection.features.has_select_for_update,
    reason="no row locks: while an atomic handler runs nobody else can write",
)
def test_a_lost_claim_undoes_what_an_atomic_handler_wrote(start_worker: Start) -> None:
    """An operator resets the row while it runs: the run leaves nothing, and the next one its effect."""
    (key,) = jobs(1, "stay")
    worker = start_worker("--in-process", "--drain", model="testapp.AtomicJob")
    wait_until(lambda: states().get("processing") == 1)
    assert Job.objects.filter(pk=key).reset(running=True) == 1
    Job.objects.filter(pk=key).update(act="work")
    assert worker.wait() == 0
    assert states() == {"complete": 1}
    assert effects() == [key]
    assert worker.events("lost")
