"""The throughput that the control room shows: what processes wrote adds up, is kept compactly, and ends."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from django_taskclaim.admin.control_room.snapshot import chart
from django_taskclaim.control import poller
from django_taskclaim.control.audit import record_action
from django_taskclaim.control.models import ThroughputMinute
from django_taskclaim.control.reading import Slot, acts, minutes, slots
from django_taskclaim.handlers import Handler
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.service import Service
from tests.commands import run
from tests.querysets.support import at_once
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db(databases="__all__")

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def now() -> datetime:
    """One moment for all that a test makes, so that no two minutes become one."""
    return database_time("default").replace(second=0, microsecond=0)


def minute(now: datetime, ago: float, process: str = "w", of: str = "photo", **counts: int) -> None:
    facts = {"model": f"testapp.{of}", "process": process, "counts": counts}
    ThroughputMinute.objects.create(at=now - timedelta(minutes=ago), **facts)


def throughput(span: timedelta) -> list[Slot]:
    now = database_time("default")
    return slots(minutes(Photo, using="default", since=now - span), now, span)


def total(name: str = "done") -> Any:
    counts = ThroughputMinute.objects.values_list("counts", flat=True)
    return sum(Counter[str](one)[name] for one in counts)


def test_processes_add_up_and_gaps_are_shown(now: datetime) -> None:
    minute(now, 5, done=60, failed=1, errors=3)
    minute(now, 5, done=60, process="v")
    minute(now, 5, done=60, of="uuidkey")
    minute(now, 90, done=60)
    hour = throughput(HOUR)
    assert len(hour) == 60
    (busy,) = (slot for slot in hour if slot.counts)
    assert (busy.failing, busy.tries, busy.rate) == (1 / 121, 123, 2.0)
    assert sum(slot.counts["done"] for slot in throughput(DAY)) == 180


def test_a_chart_has_room_for_the_minute_that_goes_on_and_marks_where_people_acted(
    now: datetime,
) -> None:
    minute(now, 5, done=60)
    minute(now, 0, done=9000)
    record_action(Photo, "pause", by="ada", reason="deploy")
    record_action(Photo, "reset", rows=5, by="bob")
    record_action(Photo, "export", by="bob")
    found = chart(throughput(HOUR), acts(Photo, using="default"))
    marked = [act.act for together in found.marks.values() for act in together]
    assert marked == ["pause", "reset"]
    assert found.top == max(slot.rate for slot in found.slots) > 1.0


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_old_minutes_are_added_up_and_nothing_is_lost(settings: Any, now: datetime) -> None:
    """Two that compact at once count no minute twice."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 7}
    for ago in range(70, 110):
        for process in ("v", "w"):
            minute(now, ago, process=process, done=3, errors=1)
        minute(now, 60 * 24 * 40 + ago, done=3, errors=1, process="")
    minute(now, 5, done=3)
    at_once(*[lambda: run("release_expired")] * 2)
    run("release_expired")
    assert (total(), total("errors")) == (120 * 3 + 3, 120)
    # One row for all that is no longer kept. The last ten minutes of the others may still be a part of a younger row.
    assert ThroughputMinute.objects.count() <= 1 + 1 + 6 + 20
    kept = ThroughputMinute.objects.get(at=now - timedelta(minutes=5))
    assert kept.counts == {"done": 3}


def test_a_minute_that_was_added_up_is_not_stored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an outage of more than an hour, which began while the minute was half written."""
    options = WorkerOptions((Photo._meta.label,), "w", "default")
    service = Service(options, [Handler(Photo, print)], InFlight())
    writer = poller.Poller(service)
    for done in (3, 2):
        service.counters.count(Photo, done=done)
        writer.write()
        with monkeypatch.context() as later:
            later.setattr(poller, "AGE_OF_MINUTES", -HOUR)
            assert poller.compact("default", 500)
    assert total() <= 5


def test_a_slot_that_has_just_become_too_old_takes_nothing_in(settings: Any, now: datetime) -> None:
    begins = (now - 2 * HOUR).minute % 10 + 120
    settings.TASKCLAIM = {"RETENTION": timedelta(minutes=begins - 5)}
    minute(now, begins, done=3, process="")
    minute(now, begins - 7, done=4)
    run("release_expired")
    assert total() == 7
