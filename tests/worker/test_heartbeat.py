"""What a process says of itself is whole, for others reckon with it."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models import F

from django_taskclaim.control.models import LiveSettings
from django_taskclaim.control.orders import change_settings
from django_taskclaim.control.terms import Terms
from django_taskclaim.handlers import Handler
from django_taskclaim.models import WorkerProcess
from django_taskclaim.overview import workers
from django_taskclaim.tokens import clock
from django_taskclaim.worker import heartbeat
from django_taskclaim.worker.inflight import InFlight, units_of
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.service import Service
from tests.factories import make
from tests.testapp.models import Job
from tests.worker.conftest import Worker, jobs, states

#: More than any column of bounded length would take.
MANY = (*(f"another_application.ModelNumber{number}" for number in range(300)), "testapp.Job")

#: Run before the worker, it refuses every report that the process makes of itself.
NO_REPORT = """
import django
django.setup()
from django_taskclaim.worker import heartbeat

def report(*args, **options):
    raise PermissionError("the table of workers is read-only")

heartbeat.report = report
"""


@pytest.mark.django_db(databases="__all__")
def test_a_model_named_last_is_served_like_the_first() -> None:
    """It is shown as served, and a rate is shared by all processes that serve it."""
    for name in ("one", "two"):
        options = WorkerOptions(MANY, name, "default")
        heartbeat.report(options, heartbeat.Vitals(), held=0, paused=False)
    assert [worker.serves(Job) for worker in workers("default")] == [True, True]
    change_settings(Job, {"rate_limit": 10}, by="ada", using="default")
    service = Service(options, [Handler(Job, print)], InFlight())
    terms = Terms(service)
    terms.change(LiveSettings.objects.all())
    terms.count_living("default")
    assert terms._limit(Job).rate == 5


@pytest.mark.django_db
def test_a_process_of_a_name_used_before_started_when_it_did() -> None:
    """In a container every process may be called like the one before it."""
    options = WorkerOptions(("testapp.Photo",), "one", "default")
    heartbeat.report(options, heartbeat.Vitals(), held=0, paused=False)
    WorkerProcess.objects.update(started_at=F("started_at") - timedelta(hours=1))
    (before,) = workers("default")
    again, vitals = WorkerOptions(("testapp.Job",), "one", "default"), heartbeat.Vitals()
    heartbeat.report(again, vitals, held=0, paused=False)
    (second,) = workers("default")
    heartbeat.report(again, vitals, held=0, paused=False)
    (third,) = workers("default")
    assert before.started_at < second.started_at == third.started_at
    assert third.labels == ("testapp.Job",)


@pytest.mark.django_db
def test_a_young_process_soon_tells_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports before it claims, and would then be seen with nothing for as long as one that is idle."""
    make(Job)
    handler, inflight = Handler(Job, print), InFlight()
    service = Service(WorkerOptions(("testapp.Job",), "one", "default"), [handler], inflight)
    began = clock()
    assert service._report_when_due()
    inflight.add(units_of(handler, Job.objects.claim_batch(1)))
    monkeypatch.setattr("django_taskclaim.worker.service.clock", lambda: began + 3)
    assert service._report_when_due()
    (worker,) = workers("default")
    assert worker.held == 1


def test_a_process_that_cannot_report_works_all_the_same(
    start_worker: Callable[..., Worker],
) -> None:
    """Monitoring never holds up work, and live settings are followed without a report."""
    change_settings(Job, {"batch_size": 2}, by="ada", using="default")
    jobs(5)
    worker = start_worker("--in-process", "--drain", first=NO_REPORT)
    assert worker.wait() == 0
    assert states() == {"complete": 5}
    assert max(event["rows"] for event in worker.events("claimed")) == 2
    assert not WorkerProcess.objects.exists()
