"""Limits per key, kept by real workers in processes of their own, some of them killed."""

import signal
from collections.abc import Callable

import pytest

from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, databases="__all__")]

Start = Callable[..., Worker]

LIMIT = 2
OF_A_NOTE = {"TASKCLAIM_TEST_LIMIT_PER": f'{{"note": {LIMIT}}}'}


def alike() -> list[int]:
    """Return how many rows of one note each run has seen processing, itself included."""
    seen = Ledger.objects.filter(note__contains=" of ").values_list("note", flat=True)
    return [int(note.partition(" ")[0]) for note in seen]


def test_workers_together_never_exceed_a_limit_and_a_killed_one_gives_its_places_back(
    start_worker: Start,
) -> None:
    """Two processes with room for many more rows than the limit lets them have."""
    for note in "ab":
        jobs(8, "count:0.05", note=note)
    stuck = jobs(2, "stay", note="c", priority=1)
    jobs(3, "count:0", note="c")
    options = ["--in-process", "--threads", "6", "--batch-size", "10", "--lease", "8"]
    killed = start_worker(*options, **OF_A_NOTE)
    wait_until(lambda: Ledger.objects.filter(key__in=stuck).count() == 2, what="both are stuck")
    other = start_worker("--drain", *options, **OF_A_NOTE)
    wait_until(lambda: states().get("complete", 0) >= 10, what="both do what they may")
    assert not Job.objects.filter(note="c", status="complete").exists()
    killed.signal(signal.SIGKILL)
    Job.objects.filter(pk__in=stuck).update(act="count:0")
    assert other.wait() == 0
    assert states() == {"complete": 21}
    assert max(alike()) == LIMIT


@pytest.mark.long
def test_a_row_that_has_ended_lets_the_next_one_begin_at_once(start_worker: Start) -> None:
    """Ten rows of one key, one at a time, in less than nine pauses between looks in vain would take."""
    jobs(10, "count:0", note="a")
    options = ["--in-process", "--drain", "--poll", "10"]
    worker = start_worker(*options, TASKCLAIM_TEST_LIMIT_PER='{"note": 1}')
    assert worker.wait(60) == 0
    assert states() == {"complete": 10}
    assert set(alike()) == {1}
