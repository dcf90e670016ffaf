"""Limits as real workers keep them, in processes of their own, some of them killed."""

import signal
from datetime import timedelta
from typing import Any

import pytest

from tests.limits.conftest import beside, under
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Start, jobs, states, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, databases="__all__")]


def spans() -> Any:
    return Job.objects.filter(status="complete").values_list("claimed_at", "completed_at")


def most_at_once() -> int:
    """Return how many rows were processing at once at most: some row was the last of them to begin."""
    return max(sum(one <= start < end for one, end in spans()) for start, _ in spans())


@pytest.mark.once
@pytest.mark.promise(11)
def test_a_drain_that_is_kept_from_its_work_ends_with_work_left(start_worker: Start) -> None:
    """By the hours, or by an upstream that asks everybody to wait."""
    jobs(3)
    worker = start_worker("--in-process", "--drain", **under(hours=beside(1, 2)))
    assert worker.wait() == 3
    assert states() == {"open": 3}
    # Longer than any machine needs to end a worker.
    jobs(1, "later_all:600", priority=1)
    jobs(20, "sleep:0.2")
    worker = start_worker("--in-process", "--drain", "--batch-size", "5")
    assert worker.wait() == 3
    *_, ended = (record for record in worker.events() if "the drain ends" in record["text"])
    assert "429 Too Many Requests" in ended["text"]
    assert states()["open"] >= 10


@pytest.mark.once
def test_workers_share_a_rate_and_a_drain_under_it_waits_and_goes_on(start_worker: Start) -> None:
    """Two workers share eleven rows at five a second, the first of them at once."""
    jobs(11)
    workers = [start_worker("--in-process", "--drain", **under(rate="300/m")) for _ in "12"]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert states() == {"complete": 11}
    moments = [start for start, _ in spans()]
    assert max(moments) - min(moments) > timedelta(seconds=1.8)


@pytest.mark.promise(7)
def test_workers_never_exceed_a_limit_and_a_killed_one_gives_its_places_back(
    start_worker: Start,
) -> None:
    """Two processes with room for many more rows than the limits allow."""
    for name in "ab":
        jobs(6, "count:0.05", note=name)
    stuck = jobs(2, "stay", note="c", priority=1)
    jobs(3, "count:0", note="c")
    limited = under(limit_per={"note": 2}, max_running=5)
    options = ["--in-process", "--threads", "6", "--batch-size", "10", "--lease", "4"]
    killed = start_worker(*options, **limited)
    wait_until(lambda: Ledger.objects.filter(key__in=stuck).count() == 2, what="both are stuck")
    other = start_worker("--drain", *options, **limited)
    wait_until(lambda: states().get("complete", 0) >= 8, what="both do what they may")
    assert not Job.objects.filter(note="c", status="complete").exists()
    killed.signal(signal.SIGKILL)
    Job.objects.filter(pk__in=stuck).update(act="count:0")
    assert other.wait() == 0
    assert states() == {"complete": 17}
    seen = Ledger.objects.filter(note__contains=" of ").values_list("note", flat=True)
    assert max(int(note.partition(" ")[0]) for note in seen) == 2
    assert most_at_once() <= 5


@pytest.mark.promise(7)
def test_a_series_stays_in_order_after_failures_and_a_kill(start_worker: Start) -> None:
    for _ in range(3):
        jobs(1, "stumble:1", note="a")
        jobs(1, note="b")
    (stuck,) = jobs(1, "stay", note="c", priority=1)
    jobs(2, note="c")
    options = ["--in-process", "--lease", "4"]
    killed = start_worker(*options, **under(serial_by="note"))
    wait_until(lambda: Ledger.objects.filter(key=stuck).exists(), what="the worker is stuck")
    killed.signal(signal.SIGKILL)
    Job.objects.filter(pk=stuck).update(act="work")
    workers = [start_worker("--drain", *options, **under(serial_by="note")) for _ in "12"]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert states() == {"complete": 9}
    for name in "abc":
        keys = sorted(Job.objects.filter(note=name).values_list("pk", flat=True))
        noted = Ledger.objects.filter(key__in=keys).order_by("pk").values_list("key", flat=True)
        runs = [int(key) for key in noted]
        # A row that is run again comes right after itself, and no other before its turn.
        assert runs == sorted(runs)
        assert set(runs) == set(keys)
        assert name == "b" or len(runs) > len(keys)
