"""What a worker's log says, word for word."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_taskclaim.columns import unit_of
from django_taskclaim.worker import records
from django_taskclaim.worker.heartbeat import Vitals
from tests.factories import make
from tests.testapp.models import IntRange, Photo
from tests.worker.conftest import Worker, jobs

pytestmark = pytest.mark.django_db

#: Run before the worker, it adds a duty to each round of the service thread, and that always fails.
A_FAULT = """
from django_taskclaim.worker.attachments import attach

class Faulty:
    def turn(self, *, busy):
        raise KeyError("forgotten")

    def leave(self):
        return False

    prune = leave

attach(lambda service: Faulty())
"""


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "django_taskclaim.worker")
    # A thread that another test has left behind may say something, too.
    return lambda: [
        record.getMessage() for record in caplog.records if record.thread == threading.get_ident()
    ]


@pytest.mark.parametrize(
    ("ran", "told"), [(0.0312, "31.2 ms"), (1.25, "1.25 s"), (1234.5, "1,234.50 s")]
)
def test_a_failure_tells_how_long_the_handler_ran(
    said: Any, caplog: pytest.LogCaptureFixture, ran: float, told: str
) -> None:
    (row,) = make(Photo, 1)
    records.failed(row, 0.0004, "ValueError", "no width", ran=ran, final=False)
    assert said() == [
        f"Failed testapp.Photo {row.pk}, {told} in the handler, written in 0.4 ms: ValueError: no width;"
        " it is put back and tried again"
    ]
    (facts,) = (one for one in caplog.records if getattr(one, "event", "") == "failed")
    assert (vars(facts)["ran"], vars(facts)["seconds"]) == (ran, 0.0004)


def test_ranges_are_counted_as_ranges(said: Any) -> None:
    rows = [IntRange(pk=1), IntRange(pk=2)]
    records.changed("claimed", rows, 0.0031)
    records.summary("worker", Vitals(done=2), 1, unit_of([IntRange]))
    records.summary("worker", Vitals(done=2), 1, unit_of([IntRange, Photo]))
    assert said() == [
        "Claimed 2 ranges of testapp.IntRange in 3.1 ms",
        "worker: 2 ranges done, 0 failed, 1 held",
        "worker: 2 rows done, 0 failed, 1 held",
    ]


def test_a_claim_and_a_release_tell_how_long_the_statement_took_and_a_loss_nothing(
    said: Any,
) -> None:
    first, second = rows = make(Photo, 2)
    records.changed("claimed", rows, 0.0031)
    records.changed("released", [first], 0.0012, why="not started")
    records.lost(second, "before it could begin")
    assert said() == [
        "Claimed 2 rows of testapp.Photo in 3.1 ms",
        f"Released testapp.Photo {first.pk} in 1.2 ms: not started",
        f"Lost testapp.Photo {second.pk}: before it could begin",
    ]


def test_a_fault_that_comes_back_brings_its_traceback_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A duty that fails at every turn says so now and then; another kind of fault brings its own traceback."""
    limited = records.Limited()
    for error in [*(KeyError(number) for number in range(5)), ValueError("new")]:
        limited.broken("looking for expired claims", error)
    said = [(one.getMessage(), bool(one.exc_info)) for one in caplog.records]
    assert said == [("looking for expired claims failed", True)] * 2
    limited = records.Limited(seconds=0)
    caplog.clear()
    for number in range(3):
        limited.broken("renewing leases", KeyError(number))
    assert [bool(one.exc_info) for one in caplog.records] == [True, False, False]
    assert caplog.records[-1].getMessage() == "renewing leases failed: KeyError: 2"
    assert {one.levelname for one in caplog.records} == {"ERROR"}


def test_a_duty_that_fails_at_every_turn_does_not_flood_the_log(
    start_worker: Callable[..., Worker],
) -> None:
    jobs(1, "sleep:3")
    worker = start_worker("--in-process", "--drain", first=A_FAULT)
    assert worker.wait() == 0
    faults = [event for event in worker.events() if "taking a turn of Faulty" in event["text"]]
    assert [fault for fault in faults if "exception" in fault] == faults[:1]
    # One more for each ten seconds, however busy the machine is.
    assert len(faults) <= 1 + (faults[-1]["at"] - faults[0]["at"]) / 10
