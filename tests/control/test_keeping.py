"""Everything that is written down has an age at which it goes."""

import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import Sum

from django_taskclaim.contention import retry_on_contention
from django_taskclaim.control.keeping import compact, prune
from django_taskclaim.control.models import ClaimEvent, OperatorAct, ThroughputMinute, WorkerOrder
from django_taskclaim.control.reading import slot_start, throughput
from django_taskclaim.dialects import DatabaseLater
from django_taskclaim.overview import database_time
from django_taskclaim.worker.histogram import packed
from tests.querysets.support import ROW_LOCKS
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db(databases="__all__")

DAY = timedelta(days=1)


def ago(age: timedelta) -> Any:
    return DatabaseLater(-age)


def minute(age: timedelta, now: datetime | None = None, **facts: Any) -> None:
    """Make a minute of that age *now*, which whoever makes several reads once: there is one of each at most."""
    at = slot_start((now or database_time("default")) - age, timedelta(minutes=1))
    ThroughputMinute.objects.create(**{"model": "testapp.photo", "process": "w", "at": at} | facts)


def prune_all() -> int:
    """Prune until nothing is left to prune, and return how many pieces that took."""
    pieces = 1
    while not prune("default"):
        pieces += 1
        assert pieces < 100
    return pieces


def test_each_table_has_its_age(settings: Any) -> None:
    settings.TASKCLAIM = {"ACT_RETENTION": 10 * DAY}
    for age in (timedelta(hours=1), 2 * DAY, 8 * DAY, 11 * DAY):
        OperatorAct.objects.create(at=ago(age), model="testapp.photo", act="reset", by="ada")
        ClaimEvent.objects.create(at=ago(age), model="testapp.photo", key="1", event="claimed")
        WorkerOrder.objects.create(at=ago(age), worker="w", order="stop", by="ada")
        minute(age, done=1)
    assert prune_all() == 1
    tables = (OperatorAct, ClaimEvent, ThroughputMinute, WorkerOrder)
    assert [table.objects.count() for table in tables] == [3, 2, 2, 1]


def test_the_oldest_go_in_pieces(settings: Any) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 10}
    for age in [*[40 * DAY] * 35, *[timedelta(0)] * 5]:
        ClaimEvent.objects.create(at=ago(age), model="testapp.photo", key="1", event="claimed")
    assert prune_all() == 4
    assert ClaimEvent.objects.count() == 5


def test_old_minutes_are_taken_together_and_nothing_is_lost(settings: Any) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 7}
    now = database_time("default")
    for number in range(40):
        for process in ("v", "w"):
            facts = {"done": 3, "errors": 1, "batches": 1, "seconds": 0.5, "process": process}
            age = timedelta(minutes=70 + number)
            stopped = "lag" if number == 5 else ""
            minute(age, now, durations=packed({number: 1}), stopped=stopped, **facts)
    minute(timedelta(minutes=70), now, model="testapp.uuidkey", done=5)
    minute(timedelta(minutes=5), now, done=3)
    before = throughput(Photo, using="default", span=DAY)
    pieces = 1
    while not compact("default", 7):
        pieces += 1
    assert pieces > 5
    after = {slot.at: slot for slot in throughput(Photo, using="default", span=DAY)}
    # The last one is not over, and meanwhile a new one may have begun.
    assert [after[slot.at] for slot in before[1:-1]] == before[1:-1]
    total = ThroughputMinute.objects.aggregate(done=Sum("done"), batches=Sum("batches"))
    assert total == {"done": 80 * 3 + 5 + 3, "batches": 80}
    assert ThroughputMinute.objects.filter(process="").count() <= 6
    # What is an hour old at most stays as it is, and so does the rest of its ten minutes.
    young = ThroughputMinute.objects.exclude(process="")
    assert young.filter(at__lt=ago(timedelta(minutes=70))).count() == 0
    assert ThroughputMinute.objects.filter(stopped="lag").count() == 1
    assert compact("default", 7)


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_two_workers_that_take_minutes_together_count_none_twice() -> None:
    now = database_time("default")
    for number in range(60):
        minute(timedelta(minutes=70 + number), now, done=1, durations="3:1")
    barrier = threading.Barrier(3)
    errors: list[BaseException] = []

    def run() -> None:
        barrier.wait(10)
        try:
            while not retry_on_contention(retries=10, atomic=False).call(compact, "default", 5):
                continue
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    while not compact("default", 5):
        continue
    assert ThroughputMinute.objects.aggregate(done=Sum("done"))["done"] == 60
    assert ThroughputMinute.objects.count() <= 7


@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
def test_a_session_waits_for_locks_as_long_as_before() -> None:
    """``release_expired`` prunes too, on a session that may go on with something else."""
    ask = {"postgresql": "SHOW lock_timeout", "mysql": "SELECT @@SESSION.innodb_lock_wait_timeout"}
    limits = []
    for _ in range(2):
        with connections["default"].cursor() as cursor:
            cursor.execute(ask[connections["default"].vendor])
            limits.append(cursor.fetchone())
        compact("default", 5)
    assert limits[0] == limits[1]
