"""The page for Prometheus: its gauges are what the tables say, and its counters never exceed that."""

import os
import signal
from typing import Any

import pytest
from django.db import connection
from django.db.models import Sum
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from django_taskclaim.contrib.metrics import metrics
from django_taskclaim.monitoring.overview import seconds_due
from django_taskclaim.switch import pause
from tests.doctor.support import handling
from tests.factories import make
from tests.querysets.support import clock, set_raw
from tests.testapp.models import Job, Photo
from tests.worker.conftest import Start, jobs, states, wait_until

urlpatterns = [path("metrics", metrics)]

TOKEN = "t0ken-of-the-monitoring"
PROMETHEUS = {"accept": "application/openmetrics-text", "authorization": f"Bearer {TOKEN}"}

pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db(databases="__all__")]


@pytest.fixture(autouse=True)
def _token(settings: Any) -> None:
    settings.TASKCLAIM = {"METRICS_TOKEN": TOKEN, "PAGE_TIMEOUT": 60}


def figures(label: str) -> dict[str, float]:
    """Return every figure of one model, by its name and what it has beside model and database."""
    text = Client().get("/metrics", headers=PROMETHEUS).content.decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {
        ":".join([name, *sorted(set(labels.values()) - {label, "default"})]): float(value)
        for name, labels, value, *_ in samples
        if labels["model"] == label
    }


def test_gauges_are_what_the_table_says() -> None:
    make(Photo, 4)
    expired, failed = Photo.objects.claim_batch(2)
    set_raw(*make(Photo, 1), "status", "'done'")
    failed.claim.fail("no such picture", retry=False)
    set_raw(expired, "expires_at", clock("-1 HOUR"))
    pause(Photo, using="default")
    with handling(Photo):
        seen = figures("testapp.Photo")
    rows = {name: number for name, number in seen.items() if name.startswith("taskclaim_rows:")}
    expected = {"open": 2, "processing": 1, "complete": 0, "failed": 1, "paused": 0, "unknown": 1}
    assert rows == {f"taskclaim_rows:{status}": number for status, number in expected.items()}
    gauges = {"up": 1, "due": 2, "expired": 1, "paused": 1, "throttled": 0, "workers": 0}
    assert {name: seen[f"taskclaim_{name}"] for name in gauges} == gauges
    assert "taskclaim_workers" not in figures("testapp.Photo"), "people claim them"


@pytest.mark.parametrize(
    ("given", "status"),
    [({}, 403), ({"authorization": f"Bearer {TOKEN}x"}, 403), (PROMETHEUS, 200)],
)
def test_only_the_token_is_answered(given: Any, status: int) -> None:
    answer = Client().get("/metrics", headers=given)
    # Where a cache kept the page, it would give it to anybody.
    assert answer.status_code == status
    assert status == 403 or "no-store" in answer.headers["Cache-Control"]
    assert Client().post("/metrics", headers=PROMETHEUS).status_code == 405


@pytest.mark.once
def test_no_transaction_stands_around_all_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite it would keep writers waiting."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with CaptureQueriesContext(connection) as asked:
        figures("testapp.Photo")
    assert "SAVEPOINT" not in asked.captured_queries[0]["sql"]


def test_a_row_had_been_due_since_its_wait_was_over() -> None:
    make(Photo, 2)
    put_off = Photo.objects.earliest("pk")
    set_raw(put_off, "not_before", clock("-1 HOUR"))
    waited = {row.pk: seconds_due(row) for row in Photo.objects.claim_batch(2)}
    assert waited[put_off.pk] == pytest.approx(3600, abs=60)
    assert sorted(waited.values(), key=bool)[0] is None


@pytest.mark.once
def test_counters_never_exceed_the_table_while_workers_are_killed(start_worker: Start) -> None:
    """What a killed process had not reported is missing, and nothing else."""
    jobs(400, "sleep:0.05")
    worker = start_worker("--batch-size", "20", "--lease", "3")
    wait_until(lambda: counted_and_done()[0] > 0, what="a report")
    (child,) = worker.children()
    reported, _ = counted_and_done()
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: child not in worker.children())
    _, finished = counted_and_done()
    wait_until(lambda: states() == {"complete": 400})
    assert worker.stop() == 0
    counted, done = counted_and_done()
    # All that the successor did is counted.
    assert reported + done - finished <= counted
    seen = figures("testapp.Job")
    assert seen["taskclaim_handler_seconds_count"] == counted
    assert counted <= seen["taskclaim_rows_claimed_total"] <= 400 + 20
    charged = Job.objects.aggregate(tries=Sum("attempts"))["tries"]
    assert seen["taskclaim_rows_expired_total"] == charged
    assert seen["taskclaim_claims_lost_total"] == 0


def counted_and_done() -> tuple[float, int]:
    """Return the counter of completed rows, and how many are complete a moment later."""
    counted = figures("testapp.Job")["taskclaim_rows_completed_total"]
    done = Job.objects.filter(status="complete").count()
    assert counted <= done
    return counted, done
