"""When a worker looks for rows: every poll interval, and at once when what kept it from claiming is over."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_taskclaim.handlers import Handler
from django_taskclaim.switch import pause, resume
from django_taskclaim.worker import heartbeat
from django_taskclaim.worker.claimer import Claimer
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.service import Service
from tests.testapp.models import Job
from tests.worker.conftest import jobs

pytestmark = pytest.mark.django_db(databases="__all__")

JOBS = Handler(Job, print)


@pytest.fixture
def claimer() -> Claimer:
    """The claimer of a worker that looks once an hour, and has reported; there is a row for it."""
    jobs(1)
    options = WorkerOptions(("testapp.Job",), "worker", "default", poll=timedelta(hours=1))
    service = Service(options, [JOBS], InFlight())
    heartbeat.report(options, service.vitals, held=0, paused=False)
    return Claimer(options, [JOBS], service.inflight, service)


def look_in_vain(claimer: Claimer) -> None:
    with CaptureQueriesContext(connection) as asked:
        claimer._look(JOBS)
    assert not asked.captured_queries
    assert not claimer.claimed
    assert not claimer._wants(JOBS)


def look_at_once(claimer: Claimer) -> None:
    assert claimer._wants(JOBS)
    claimer._look(JOBS)
    assert claimer.claimed == 1


def test_as_soon_as_limits_are_known(claimer: Claimer) -> None:
    """Every worker begins with a look in vain, for the first answer about limits takes a moment."""
    look_in_vain(claimer)
    for attachment in claimer.service._attachments:
        attachment.turn(busy=False)
    look_at_once(claimer)


def test_as_soon_as_a_pause_is_over(claimer: Claimer) -> None:
    """And during the pause it asks for nothing."""
    claimer.service.limits.known = True
    pause(Job, using="default")
    claimer.service.read_switch()
    look_in_vain(claimer)
    claimer.service.read_switch()
    assert not claimer._wants(JOBS)
    resume(Job, using="default")
    claimer.service.read_switch()
    look_at_once(claimer)
    claimer.service.inflight.withdraw()
    assert not claimer._wants(JOBS), "once"
