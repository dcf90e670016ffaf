"""An idle worker that is called looks at once."""

from collections.abc import Iterator

import pytest
from django.db import connection

from django_taskclaim.db.notify import called_for
from tests.sessions import end_sessions
from tests.testapp.models import Job
from tests.worker.conftest import Start, Worker, jobs, states, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, databases="__all__")]

#: Nobody looks by itself while a test lasts.
POLL = 600.0


@pytest.fixture(autouse=True)
def called() -> Iterator[None]:
    called_for.add(Job)
    yield
    called_for.discard(Job)


def done() -> bool:
    return set(states()) == {"complete"}


only_where_sessions_call = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="needs LISTEN and NOTIFY"
)


@pytest.fixture
def waiting_worker(start_worker: Start) -> Worker:
    """A worker whose first look is over: from now on only calls make it look, for its poll is minutes away."""
    jobs(1)
    worker = start_worker("--poll", str(POLL), TASKCLAIM_TEST_WAKE_UP="1")
    wait_until(done)
    return worker


@only_where_sessions_call
def test_a_called_worker_looks_at_once(waiting_worker: Worker) -> None:
    for _ in range(3):
        jobs(1)
        wait_until(done)
    Job.objects.reset(complete=True)
    wait_until(done)


@pytest.mark.long
@only_where_sessions_call
def test_a_worker_is_called_again_after_its_sessions_were_lost(waiting_worker: Worker) -> None:
    end_sessions()
    for _ in range(3):
        # One may be done because the new session looks for what came before it; then the next was called for.
        jobs(1)
        wait_until(done)
    assert waiting_worker.stop() == 0
