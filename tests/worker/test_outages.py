"""Sessions that the server ends: the same processes carry on, and no row is charged for it."""

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from tests import servers
from tests.chaos.proxy import ProxyProcess
from tests.proxy import HAS_A_SERVER, CommitProxy, swallowed
from tests.sessions import end_sessions, other_sessions
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until

Start = Callable[..., Worker]

#: Run before the worker, it has the first claim of rows end in an error after its COMMIT, and a signal come with it.
UNHEARD = """
import os, signal
import django
django.setup()
from django.db import OperationalError
from django_taskclaim.querysets import ClaimQuerySet

def claim(self, request, claim=ClaimQuerySet._claim):
    if rows := claim(self, request):
        os.kill(os.getpid(), signal.SIGTERM)
        raise OperationalError("server closed the connection")
    return rows

ClaimQuerySet._claim = claim
"""


@pytest.mark.skipif(not HAS_A_SERVER, reason="needs a server whose sessions can be ended")
def test_workers_outlive_their_sessions(start_worker: Start) -> None:
    """All sessions are cut three times; the same process does every row once and charges none."""
    jobs(60, "sleep:0.1")
    worker = start_worker("--threads", "2", "--batch-size", "10", "--lease", "8")
    wait_until(lambda: Ledger.objects.count() > 2)
    (child,) = worker.children()
    for done in (5, 20, 35):
        wait_until(lambda done=done: states().get("complete", 0) >= done)
        wait_until(lambda: len(other_sessions()) >= 2, what="there are sessions to cut")
        end_sessions()
    wait_until(lambda: states() == {"complete": 60})
    assert worker.children() == [child]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert set(Job.objects.values_list("counter", flat=True)) == {1}
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@pytest.mark.parametrize("lease", [30, 4])
@pytest.mark.skipif(not HAS_A_SERVER, reason="needs a server behind a network")
def test_a_claim_that_was_never_answered_charges_nobody(start_worker: Start, lease: int) -> None:
    """The claim's COMMIT lands, its answer does not, and the database stays away for longer than a claim waits.

    A short lease, too, lasts until the rows have been given back.
    """
    settings = connection.settings_dict
    with CommitProxy(settings["HOST"] or "127.0.0.1", int(settings["PORT"])) as proxy:
        there = servers.url_of(settings | {"HOST": "127.0.0.1", "PORT": str(proxy.port)})

        def swallow_and_go_away(sent: bytes, client: Any, server: Any) -> None:
            proxy.refusing.set()
            swallowed(sent, client, server)

        proxy.arm(swallow_and_go_away, heard=b"unanswered")
        pk = jobs(1, "work:unanswered")
        worker = start_worker("--in-process", "--lease", str(lease), DATABASE_URL=there + plain())
        assert proxy.sprung.wait(60)
        assert states() == {"processing": 1}
        wait_until(lambda: "claiming and writing" in " ".join(messages(worker)))
        proxy.refusing.clear()
        wait_until(lambda: states() == {"complete": 1})
    (job,) = Job.objects.filter(pk__in=pk)
    assert (job.attempts, job.iteration, job.counter) == (0, 1, 1)
    (released,) = worker.events("released")
    assert released["reason"] == "the claim's COMMIT was not answered"


def test_a_stop_gives_back_what_was_never_heard_of(start_worker: Start) -> None:
    jobs(3)
    worker = start_worker("--in-process", "--lease", "30", first=UNHEARD)
    assert worker.wait() == 0
    assert states() == {"open": 3}
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@pytest.mark.skipif(not HAS_A_SERVER, reason="needs a server behind a network")
def test_a_row_that_runs_through_an_outage_is_kept(start_worker: Start) -> None:
    """Its lease could not be renewed and is over when the database is back; it is renewed before the reaper looks."""
    settings = connection.settings_dict
    with ProxyProcess(settings["HOST"] or "127.0.0.1", int(settings["PORT"])) as proxy:
        there = servers.url_of(settings | {"HOST": "127.0.0.1", "PORT": str(proxy.port)})
        (key,) = jobs(1, "sleep:12")
        worker = start_worker("--in-process", "--drain", "--lease", "4", DATABASE_URL=there)
        wait_until(Ledger.objects.exists)
        proxy.tell("refuse")
        wait_until(lambda: worker.events("lost"), 30, "the worker gives its lease up")
        wait_until(Job.objects.expired().exists, 30)
        proxy.tell("pass")
        assert worker.wait() == 0
    job = Job.objects.get(pk=key)
    assert (job.status, job.attempts, job.iteration) == ("complete", 0, 0)
    assert Ledger.objects.count() == 1


@pytest.mark.long
@pytest.mark.parametrize("way", ["refuse", "hang"])
@pytest.mark.skipif(not HAS_A_SERVER, reason="needs a server behind a network")
def test_claims_flow_again_soon_after_an_outage(start_worker: Start, way: str) -> None:
    """The same process claims within 10 s of the database's return, however often it tried in vain."""
    settings = connection.settings_dict
    with ProxyProcess(settings["HOST"] or "127.0.0.1", int(settings["PORT"])) as proxy:
        there = servers.url_of(settings | {"HOST": "127.0.0.1", "PORT": str(proxy.port)})
        jobs(1)
        worker = start_worker("--lease", "5", DATABASE_URL=there)
        wait_until(lambda: states() == {"complete": 1}, 60)
        children = worker.children()
        proxy.tell(way)
        time.sleep(15)
        proxy.tell("pass")
        jobs(1)
        wait_until(lambda: states() == {"complete": 2}, 10, "claims flow again")
        assert worker.children() == children


def plain() -> str:
    """Return what keeps a connection readable by a proxy."""
    return "?sslmode=disable" if connection.vendor == "postgresql" else ""


def messages(worker: Worker) -> list[str]:
    return [str(record["text"]) for record in worker.events()]
