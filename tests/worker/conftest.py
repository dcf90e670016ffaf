"""Real workers in real processes on the test database."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from django_taskclaim.handlers import Handler
from django_taskclaim.worker.counters import Counters
from django_taskclaim.worker.feeds import Feed
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.writer import Writer
from tests import jsonlog
from tests.doctor.support import handling
from tests.freezing import processes, worker_children
from tests.testapp.models import Job
from tests.waiting import looked_for, wait_until


class Worker:
    """One ``claimworker`` process."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self.log = log
        self.began = time.time()

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 120.0) -> int:
        """Return the exit code; fail if the process is still there after *seconds*."""
        if looked_for(lambda: self.process.poll() is not None, seconds):
            return int(self.process.returncode)
        pytest.fail(f"the worker was still there after {seconds} s; its log: {self.events()[-5:]}")

    def stop(self) -> int:
        """Tell the process to end, and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def children(self) -> list[int]:
        """Return the pids of living worker processes below this one."""
        return worker_children(self.pid)

    def session(self) -> list[int]:
        """Return the pids of every living process that this one has started, or that those have."""
        return [
            number
            for number, fields in processes()
            if int(fields[3]) == self.pid and fields[0] != "Z"
        ]

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the log records with one of these events, or all of them."""
        return [
            record
            for record in jsonlog.read(str(self.log))
            if not names or record.get("event") in names
        ]


#: Starts a worker with these options, see ``start_worker``.
Start = Callable[..., Worker]


MAIN = """
import sys
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *sys.argv[2:]])
"""


@pytest.fixture
def start_worker(process_env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start ``claimworker testapp.Job`` with more options; what still runs at the end of the test is killed."""
    log = tmp_path / "log.jsonl"
    env = process_env | {"TASKCLAIM_TEST_LOG": str(log), "TASKCLAIM_TEST_REAPER_INTERVAL": "0.5"}
    started: list[Worker] = []

    def start(*options: str, model: str = "testapp.Job", first: str = "", **more: str) -> Worker:
        """*first* is Python that the supervisor's process, not its children's, runs before anything else."""
        program = ["-c", f"{first}\n{MAIN}", "--"] if first else ["-m", "django"]
        words = [sys.executable, *program, "claimworker", *model.split(), "--poll", "0.2"]
        process = subprocess.Popen(
            [*words, *options],
            env=env | more,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        worker = Worker(process, log)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        # The whole session: children of a supervisor that was killed, too.
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(worker.pid, number)
            except ProcessLookupError:
                break
        worker.process.wait(120)
        if worker.process.stderr is not None:
            sys.stderr.write(worker.process.stderr.read())
            worker.process.stderr.close()


@pytest.fixture
def work(transactional_db: None, settings: Any) -> Callable[..., int]:
    """Run a worker in this process until *model* is drained, with *function* as its handler."""
    settings.TASKCLAIM = {"REAPER_INTERVAL": 0.5}

    def run(model: Any, function: Callable[[Any], Any], *words: str, **how: Any) -> int:
        """Return the exit code; *how* are the handler's options."""
        options = ("--in-process", "--drain", "--poll", "0.2", *words)
        try:
            with handling(model, function, **how):
                call_command("claimworker", model._meta.label, *options)
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return run


def writer_of(model: Any) -> tuple[Writer, InFlight, Handler]:
    """Return a writer without a worker, where it takes results from, and a handler of *model*."""
    handler, inflight = Handler(model, print), InFlight()
    feed = Feed(handler, WorkerOptions((), "w", "default"))
    writer = Writer("default", inflight, Counters(), [feed], lambda moment: False)
    return writer, inflight, handler


def write_all(writer: Writer) -> None:
    """Have the writer try until it has written every result."""

    def is_done() -> bool:
        writer.write()
        return writer.inflight.is_empty()

    wait_until(is_done)


def jobs(n: int, act: str = "work", **values: Any) -> list[int]:
    """Make *n* open jobs and return their keys."""
    before = set(Job.objects.values_list("pk", flat=True))
    Job.objects.bulk_create([Job(act=act, **values) for _ in range(n)])
    return sorted(set(Job.objects.values_list("pk", flat=True)) - before)


def states() -> dict[str, int]:
    """Return how many jobs are in each state that occurs."""
    return Counter(Job.objects.values_list("status", flat=True))
