"""Real workers under throttles."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import Sum

from django_taskclaim.contention import retry_on_contention
from django_taskclaim.models import WorkerProcess
from django_taskclaim.throttling.throttles import Throttles
from tests.commands import live_worker
from tests.contention.conftest import failing
from tests.factories import make
from tests.testapp.models import Job, Photo, UuidKey
from tests.worker.conftest import Start, jobs, states, wait_until

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.throttling.worker_settings"}


def throttles() -> list[dict[str, str]]:
    """Return what the worker has reported."""
    reports = WorkerProcess.objects.values_list("throttles", flat=True)
    return [one for report in reports for one in report]


@pytest.mark.once
def test_nothing_is_claimed_while_a_check_says_stop(start_worker: Start) -> None:
    """Not even by the first claim. Then it all goes on, and a worker that ends leaves no throttle behind.

    A check that is broken or hangs beside it stops nothing, and is logged once.
    """
    make(UuidKey, 2)
    jobs(10)
    worker = start_worker(TASKCLAIM_TEST_CHECKS="odd", **SETTINGS)
    (first,) = wait_until(throttles)
    assert first["reason"] == "rows is 2, more than 0"
    wait_until(lambda: throttles()[0]["until"] > first["until"], what="the check says stop again")
    assert states() == {"open": 10}
    UuidKey.objects.all().delete()
    wait_until(lambda: states() == {"complete": 10})
    wait_until(lambda: not throttles())
    make(UuidKey, 1)
    wait_until(throttles)
    jobs(1)
    assert worker.stop() == 0
    assert not WorkerProcess.objects.exists()
    assert states() == {"complete": 10, "open": 1}
    said = [event["text"] for event in worker.events("check_broken")]
    assert len([text for text in said if "no connection to the moon" in text]) == 1


@pytest.mark.django_db
def test_a_reason_that_no_database_takes_is_reported_all_the_same() -> None:
    throttles = Throttles("default", {Photo: [lambda using: "down: \x00" * 999]})
    throttles.ask()
    told = live_worker("testapp.Photo", throttles=wait_until(throttles.report))
    told.refresh_from_db()
    assert told.throttles[0]["reason"].startswith("down: ")
    assert len(told.throttles[0]["reason"]) <= 500


@pytest.mark.once
@pytest.mark.promise(13)
def test_one_check_is_asked_at_a_time() -> None:
    """Also while the thread of the first one has not come to it yet."""
    throttles = Throttles("default", {Photo: [lambda using: None, lambda using: None]})
    go_on = threading.Event()
    threading.setprofile(lambda *_: go_on.wait())
    throttles.ask()
    throttles.ask()
    threading.setprofile(None)
    asking = [one.name for one in threading.enumerate() if one.name == "taskclaim-check"]
    go_on.set()
    assert len(asking) == 1


@pytest.mark.once
@pytest.mark.promise(11)
def test_a_breaker_that_trips_spares_the_other_rows(start_worker: Start) -> None:
    """The rest of the batch goes back uncounted, and a drain ends with 3."""
    jobs(40, "fail")
    worker = start_worker("--batch-size", "40", "--drain", **SETTINGS)
    assert worker.wait() == 3
    assert states() == {"open": 40}
    tried = Job.objects.aggregate(tries=Sum("attempts"))["tries"]
    assert 4 <= tried < 40
    released = [one for one in worker.events("released") if one["reason"] == "not started"]
    assert sum(record["rows"] for record in released) + tried == 40


@pytest.mark.once
def test_after_a_rest_one_row_is_tried(start_worker: Start) -> None:
    """Once it is done, the breaker closes and the others follow; each one that fails doubles the rest.

    A row that has run since before the rest keeps none from being tried.
    """
    jobs(1, "sleep:600", priority=1)
    jobs(10, "fail")
    often = {"TASKCLAIM_TEST_ATTEMPTS": "1000", "TASKCLAIM_TEST_REST": "2"}
    worker = start_worker("--batch-size", "11", "--threads", "2", **often, **SETTINGS)
    wait_until(lambda: len(worker.events("claimed")) == 2)
    Job.objects.update(act="sleep:0.5")
    wait_until(lambda: states() == {"complete": 10, "processing": 1})
    claims = worker.events("claimed")
    assert [record["rows"] for record in claims[:3]] == [11, 1, 1]
    assert claims[2]["at"] - claims[1]["at"] >= 4
    assert claims[3]["at"] - claims[2]["at"] >= 0.5, "another row was tried meanwhile"
    stopped = worker.events("stopped")[0]
    assert "of the last" in stopped["reason"]
    wait_until(lambda: worker.events("resumed"))


@pytest.mark.promise(14)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="needs a database without replicas")
def test_a_check_that_can_never_be_answered_stops_claims(start_worker: Start) -> None:
    jobs(1)
    worker = start_worker("--drain", TASKCLAIM_TEST_CHECKS="refused", **SETTINGS)
    assert worker.wait() == 3
    assert "has no replicas" in str(worker.events())
    assert states() == {"open": 1}


def test_contention_that_a_handler_retries_counts_as_a_failure(
    work: Callable[..., int], settings: Any
) -> None:
    """The row is done, but the breaker of its model trips, and others stay open."""
    settings.TASKCLAIM = {"BREAKER": 0.5, "BREAKER_OUTCOMES": 1, "BREAKER_REST": 3600}
    make(Photo, 20)

    def contend(photo: Photo) -> None:
        retry_on_contention(atomic=False).call(failing(1))

    assert work(Photo, contend, batch_size=1) == 3
    assert set(Photo.objects.values_list("status", flat=True)) == {"complete", "open"}
    assert not Photo.objects.exclude(attempts=0).exists()
