"""A database that is away or silent: the same processes carry on, and no row is charged for it."""

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.db import connection, transaction
from django.db.utils import OperationalError

from tests import servers
from tests.chaos.proxy import ProxyProcess
from tests.locks import keeping_writers_out
from tests.proxy import HAS_A_SERVER, CommitProxy, swallowed, url_through
from tests.sessions import end_sessions, other_sessions
from tests.testapp.models import Effect, Job, Ledger
from tests.worker.conftest import Start, jobs, states, wait_until

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

needs_server = pytest.mark.skipif(not HAS_A_SERVER, reason="needs a server behind a network")


@contextlib.contextmanager
def proxied() -> Iterator[tuple[dict[str, str], Callable[[str], None]]]:
    """Return the environment of a worker behind a proxy, and what tells the proxy what to do."""
    settings = connection.settings_dict
    with ProxyProcess(settings["HOST"] or "127.0.0.1", int(settings["PORT"])) as proxy:
        yield {"DATABASE_URL": url_through(proxy.port)}, proxy.tell


@needs_server
@pytest.mark.promise(12)
def test_workers_outlive_their_sessions(start_worker: Start) -> None:
    """All sessions are ended twice; the same process does every row once and charges none."""
    jobs(40, "sleep:0.1")
    worker = start_worker("--threads", "2", "--batch-size", "10", "--lease", "30")
    for done in (5, 20):
        wait_until(lambda done=done: states().get("complete", 0) >= done)
        (child,) = worker.children()
        wait_until(lambda: len(other_sessions()) >= 2, what="there are sessions to end")
        end_sessions()
    wait_until(lambda: states() == {"complete": 40})
    assert worker.children() == [child]
    assert set(Job.objects.values_list("counter", "attempts")) == {(1, 0)}


@needs_server
@pytest.mark.promise(8, 12)
@pytest.mark.parametrize("way", ["refuse", pytest.param("hang", marks=pytest.mark.long)])
def test_a_row_that_runs_through_an_outage_is_kept(
    start_worker: Start, tmp_path: Path, way: str
) -> None:
    """The worker gives its lease up before the end, renews it before the reaper looks, and claims again."""
    with proxied() as (env, tell):
        (key,) = jobs(1, "until")
        end = tmp_path / "end"
        env["TASKCLAIM_TEST_END"] = str(end)
        worker = start_worker("--in-process", "--lease", "10", **env)
        wait_until(Ledger.objects.exists)
        tell(way)
        (lost,) = wait_until(lambda: worker.events("lost"), what="the worker gives its lease up")
        assert lost["at"] < Job.objects.get().expires_at.timestamp()
        wait_until(Job.objects.expired().exists)
        tell("pass")
        jobs(1)
        end.touch()
        wait_until(lambda: states() == {"complete": 2})
        assert worker.process.poll() is None
    job = Job.objects.get(pk=key)
    assert (job.attempts, job.iteration) == (0, 0)
    assert Ledger.objects.count() == 2


@needs_server
@pytest.mark.promise(12)
def test_a_claim_whose_commit_was_not_answered_charges_nobody(start_worker: Start) -> None:
    """The claim is committed, its answer is lost, and the database stays away for longer than a claim waits."""
    with CommitProxy() as proxy:

        def swallow_and_go_away(sent: bytes, client: Any, server: Any) -> None:
            proxy.refusing.set()
            swallowed(sent, client, server)

        # On PostgreSQL the claim is one statement that commits by itself.
        proxy.arm(swallow_and_go_away, heard=b"SKIP LOCKED")
        jobs(1)
        worker = start_worker("--in-process", "--lease", "30", DATABASE_URL=url_through(proxy.port))
        assert proxy.sprung.wait(120)
        assert states() == {"processing": 1}
        wait_until(lambda: "claiming and writing" in str(worker.events()))
        proxy.refusing.clear()
        wait_until(lambda: states() == {"complete": 1})
    job = Job.objects.get()
    assert (job.attempts, job.iteration, job.counter) == (0, 1, 1)
    assert len(worker.events("released")) == 1


@needs_server
@pytest.mark.promise(12)
def test_a_worker_does_not_spin_while_its_database_is_away(start_worker: Start) -> None:
    """It tries again a few times a second at most; without a pause these tries would take a few hundredths of one."""
    with CommitProxy() as proxy:
        jobs(1)
        worker = start_worker("--in-process", DATABASE_URL=url_through(proxy.port))
        wait_until(lambda: states() == {"complete": 1})
        proxy.refusing.set()
        end_sessions()
        wait_until(lambda: "claiming and writing" in str(worker.events()))
        before, began = proxy.refused, time.monotonic()
        wait_until(lambda: proxy.refused >= before + 15)
        assert time.monotonic() - began > 1
        proxy.refusing.clear()
        jobs(1)
        wait_until(lambda: states() == {"complete": 2})


