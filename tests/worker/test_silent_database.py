"""A database that is silent for longer than a lease: no row is charged for it, and none fails."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from django.core.management import call_command
from django.db import connection, connections

from tests import servers
from tests.chaos.proxy import ProxyProcess
from tests.chaos.servers import EMBEDDED_MYSQL, serving
from tests.freezing import offspring
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until

pytestmark = pytest.mark.long

ROWS, LEASE, SECONDS = 40, "4", 10.0


class Silence(NamedTuple):
    """How workers reach the database, and what begins and ends its silence."""

    env: dict[str, str]
    begin: Callable[[], object]
    end: Callable[[], object]


@contextlib.contextmanager
def hang() -> Iterator[Silence]:
    """What is sent goes nowhere, both ways, and no connection is cut."""
    settings = connection.settings_dict
    with ProxyProcess(settings["HOST"] or "127.0.0.1", int(settings["PORT"])) as proxy:
        url = servers.url_of(settings | {"HOST": "127.0.0.1", "PORT": proxy.port})
        yield Silence({"DATABASE_URL": url}, lambda: proxy.tell("hang"), lambda: proxy.tell("pass"))


@contextlib.contextmanager
def freeze() -> Iterator[Silence]:
    """Every process of a server of the test's own stands still."""
    kind = EMBEDDED_MYSQL if connection.vendor == "mysql" else servers.EMBEDDED
    usual = connections["default"]
    # Not below pytest's folder, which the account of PostgreSQL may not enter.
    with tempfile.TemporaryDirectory() as home, serving(kind, Path(home)) as server:
        assert server is not None
        url = servers.urlsplit(server.url)
        own = connections.create_connection("default")
        own.settings_dict = usual.settings_dict | {"HOST": url.hostname, "PORT": url.port}
        own.settings_dict |= {"USER": url.username, "PASSWORD": "", "NAME": "frozen"}
        connections["default"] = own
        try:
            with own._nodb_cursor() as cursor:
                suffix = own.creation.sql_table_creation_suffix()
                cursor.execute(f"CREATE DATABASE frozen {suffix}")
            call_command("migrate", run_syncdb=True, verbosity=0)

            def begin() -> None:
                for pid in (server.pid, *offspring(server.pid)):
                    os.kill(pid, signal.SIGSTOP)

            def end() -> None:
                for pid in (*offspring(server.pid), server.pid):
                    os.kill(pid, signal.SIGCONT)

            yield Silence({"DATABASE_URL": servers.url_of(own.settings_dict)}, begin, end)
        finally:
            own.close()
            connections["default"] = usual


@contextlib.contextmanager
def lock() -> Iterator[Silence]:
    """Questions are answered, but no row can be written: beside SQLite's one writer, or while an index is made."""
    table = Job._meta.db_table
    begin, end = {
        "sqlite": ("BEGIN IMMEDIATE", "ROLLBACK"),
        "postgresql": (f"BEGIN; LOCK TABLE {table} IN SHARE MODE", "ROLLBACK"),
        "mysql": (f"LOCK TABLES {table} READ", "UNLOCK TABLES"),
    }[connection.vendor]
    other = connections.create_connection("default")
    with contextlib.closing(other), other.cursor() as cursor:
        yield Silence({}, lambda: cursor.execute(begin), lambda: cursor.execute(end))


needs_server = pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server")


@pytest.mark.parametrize(
    "way", [pytest.param(hang, marks=needs_server), pytest.param(freeze, marks=needs_server), lock]
)
def test_a_silence_longer_than_a_lease_charges_no_row(
    start_worker: Callable[..., Worker],
    process_env: dict[str, str],
    way: Callable[[], contextlib.AbstractContextManager[Silence]],
) -> None:
    """Two workers hold rows, a third one begins in the silence, and a loop looks; who runs twice was lost."""
    with way() as silence:
        env = {"TASKCLAIM_TEST_LEASE": LEASE, **silence.env}
        jobs(ROWS, "sleep:1.5")
        workers = [start_worker("--threads", "4", "--batch-size", "10", **env) for _ in range(2)]
        words = [sys.executable, "-m", "django", "release_expired", "testapp.Job"]
        loop = subprocess.Popen(
            [*words, "--loop", "--interval", "500ms"], env=process_env | env, stderr=-1
        )
        wait_until(lambda: states().get("complete", 0) > 3 and states().get("processing", 0) > 9)
        silence.begin()
        workers.append(start_worker("--threads", "4", "--batch-size", "10", **env))
        time.sleep(SECONDS)
        silence.end()
        wait_until(lambda: not {"open", "processing"} & states().keys())
        loop.terminate()
        loop.communicate(timeout=120)
        charged = Job.objects.exclude(attempts=0).count()
        runs = Counter(Ledger.objects.values_list("key", flat=True))
        lost = {key for event in workers[0].events("lost", "released") for key in event["keys"]}
        print(f"{charged} charged, {runs.total() - ROWS} extra runs, {states()}")
        assert (charged, states()) == (0, {"complete": ROWS})
        assert {key for key, times in runs.items() if times > 1} <= lost
