"""A database that takes questions and answers none: nothing waits for it longer than it said it would."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from tests import servers
from tests.chaos.proxy import ProxyProcess
from tests.testapp.models import Ledger
from tests.worker.conftest import NOTE_THE_BEGIN, Worker, jobs, wait_until

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True, databases="__all__")]

Start = Callable[..., Worker]

GRACE = 1.0
#: What a stop may take beyond the grace, by promise 11, and what a busy machine may need to start and end processes.
AFTER_GRACE, SLACK = 4.0, 2.0


class Server:
    """The database as a worker sees it, with its environment and the means to silence it."""

    def __init__(self, env: dict[str, str], silence: Callable[[], Any]) -> None:
        self.env, self.silence = env, silence


@pytest.fixture
def server() -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        settings = connections["default"].settings_dict
        if connection.vendor == "sqlite":
            # There is no server to fall silent; the write lock, which every statement of ours needs, never comes.
            holder = sqlite3.connect(settings["NAME"], isolation_level=None, timeout=30)
            stack.callback(holder.close)
            yield Server({}, lambda: holder.execute("BEGIN EXCLUSIVE"))
            return
        proxy = stack.enter_context(ProxyProcess(settings["HOST"], int(settings["PORT"])))
        there = settings | {"HOST": "127.0.0.1", "PORT": proxy.port}
        yield Server({"DATABASE_URL": servers.url_of(there)}, lambda: proxy.tell("hang"))


def leaves_in_time(worker: Worker) -> int:
    """Tell the worker to stop and return its exit code; fail if it stays longer than it may."""
    worker.signal(15)
    code = worker.wait(GRACE + AFTER_GRACE + SLACK)
    wait_until(lambda: not worker.session(), 2, "nobody is left")
    return code


@pytest.mark.parametrize("mode", [[], ["--in-process"]], ids=["supervised", "in-process"])
def test_a_stop_while_the_database_is_silent(
    start_worker: Start, server: Server, mode: list[str]
) -> None:
    """An idle worker whose statements are never answered leaves within the grace and 4 s, with 0."""
    jobs(1)
    worker = start_worker("--grace", str(GRACE), *mode, **server.env)
    wait_until(Ledger.objects.exists)
    wait_until(lambda: worker.events("completed"))
    server.silence()
    time.sleep(1.5)  # Longer than a poll: by now the threads wait for an answer.
    assert leaves_in_time(worker) == 0


def test_a_stop_while_a_row_runs_and_the_database_is_silent(
    start_worker: Start, server: Server
) -> None:
    """The row cannot be given back either; the code tells that it was cut short."""
    jobs(1, "sleep:60")
    worker = start_worker("--grace", str(GRACE), **server.env)
    wait_until(Ledger.objects.exists)
    server.silence()
    time.sleep(1.5)
    assert leaves_in_time(worker) == 1


@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server that can be silent")
@pytest.mark.parametrize("mode", [[], ["--in-process"]], ids=["supervised", "in-process"])
@pytest.mark.parametrize("after", [3, 15])
def test_a_stop_of_a_worker_that_has_never_heard_its_database(
    start_worker: Start, server: Server, tmp_path: Path, mode: list[str], after: float
) -> None:
    """While the command looks for its tables, and later, a stop ends it with 0."""
    server.silence()
    begun = tmp_path / "begun"
    env = server.env | {"TASKCLAIM_TEST_BEGUN": str(begun)}
    worker = start_worker("--grace", str(GRACE), *mode, first=NOTE_THE_BEGIN, **env)
    wait_until(begun.exists)
    time.sleep(after)
    assert worker.process.poll() is None
    assert leaves_in_time(worker) == 0


@pytest.mark.parametrize("mode", [[], ["--in-process"]], ids=["supervised", "in-process"])
def test_a_stop_while_nothing_listens(start_worker: Start, mode: list[str]) -> None:
    """A worker starts, and stops with 0, where no database is to be reached."""
    settings = connections["default"].settings_dict
    away = settings | {"HOST": "127.0.0.1", "PORT": servers.free_port()}
    if connection.vendor == "sqlite":
        away = settings | {"NAME": "/nowhere/at/all.sqlite3"}
    worker = start_worker("--grace", str(GRACE), *mode, DATABASE_URL=servers.url_of(away))
    wait_until(lambda: worker.events("trouble"), 30, "it has tried")
    assert leaves_in_time(worker) == 0
