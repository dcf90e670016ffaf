"""Real workers under throttles."""

import re
from collections.abc import Callable

import pytest
from django.db import connection
from django.db.models import Sum

from django_taskclaim.models import Throttle
from tests.factories import make
from tests.test_commands import run
from tests.testapp.models import Job, Ledger, UuidKey
from tests.worker.conftest import Worker, jobs, start_worker, states, wait_until

__all__ = ["start_worker"]

Start = Callable[..., Worker]

pytestmark = pytest.mark.long

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.throttling.worker_settings"}


def test_nothing_is_claimed_while_a_check_says_stop(start_worker: Start) -> None:
    """Not even by the first claim; then it all goes on by itself, and the worker leaves no throttle behind."""
    make(UuidKey, 2)
    jobs(10)
    worker = start_worker(**SETTINGS)
    wait_until(Throttle.objects.exists, 60)
    text = run("claimstatus", "testapp.Job")
    assert "THROTTLED on worker@" in text
    assert "by rows since" in text
    assert ": rows is 2, more than 0, until " in text
    # Several polls later: the stop has been renewed for as long.
    first = Throttle.objects.get().until
    wait_until(lambda: (Throttle.objects.get().until - first).total_seconds() > 1.5)
    assert states() == {"open": 10}
    UuidKey.objects.all().delete()
    wait_until(lambda: states() == {"complete": 10})
    wait_until(lambda: not Throttle.objects.exists())
    make(UuidKey, 1)
    wait_until(Throttle.objects.exists)
    jobs(1)
    worker.signal(15)
    assert worker.wait() == 0
    assert not Throttle.objects.exists()
    assert states() == {"complete": 10, "open": 1}


def test_a_drain_that_is_throttled_ends_with_work_left(start_worker: Start) -> None:
    make(UuidKey, 1)
    jobs(3)
    worker = start_worker("--drain", **SETTINGS)
    assert worker.wait(60) == 3
    (told,) = (record for record in worker.events() if "the drain ends" in record["text"])
    assert told["text"] == (
        "testapp.Job is throttled (rows is 1, more than 0), so the drain ends with work left"
    )
    assert states() == {"open": 3}


@pytest.mark.parametrize("act", ["fail", "give_up"])
def test_a_breaker_that_trips_spares_the_other_rows(start_worker: Start, act: str) -> None:
    """The rest of the batch goes back uncounted instead of failing as well."""
    jobs(40, act)
    worker = start_worker("--batch-size", "40", **SETTINGS)
    wait_until(Throttle.objects.exists, 60)
    wait_until(lambda: states() == {"open": 40})
    tried = Job.objects.aggregate(tries=Sum("attempts"))["tries"]
    assert 4 <= tried < 40
    assert Throttle.objects.get().source == "circuit breaker"
    released = [r for r in worker.events("released") if r["reason"] == "not started"]
    assert sum(record["rows"] for record in released) + tried == 40


def test_a_drain_ends_when_the_breaker_trips(start_worker: Start) -> None:
    jobs(12, "fail")
    worker = start_worker("--batch-size", "12", "--drain", **SETTINGS)
    assert worker.wait(60) == 3
    assert set(states()) == {"open"}
    (told,) = (record for record in worker.events() if "the drain ends" in record["text"])
    assert re.search(r"throttled \(\d+ of the last \d+ tries failed\)", told["text"])
    Job.objects.update(act="work")
    assert start_worker("--drain", **SETTINGS).wait(60) == 0
    assert states() == {"complete": 12}


def test_after_a_rest_a_few_rows_are_tried(start_worker: Start) -> None:
    jobs(30, "fail")
    worker = start_worker("--batch-size", "30", TASKCLAIM_TEST_REST="2", **SETTINGS)
    wait_until(lambda: worker.events("throttled"), 60)
    Job.objects.update(act="work")
    wait_until(lambda: states() == {"complete": 30}, 60)
    claims = [record["rows"] for record in worker.events("claimed")]
    assert claims[:2] == [30, 3]
    assert max(claims[2:]) > 3
    wait_until(lambda: worker.events("unthrottled"))
    assert Ledger.objects.count() >= 30


def test_a_check_that_cannot_be_answered_keeps_the_worker_from_starting(
    start_worker: Start,
) -> None:
    worker = start_worker(TASKCLAIM_TEST_REFUSED="1", **SETTINGS)
    assert worker.wait(60) == 2
    assert worker.process.stderr is not None
    told = worker.process.stderr.read()
    wanted = "cannot answer own_lag()" if connection.vendor == "sqlite" else "is no replica"
    assert wanted in told
