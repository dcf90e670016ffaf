"""What renews the leases of a process needs nothing that its handlers could take from it."""

from collections.abc import Callable

import pytest
from django.db import connection

from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states

Start = Callable[..., Worker]

pytestmark = pytest.mark.long


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs Django's connection pool")
def test_a_pool_that_handlers_have_emptied_costs_no_lease(start_worker: Start) -> None:
    """A handler has the pool's one connection for longer than a lease; claims, renewals and results have their own."""
    keys = jobs(2, "hold:4.5")
    worker = start_worker(
        "--drain", "--lease", "3", model="testapp.AtomicJob", TASKCLAIM_TEST_POOL="1"
    )
    assert worker.wait(90) == 0
    assert states() == {"complete": 2}
    assert not worker.events("lost", "expired")
    assert set(Job.objects.filter(pk__in=keys).values_list("iteration", "attempts")) == {(0, 0)}


def test_a_handler_that_keeps_its_connection_busy_costs_no_lease(start_worker: Start) -> None:
    """A statement that runs for two leases on the handler's connection."""
    jobs(2, "busy:6")
    worker = start_worker("--drain", "--lease", "3", "--in-process")
    assert worker.wait(90) == 0
    assert states() == {"complete": 2}
    assert not worker.events("lost", "expired")
    assert Ledger.objects.count() == 2
