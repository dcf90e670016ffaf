"""``--in-process --drain``: what cron starts on shared hosting, beside a site and beside itself."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_taskclaim.policy import policy_for
from django_taskclaim.signals import rows_claimed
from django_taskclaim.tokens import carried_claim
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


def test_it_is_quiet_unless_something_failed(process_env: dict[str, str]) -> None:
    """Cron mails whatever is said: of a good run nothing, of a bad one the row, why and where."""
    jobs(3)
    good = run(process_env, *DRAIN)
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    (bad,) = jobs(1, "permanent")
    told = run(process_env, *DRAIN)
    assert (told.returncode, told.stdout) == (0, "")
    assert re.fullmatch(
        rf"\S+ ERROR Failed testapp\.Job {bad}, .*Permanent: job {bad} will never work; no try is left\n"
        rf"Traceback .*, in permanent\n.*Permanent: job {bad} will never work\n",
        told.stderr,
        re.DOTALL,
    )
    assert states() == {"complete": 3, "failed": 1}


@pytest.mark.parametrize(
    ("words", "first", "tracebacks"),
    [
        (["--in-process"], "", 2),
        ([], "", 2),
        (["--in-process", "-v", "2"], "", 5),
        (["-v", "2"], "", 5),
        (
            ["--in-process"],
            "from django.conf import settings; settings.TASKCLAIM = {'REDACT': 'builtins.str'}",
            2,
        ),
        (["--in-process"], "from django.conf import settings; settings.DEBUG = True", 5),
    ],
    ids=["in process", "child", "in process, all", "child, all", "redacted", "debug"],
)
def test_without_logging_the_first_failure_of_each_kind_brings_its_traceback(
    process_env: dict[str, str], words: list[str], first: str, tracebacks: int
) -> None:
    """A kind is a class raised at a place; ``-v 2`` and DEBUG show the tracebacks of all."""
    jobs(3, "permanent")
    jobs(2, "lookup")
    told = run(process_env, "--drain", *words, first=first)
    assert told.returncode == 0
    assert len(re.findall(r" ERROR Failed testapp\.Job ", told.stderr)) == 5
    assert told.stderr.count("Traceback (most recent call last)") == tracebacks
    assert states() == {"failed": 5}


def test_what_nobody_raised_is_said_once(process_env: dict[str, str]) -> None:
    """The worker itself fails rows whose columns nothing writes: there is no traceback, only the sentence."""
    jobs(3, "forget")
    debug = "from django.conf import settings; settings.DEBUG = True"
    told = run(process_env, *DRAIN, first=debug)
    assert told.returncode == 0
    assert told.stderr.count("nothing writes it") == 3
    assert states() == {"failed": 3}


@pytest.mark.parametrize(
    ("runs", "rows"), [(2, 20), pytest.param(6, 300, marks=pytest.mark.long)], ids=["two", "six"]
)
def test_runs_that_overlap_do_no_harm(start_worker: Start, runs: int, rows: int) -> None:
    """Each row is done once, and each run ends once nothing is left, whoever did it."""
    jobs(rows)
    crew = [start_worker(*DRAIN, "--batch-size", "3") for _ in range(runs)]
    assert {worker.wait() for worker in crew} == {0}
    assert states() == {"complete": rows}
    assert set(Job.objects.values_list("counter", flat=True)) == {1}
    assert Ledger.objects.count() == rows


@pytest.mark.long
@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs a server that names clients")
@pytest.mark.parametrize(
    ("model", "most"), [(QuickJob, 2), (Job, 3)], ids=lambda one: str(one)[-12:]
)
def test_it_needs_two_connections_and_one_for_a_handler_that_asks_the_database(
    start_worker: Start, model: Any, most: int
) -> None:
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
    assert max(seen) == most


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


def test_a_fork_after_a_run_keeps_its_signals(process_env: dict[str, str]) -> None:
    """The process that ran a worker may go on and fork; nothing of that worker is left in it."""
    jobs(1)
    done = subprocess.run(
        [sys.executable, "-c", FORK_LATER],
        env=process_env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert states() == {"complete": 1}


#: Give connections of this process to Django's pool.
A_POOL = """
from django.conf import settings
settings.DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": 2}
"""


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs Django's pool")
def test_a_pool_with_fewer_connections_than_handler_threads_is_named(
    process_env: dict[str, str],
) -> None:
    """Those of claims and renewals are none of the pool's."""
    jobs(2)
    enough = run(process_env, *DRAIN, "--threads", "2", first=A_POOL)
    assert (enough.returncode, enough.stderr) == (0, "")
    small = run(process_env, *DRAIN, "--threads", "3", first=A_POOL)
    assert small.stderr == (
        "The pool of the database 'default' has 2 connections for each process, and --threads 3 may need 3 at once: a"
        ' handler that gets none within the pool\'s timeout fails. Write OPTIONS = {"pool": {"max_size": 3}}, or'
        " --threads 2.\n"
    )
    assert small.returncode == 0
    assert states() == {"complete": 2}


# What a platform cannot do


def refused(*words: str) -> str:
    """Return the one sentence with which a worker refuses to begin."""
    jobs(1)
    with pytest.raises(CommandError) as error:
        call_command("claimworker", "testapp.Job", *words)
    assert error.value.returncode == 2
    assert states() == {"open": 1}
    return str(error.value)


def test_a_lease_of_one_run_is_not_that_of_the_next() -> None:
    """Nor of anybody else in the process."""
    leases: list[timedelta] = []

    def note(rows: list[Any], **facts: Any) -> None:
        leases.extend([carried_claim(rows[0]).lease, policy_for(Job).lease])

    rows_claimed.connect(note)
    try:
        for words in (["--lease", "300"], []):
            jobs(1)
            call_command("claimworker", "testapp.Job", "--in-process", "--once", *words)
    finally:
        rows_claimed.disconnect(note)
    own = policy_for(Job).lease
    assert leases == [timedelta(seconds=300), own, own, own]
    assert states() == {"complete": 2}


@pytest.mark.parametrize("name", ["sigtimedwait", "pthread_sigmask", "SIGCHLD"])
def test_without_posix_signals_the_way_out_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As on macOS and Windows: a supervisor is refused before anything is claimed."""
    monkeypatch.delattr(signal, name)
    assert f"it has no signal.{name}; add --in-process" in refused("--drain")


def test_without_threads_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    sentence = refused(*DRAIN, "--threads", "3")
    assert "needs 5 threads" in sentence
    assert "can't start new thread" in sentence


@pytest.mark.long
def test_without_posix_signals_a_drain_works_in_process(process_env: dict[str, str]) -> None:
    jobs(1)
    names = ("sigtimedwait", "SIGCHLD", "pthread_sigmask")
    first = "\n".join(f"import signal; del signal.{name}" for name in names)
    done = run(process_env, *DRAIN, first=first)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert states() == {"complete": 1}


def test_only_a_process_of_the_workers_own_stops_looking_for_garbage_in_what_is_loaded(
    start_worker: Start,
) -> None:
    """In one that may do other things besides, that is nobody's to decide."""
    for options, seen in (("--drain",), 0), (DRAIN, 1):
        jobs(1, "garbage")
        assert start_worker(*options).wait() == 0
        assert Ledger.objects.filter(note="0 frozen").count() == seen
