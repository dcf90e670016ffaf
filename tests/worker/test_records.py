"""What a worker's log says, word for word."""

import logging
import threading
from typing import Any

import pytest

from django_taskclaim.columns import unit_of
from django_taskclaim.worker import records
from django_taskclaim.worker.heartbeat import Vitals
from tests.factories import make
from tests.testapp.models import IntRange, Photo

pytestmark = pytest.mark.django_db


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
