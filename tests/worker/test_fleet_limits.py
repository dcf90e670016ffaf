"""Limits of the whole fleet, kept by real workers in processes of their own, some of them killed."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_taskclaim.limits import set_limits
from django_taskclaim.models import FleetLimit, Switch, Throttle
from django_taskclaim.switch import stops_of
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, databases="__all__")]

Start = Callable[..., Worker]


def under(**limits: Any) -> dict[str, str]:
    """Return the environment of a worker whose handler has these options."""
    return {"TASKCLAIM_TEST_LIMITS": json.dumps(limits)}


def closed_now() -> str:
    """Return a window that begins in an hour."""
    ends = [timezone.localtime() + timedelta(hours=n) for n in (1, 2)]
    return "-".join(f"{end:%H:%M}" for end in ends)


def done_within(seconds: float) -> int:
    """Return how many rows at most were claimed within so many seconds, by the clock of the database."""
    moments = sorted(Job.objects.filter(status="complete").values_list("claimed_at", flat=True))
    most = first = 0
    for last, moment in enumerate(moments):
        while (moment - moments[first]).total_seconds() >= seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def at_once() -> int:
    """Return how many rows were processing at once at most, by what the rows tell."""
    spans = Job.objects.filter(status="complete").values_list("claimed_at", "completed_at")
    changes = sorted(
        (moment, step) for span in spans for moment, step in zip(span, (1, -1), strict=True)
    )
    running = most = 0
    for _, step in changes:
        running += step
        most = max(most, running)
    return most


# Everyone waits


def test_an_upstream_that_asks_to_wait_stops_a_drain(start_worker: Start) -> None:
    # Longer than any machine needs to end a worker.
    jobs(1, "later_all:600", priority=1)
    jobs(20, "sleep:0.2")
    worker = start_worker("--in-process", "--drain", "--batch-size", "5")
    assert worker.wait() == 3
    (told,) = (record for record in worker.events() if "the drain ends" in record["text"])
    assert "429 Too Many Requests), so the drain ends with work left" in told["text"]
    left = states()
    assert left["open"] >= 10
    assert not Throttle.objects.exists()
    assert stops_of(Job, using="default").throttle is not None


@pytest.mark.long
def test_it_goes_on_by_itself_on_every_host(start_worker: Start) -> None:
    jobs(1, "later_all:15", priority=1)
    jobs(30, "sleep:0.1")
    workers = [start_worker("--in-process", "--batch-size", "3") for _ in range(2)]
    wait_until(Throttle.objects.filter(source="everyone").exists)
    wait_until(lambda: states() == {"complete": 31})
    stopped = Switch.objects.get(scope="testapp.job!throttle")
    late = Job.objects.filter(claimed_at__gt=stopped.paused_at, claimed_at__lt=stopped.until)
    assert not late.exists()
    wait_until(lambda: not Throttle.objects.exists())
    for worker in workers:
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


# Hours


def test_a_drain_outside_of_the_hours_ends_with_work_left(start_worker: Start) -> None:
    jobs(3)
    worker = start_worker("--in-process", "--drain", **under(hours=closed_now()))
    assert worker.wait() == 3
    (told,) = (record for record in worker.events() if "the drain ends" in record["text"])
    assert "throttled (outside the hours" in told["text"]
    assert states() == {"open": 3}


@pytest.mark.long
def test_hours_that_are_set_are_followed_by_running_workers(start_worker: Start) -> None:
    worker = start_worker("--in-process")
    jobs(2)
    wait_until(lambda: states() == {"complete": 2})
    set_limits(Job, hours=closed_now(), using="default")
    jobs(3)
    wait_until(lambda: Throttle.objects.filter(source="hours").exists())
    assert states() == {"complete": 2, "open": 3}
    set_limits(Job, hours=None, using="default")
    wait_until(lambda: states() == {"complete": 5})
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


# Rates and rows at once


def test_a_drain_under_a_rate_waits_and_goes_on(start_worker: Start) -> None:
    """Eleven rows at five a second, of which the first goes at once; it asks some times a second and no more."""
    jobs(11)
    began = time.monotonic()
    worker = start_worker("--in-process", "--drain", **under(rate="300/m"))
    assert worker.wait() == 0
    assert states() == {"complete": 11}
    assert time.monotonic() - began > 2
    assert done_within(1.0) <= 5 + 15
    assert FleetLimit.objects.get().level < 15


#: In the transaction of each change of a row, how many are processing then; claims under such a limit come one by one.
NOTED = (
    f"INSERT INTO testapp_ledger (model, {connection.ops.quote_name('key')}, worker, note, at)"
    " SELECT 'history', NEW.id, COALESCE(NEW.claimed_by, ''), COUNT(*), CURRENT_TIMESTAMP"
    " FROM testapp_job WHERE status = 'processing'"
)
CHANGED = "NEW.status <> OLD.status"
HISTORY = {
    "postgresql": [
        f"CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {NOTED}; RETURN NULL; END $$",
        f"CREATE TRIGGER noted AFTER UPDATE ON testapp_job FOR EACH ROW WHEN ({CHANGED}) EXECUTE FUNCTION noted()",
    ],
    "mysql": [
        f"CREATE TRIGGER noted AFTER UPDATE ON testapp_job FOR EACH ROW IF {CHANGED} THEN {NOTED}; END IF"
    ],
    "sqlite": [
        f"CREATE TRIGGER noted AFTER UPDATE ON testapp_job FOR EACH ROW WHEN {CHANGED} BEGIN {NOTED}; END"
    ],
}


@pytest.fixture
def history(process_env: dict[str, str]) -> Iterator[None]:
    """Have the database itself write an account, which no worker can spare itself."""
    postgresql = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        for statement in HISTORY[connection.vendor]:
            cursor.execute(statement)
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION noted() CASCADE" if postgresql else "DROP TRIGGER noted")


@pytest.mark.long
@pytest.mark.usefixtures("history")
def test_rows_at_once_are_never_exceeded(start_worker: Start) -> None:
    """Four workers with room for many, one of them killed and replaced."""
    limited = under(max_running=3)
    # Each run writes down how many rows are processing, too, those of the dead among them.
    jobs(160, "count:0.02", note="all")
    options = ["--in-process", "--threads", "4", "--batch-size", "10", "--lease", "4"]
    killed, *others = [start_worker(*options, **limited) for _ in range(4)]
    wait_until(lambda: states().get("complete", 0) >= 20)
    killed.signal(signal.SIGKILL)
    others.append(start_worker(*options, **limited))
    wait_until(lambda: states() == {"complete": 160})
    account = Ledger.objects.filter(model="history").values_list("note", flat=True)
    assert len(account) >= 2 * 160
    assert max(map(int, account)) == 3
    seen = Ledger.objects.filter(note__endswith=" of all").values_list("note", flat=True)
    assert max(int(note.partition(" ")[0]) for note in seen) == 3
    assert at_once() <= 3


@pytest.mark.long
@pytest.mark.timeout(400)
def test_four_workers_keep_to_a_rate_over_two_minutes(start_worker: Start) -> None:
    """One of them killed and replaced: 1,200 rows, five per cent more or less."""
    for _ in range(20):
        jobs(100)
    limited = under(rate="600/m")
    options = ["--in-process", "--lease", "8"]
    killed, *others = [start_worker(*options, **limited) for _ in range(4)]
    wait_until(lambda: Job.objects.filter(status="complete").exists())
    began = Job.objects.filter(status="complete").order_by("claimed_at").first().claimed_at  # type: ignore[union-attr]
    time.sleep(40)
    killed.signal(signal.SIGKILL)
    others.append(start_worker(*options, **limited))
    wait_until(
        lambda: (
            not Job.objects.filter(pk__gt=0).exclude(claimed_at__isnull=False).exists()
            or timezone.now() - began > timedelta(seconds=126)
        ),
        seconds=300,
        every=1.0,
    )
    within = Job.objects.filter(claimed_at__lt=began + timedelta(seconds=120)).count()
    print(f"{within} rows in two minutes, {done_within(60)} in the fullest minute")
    assert 1140 <= within <= 1260
    assert done_within(60) <= 630


# One after the other


def runs_of(key: str) -> list[str]:
    """Return the keys of the rows of a series, each time one of them was run, in that order."""
    ours = {str(pk) for pk in Job.objects.filter(note=key).values_list("pk", flat=True)}
    return [
        run for run in Ledger.objects.order_by("pk").values_list("key", flat=True) if run in ours
    ]


def test_a_series_goes_on_after_failures_in_order(start_worker: Start) -> None:
    limited = under(serial_by="note")
    for _ in range(3):
        for note in "ab":
            jobs(1, "stumble:1" if note == "a" else "work", note=note)
    workers = [start_worker("--in-process", "--drain", **limited) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert states() == {"complete": 6}
    for note in "ab":
        runs = [int(run) for run in runs_of(note)]
        assert runs == sorted(runs)
        assert set(Counter(runs).values()) == {2 if note == "a" else 1}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_hundred_series_with_failures_and_kills(start_worker: Start) -> None:
    """The effects of each key stand in the ledger in the order of its rows, whoever was killed meanwhile."""
    rows = [
        Job(act="stumble:1" if n % 7 == 3 else "sleep:0.01", note=f"order {n % 200}")
        for n in range(1600)
    ]
    Job.objects.bulk_create(rows)
    limited = under(serial_by="note")
    options = ["--in-process", "--threads", "4", "--lease", "4"]
    workers = [start_worker(*options, **limited) for _ in range(3)]
    for kills in range(1, 5):
        wait_until(lambda: states().get("complete", 0) >= 300 * kills, seconds=300)  # noqa: B023 - called in this turn of the loop
        workers.pop(0).signal(signal.SIGKILL)
        workers.append(start_worker(*options, **limited))
    wait_until(lambda: states() == {"complete": 1600}, seconds=400)
    runs: dict[str, list[int]] = {}
    key_of = {str(pk): note for pk, note in Job.objects.values_list("pk", "note")}
    for key in Ledger.objects.order_by("pk").values_list("key", flat=True):
        runs.setdefault(key_of[key], []).append(int(key))
    assert len(runs) == 200
    again = 0
    for same in runs.values():
        # A row that was run again comes right after itself, and nothing comes before its turn.
        assert all(before <= after for before, after in pairwise(same))
        again += len(same) - len(set(same))
    print(
        f"{again} runs beside the first, in order, over 200 keys; {os.getloadavg()[0]:.0f} at work"
    )
    assert again >= 200
