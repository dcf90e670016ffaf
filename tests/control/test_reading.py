"""What the control page reads of the throughput."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_taskclaim.control.acts import record_act
from django_taskclaim.control.models import ThroughputMinute
from django_taskclaim.control.reading import marks, slot_start, throughput
from django_taskclaim.overview import database_time
from django_taskclaim.switch import pause
from django_taskclaim.worker.histogram import bucket_of, packed, quantile, unpacked
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db(databases="__all__")

HOUR = timedelta(hours=1)


@pytest.fixture
def now() -> datetime:
    """One moment for all that a test makes: minutes made by a clock that goes on may meet, or be two."""
    return database_time("default")


def minute(now: datetime, ago: float = 0.0, **facts: Any) -> ThroughputMinute:
    at = slot_start(now, timedelta(minutes=1)) - timedelta(minutes=ago)
    return ThroughputMinute.objects.create(
        model=facts.pop("model", "testapp.photo"), at=at, process=facts.pop("process", "w"), **facts
    )


def test_processes_add_up_and_gaps_are_shown(now: datetime) -> None:
    minute(now, 5, done=60, failed=1, errors=3, durations=packed({bucket_of(0.5): 10}))
    minute(now, 5, done=60, process="v", durations=packed({bucket_of(4): 10}))
    minute(now, 5, done=60, model="testapp.uuidkey")
    minute(now, 90, done=60)
    slots = throughput(Photo, using="default", span=HOUR)
    assert len(slots) == 60
    assert slots[-1].at - slots[0].at == timedelta(minutes=59)
    (busy,) = (slot for slot in slots if slot.done)
    assert (busy.done, busy.failed, busy.errors, busy.rate) == (120, 1, 3, 2.0)
    assert busy.p50 == pytest.approx(0.5, rel=0.2)
    assert busy.p95 == pytest.approx(4, rel=0.2)
    assert slots[0].p50 is None
    day = throughput(Photo, using="default", span=24 * HOUR)
    assert len(day) == 144
    assert sum(slot.done for slot in day) == 180


def test_quantiles_are_a_fifth_off_at_most() -> None:
    times = [0.0004, 0.01, 0.02, 0.1, 0.3, 1, 2.5, 60, 600, 900000]
    for share in (0.1, 0.5, 0.95):
        for scale in times[:-1]:
            counts: dict[int, int] = {}
            for step in range(1, 101):
                bucket = bucket_of(scale * step)
                counts[bucket] = counts.get(bucket, 0) + 1
            found = quantile(unpacked(packed(counts)), share)
            assert found == pytest.approx(max(0.001, scale * 100 * share), rel=0.2), (share, scale)
    assert quantile({bucket_of(times[-1]): 1}, 0.5) is not None
    assert quantile({}, 0.5) is None


def test_marks_explain_bends(now: datetime) -> None:
    record_act(Photo, "pause", by="ada", reason="deploy")
    record_act(Photo, "resume", by="bob")
    record_act(Photo, "reset", rows=5, by="bob")
    minute(now, 7, done=3, errors=30)
    minute(now, 6, done=300, errors=30)
    minute(now, 4, stopped="replica lag 31 s")
    minute(now, 4, stopped="replica lag 31 s", process="v")
    found = [(mark.kind, mark.text) for mark in marks(Photo, using="default", span=HOUR)]
    assert found == [
        ("failures", "30 of 33 tries failed"),
        ("throttle", "Throttled: replica lag 31 s"),
        ("pause", "Paused by ada: deploy"),
        ("resume", "Resumed by bob"),
    ]


def test_marks_of_a_throughput_that_is_known_are_read_without_it(now: datetime) -> None:
    minute(now, 7, done=3, errors=30)
    minute(now, 4, stopped="replica lag 31 s")
    slots = throughput(Photo, using="default", span=HOUR)
    with CaptureQueriesContext(connection) as sent:
        found = marks(Photo, using="default", span=HOUR, slots=slots)
    assert found == marks(Photo, using="default", span=HOUR)
    assert not [one["sql"] for one in sent if "durations" in one["sql"]]


def test_a_pause_by_code_is_marked_while_it_stands() -> None:
    pause(Photo, reason="night", by="cron", using="default")
    (mark,) = marks(Photo, using="default", span=HOUR)
    assert (mark.kind, mark.text) == ("pause", "Paused by cron: night")
    # With the act of a command beside it, it is one mark.
    record_act(Photo, "pause", by="cron", reason="night")
    assert len(marks(Photo, using="default", span=HOUR)) == 1
