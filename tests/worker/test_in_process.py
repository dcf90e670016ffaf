"""``--in-process --drain``: what cron starts on shared hosting, beside itself."""

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_taskclaim.signals import rows_claimed
from tests.testapp.models import Job, Ledger, QuickJob
from tests.worker.conftest import Worker, jobs, states, wait_until

Start = Callable[..., Worker]

DRAIN = ("--in-process", "--drain")

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def run(env: dict[str, str], *words: str, first: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a worker as cron does, and return its code and all that it said."""
    begin = f"{first}\nfrom django.core.management import execute_from_command_line as run\n"
    program = begin + "import sys\nrun(['manage.py', 'claimworker', 'testapp.Job', *sys.argv[1:]])"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.once
def test_it_is_quiet_unless_something_failed(process_env: dict[str, str]) -> None:
    """Cron mails what is printed: nothing of a good run, and of a bad one each row, with one traceback for each kind.

    ``-v 2`` shows every traceback.
    """
    jobs(3)
    good = run(process_env, *DRAIN)
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    keys = jobs(3, "permanent") + jobs(2, "lookup")
    bad = run(process_env, *DRAIN)
    assert (bad.returncode, bad.stdout) == (0, "")
    assert all(f" ERROR Failed testapp.Job {key}" in bad.stderr for key in keys)
    assert bad.stderr.count("Traceback (most recent call last)") == 2
    assert states() == {"complete": 3, "failed": 5}
    jobs(3, "permanent")
    assert run(process_env, *DRAIN, "-v", "2").stderr.count("Traceback (most") == 3


@pytest.mark.promise(1)
def test_runs_that_overlap_do_no_harm(start_worker: Start) -> None:
    """Each row is done once, and each run ends once nothing is left."""
    jobs(40)
    workers = [start_worker(*DRAIN, "--batch-size", "3") for _ in range(3)]
    assert {worker.wait() for worker in workers} == {0}
    assert set(Job.objects.values_list("status", "counter")) == {("complete", 1)}
    assert Ledger.objects.count() == 40


@pytest.mark.promise(13)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs a server that names clients")
@pytest.mark.parametrize(("model", "most"), [(QuickJob, 2), (Job, 3)])
def test_it_needs_threads_and_two_connections_at_most(
    start_worker: Start, model: Any, most: int
) -> None:
    """A handler that asks no database has none."""
    jobs(400)
    worker = start_worker(*DRAIN, model=model._meta.label, PGAPPNAME="cron-run")
    seen: set[int] = set()

    def count() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM pg_stat_activity"
                " WHERE application_name = 'cron-run' AND datname = current_database()"
            )
            seen.add(cursor.fetchone()[0])
        return worker.process.poll() is not None

    wait_until(count, every=0.005)
    assert max(seen) <= most


#: Have a signal handler, run workers in this process, then fork.
FORK_LATER = """
import os, signal, sys, warnings
import django
from django.core.management import call_command
warnings.simplefilter("ignore")
django.setup()
ours = lambda *args: None
signal.signal(signal.SIGTERM, ours)
for _ in range(2):
    call_command("claimworker", "testapp.Job", "--in-process", "--drain", verbosity=0)
    if not (pid := os.fork()):
        os._exit(0 if signal.getsignal(signal.SIGTERM) is ours else 7)
    assert os.waitpid(pid, 0)[1] == 0, "the fork has lost its signal handler"
"""


@pytest.mark.once
def test_the_process_keeps_its_signals_after_a_run(process_env: dict[str, str]) -> None:
    """It may go on and fork; nothing of the worker is left in it."""
    words = [sys.executable, "-c", FORK_LATER]
    done = subprocess.run(words, env=process_env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


#: Give connections of this process to Django's pool.
A_POOL = """
from django.conf import settings
settings.DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": 2}
"""


@pytest.mark.promise(14)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs Django's pool")
def test_a_pool_with_fewer_connections_than_handler_threads_is_named(
    process_env: dict[str, str],
) -> None:
    assert run(process_env, *DRAIN, "--threads", "2", first=A_POOL).stderr == ""
    small = run(process_env, *DRAIN, "--threads", "3", first=A_POOL)
    assert (small.returncode, small.stderr.count("\n")) == (0, 1)
    assert "The pool of the database 'default' has 2 connections" in small.stderr


@pytest.mark.once
def test_a_lease_of_one_run_is_not_that_of_the_next() -> None:
    leases: list[timedelta] = []

    def note(rows: list[Any], **facts: Any) -> None:
        leases.append(rows[0].expires_at - rows[0].claimed_at)

    rows_claimed.connect(note)
    try:
        for words in (["--lease", "300"], []):
            jobs(1)
            call_command("claimworker", "testapp.Job", "--in-process", "--once", *words)
    finally:
        rows_claimed.disconnect(note)
    assert leases == [timedelta(seconds=300), timedelta(seconds=60)]


@pytest.mark.once
@pytest.mark.promise(14)
def test_without_threads_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    jobs(1)
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(CommandError, match=r"needs 5 threads.*can't start new thread") as error:
        call_command("claimworker", "testapp.Job", *DRAIN, "--threads", "3")
    assert error.value.returncode == 2
    assert states() == {"open": 1}