@pytest.mark.promise(7)
@pytest.mark.skipif(not connection.features.has_select_for_update, reason="needs row locks")
def test_a_frozen_worker_keeps_no_row_locked(start_worker: Start) -> None:
    """The server ends its transaction; another worker does the row, and the frozen one writes nothing any more."""
    jobs(1, "hold:3600")
    options = ("--in-process", "--lease", "4")
    frozen = start_worker(*options, model="testapp.AtomicJob", TASKCLAIM_TEST_TIMEOUT="3000")

    def is_free() -> bool:
        with contextlib.suppress(OperationalError), transaction.atomic():
            return Job.objects.select_for_update(skip_locked=True).exists()
        return False

    # Before that the claim itself has it locked.
    wait_until(lambda: states() == {"processing": 1})
    wait_until(lambda: not is_free(), what="the handler has its row locked")
    frozen.signal(signal.SIGSTOP)
    wait_until(is_free, what="the server has ended the transaction")
    Job.objects.update(act="work")
    start_worker(*options, model="testapp.AtomicJob")
    wait_until(lambda: states() == {"complete": 1})
    frozen.signal(signal.SIGCONT)
    wait_until(lambda: frozen.events("lost"))
    assert Job.objects.get().counter == 1
    assert Effect.objects.count() == 1


# A database that takes questions and answers none


class Silence(NamedTuple):
    """How workers reach the database, and what begins and ends its silence."""

    env: dict[str, str]
    begin: Callable[[], object]
    end: Callable[[], object]


@contextlib.contextmanager
def hang() -> Iterator[Silence]:
    """What is sent goes nowhere, both ways, and no connection is cut."""
    with proxied() as (env, tell):
        yield Silence(env, lambda: tell("hang"), lambda: tell("pass"))


@contextlib.contextmanager
def lock() -> Iterator[Silence]:
    """Questions are answered, but no row can be written."""
    begin, end = keeping_writers_out(Job._meta.db_table)
    other = connection.copy()
    with contextlib.closing(other), other.cursor() as cursor:
        yield Silence({}, lambda: cursor.execute(begin), lambda: cursor.execute(end))


@pytest.mark.long
@pytest.mark.promise(8, 12)
@pytest.mark.parametrize("way", [pytest.param(hang, marks=needs_server), lock])
def test_a_silence_longer_than_a_lease_charges_no_row(
    start_worker: Start,
    process_env: dict[str, str],
    way: Callable[[], contextlib.AbstractContextManager[Silence]],
) -> None:
    """Two workers hold rows, a third starts in the silence, and ``release_expired --loop`` runs all the time."""
    with way() as silence:
        env = {"TASKCLAIM_TEST_LEASE": "4", **silence.env}
        jobs(40, "sleep:1.5")
        options = ("--threads", "4", "--batch-size", "10")
        workers = [start_worker(*options, **env) for _ in range(2)]
        words = [sys.executable, "-m", "django", "release_expired", "testapp.Job", "--loop"]
        often = {"TASKCLAIM_TEST_REAPER_INTERVAL": "0.5"}
        loop = subprocess.Popen(words, env=process_env | env | often)
        try:
            wait_until(lambda: states().get("complete", 0) > 3)
            wait_until(lambda: states().get("processing", 0) > 9)
            silence.begin()
            start_worker(*options, **env)
            running = Job.objects.filter(status="processing")
            wait_until(lambda: running.count() == Job.objects.expired().count(), what="all expire")
            silence.end()
            wait_until(lambda: states() == {"complete": 40})
        finally:
            loop.terminate()
            loop.wait(120)
    assert not Job.objects.exclude(attempts=0).exists()
    runs = Counter(Ledger.objects.values_list("key", flat=True))
    explained = {key for event in workers[0].events("lost", "released") for key in event["keys"]}
    assert {key for key, times in runs.items() if times > 1} <= explained


@pytest.mark.long
@pytest.mark.promise(11, 12)
@pytest.mark.parametrize(
    ("act", "code", "mode"), [("work", 0, ["--in-process"]), ("sleep:3600", 1, [])]
)
def test_a_stop_while_the_database_is_silent(
    start_worker: Start, act: str, code: int, mode: list[str]
) -> None:
    """No answer is waited for; the code is 1 where a row was cut short."""
    jobs(1, act)
    # SQLite has no server; the write lock, which every statement of a worker needs, never comes.
    with hang() if HAS_A_SERVER else lock() as silence:
        worker = start_worker("--grace", "1", *mode, **silence.env)
        wait_until(Ledger.objects.exists)
        if act == "work":
            wait_until(lambda: worker.events("completed"))
        silence.begin()
        assert worker.stop() == code
        wait_until(lambda: not worker.session(), what="nobody is left")


@pytest.mark.promise(11, 12)
def test_a_worker_starts_and_stops_where_no_database_answers(start_worker: Start) -> None:
    away = connection.settings_dict | {"HOST": "127.0.0.1", "PORT": servers.free_port()}
    if connection.vendor == "sqlite":
        away["NAME"] = "/nowhere/at/all.sqlite3"
    worker = start_worker("--grace", "1", DATABASE_URL=servers.url_of(away))
    wait_until(lambda: worker.events("trouble"), what="it has tried")
    assert worker.stop() == 0
