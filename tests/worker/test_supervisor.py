"""The supervisor: signals at any moment, children that die, its own death, and the exit code of every end."""

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from django_taskclaim import conf
from django_taskclaim.switch import pause
from django_taskclaim.worker.options import ExitCode
from django_taskclaim.worker.supervisor import AFTER_GRACE, HOPELESS
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import NOTE_THE_BEGIN, Worker, jobs, states, wait_until

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True, databases="__all__")]

#: Run in the supervisor, it lets the first start of a child fail as the system lets it fail.
NO_ROOM_AT_FIRST = """
import errno, os
from multiprocessing import context

def start_or_not(self, start=context.SpawnProcess.start, tries=[]):
    tries.append(self)
    if len(tries) == 1:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    start(self)

context.SpawnProcess.start = start_or_not
"""

#: Run in the supervisor, it has a stop signal come at the moment when multiprocessing unblocks it.
STOP_AT_THE_FIRST_START = """
import os, signal
from multiprocessing import resource_tracker

def ensure_running(ensure_running=resource_tracker.ensure_running):
    os.kill(os.getpid(), {number})
    ensure_running()

resource_tracker.ensure_running = ensure_running
"""

Start = Callable[..., Worker]

#: How many instants of a start are tried, four at a time, half of them in the first 2 s after the command's first line.
INSTANTS = 20


def texts(worker: Worker, *, level: str) -> list[str]:
    return [event["text"] for event in worker.events() if event["level"] == level]


# Starting


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("target", ["supervisor", "group", "in-process"])
def test_a_stop_at_any_moment_of_the_start(
    start_worker: Start, tmp_path: Path, number: signal.Signals, target: str
) -> None:
    """It ends with 0, claims nothing from then on, holds nothing and leaves nobody, at whatever instant it comes.

    Only before the command's first line may it end as signals do.
    """
    jobs(400, "sleep:0.02")
    mode = ["--in-process"] if target == "in-process" else ["--processes", "2"]
    judged = 0
    for turn in range(INSTANTS // 4):
        begun = [tmp_path / f"begun-{turn}-{place}" for place in range(4)]
        workers = [
            start_worker(
                *("--batch-size", "5", "--name", f"w{place}"),
                *mode,
                first=NOTE_THE_BEGIN,
                TASKCLAIM_TEST_BEGUN=str(begun[place]),
            )
            for place in range(4)
        ]
        told_at, heeded = [0.0] * 4, [False] * 4
        # Two of them some time after their start, which may be before the command's first line, two after that line.
        due = [worker.began + random.uniform(0, 2) for worker in workers[:2]] + [0.0, 0.0]
        while not all(told_at):
            for place in range(4):
                heeded[place] |= not told_at[place] and begun[place].exists()
                if not due[place] and heeded[place]:
                    # One at once: what a signal hits that is not held yet is over in a moment.
                    due[place] = time.time() + (0 if place == 2 else random.uniform(0, 2))
                if due[place] and not told_at[place] and time.time() >= due[place]:
                    (os.killpg if target == "group" else os.kill)(workers[place].pid, number)
                    told_at[place] = time.time()
            time.sleep(0.005)
        judged += sum(heeded)
        for worker, must, moment in zip(workers, heeded, told_at, strict=True):
            code = worker.wait()
            assert code == 0 or not must, f"{moment - worker.began:.3f} s after the start"
            wait_until(lambda worker=worker: not worker.session(), 5, "nobody is left")
        for event in workers[0].events("claimed"):
            place = int(event["holder"][1])
            assert event["at"] < told_at[place] + 1
        workers[0].log.unlink(missing_ok=True)
    print(f"{judged} of {INSTANTS} instants lay after the command's first line")
    assert judged >= INSTANTS / 2
    assert states().get("processing") is None
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_the_first_child_is_started(
    start_worker: Start, number: signal.Signals
) -> None:
    """What multiprocessing starts first unblocks the signal; it is heeded all the same, and kills nobody."""
    jobs(1)
    worker = start_worker(first=STOP_AT_THE_FIRST_START.format(number=int(number)))
    assert worker.wait() == 0
    assert states() == {"open": 1}


# Ending


@pytest.mark.parametrize("mode", [[], ["--in-process"]], ids=["supervised", "in-process"])
def test_signals_around_the_end_kill_nobody(start_worker: Start, mode: list[str]) -> None:
    """Signal upon signal until the process is gone: the exit code is that of the work, not of a signal."""
    jobs(1, "sleep:0.5")
    worker = start_worker("--once", *mode)
    wait_until(Ledger.objects.exists)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: states() == {"complete": 1}, 5)
    while worker.process.poll() is None:
        worker.signal(signal.SIGTERM)
        time.sleep(0.005)
    assert worker.wait() == 0


def test_a_second_signal_to_one_process(start_worker: Start) -> None:
    """Without a supervisor the process counts by itself: the second one gives everything back within 5 s."""
    jobs(2, "sleep:60")
    worker = start_worker("--in-process", "--grace", "50", "--batch-size", "2")
    wait_until(Ledger.objects.exists)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: states() == {"open": 1, "processing": 1}, 3)
    assert worker.process.poll() is None
    worker.signal(signal.SIGTERM)
    assert worker.wait(5) == 1
    assert states() == {"open": 2}
    released = worker.events("released")
    assert sorted(event["reason"] for event in released) == ["cut short", "not started"]


def test_a_child_that_is_killed_during_a_stop_makes_the_code_1(start_worker: Start) -> None:
    """Its rows were cut off; that is not how a stop is meant to end, and nobody takes its place."""
    jobs(1, "sleep:60")
    worker = start_worker("--grace", "30")
    wait_until(Ledger.objects.exists)
    (child,) = worker.children()
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.events("stopping"), 5)
    os.kill(child, signal.SIGKILL)
    assert worker.wait(5) == 1
    wait_until(lambda: not worker.session(), 5, "nobody is left")


def test_a_child_that_hangs_is_killed_at_last(start_worker: Start) -> None:
    """A frozen child cannot hold up a stop for longer than the grace and 4 s."""
    jobs(1, "sleep:60")
    worker = start_worker("--grace", "1")
    wait_until(Ledger.objects.exists)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    worker.signal(signal.SIGTERM)
    assert worker.wait(1 + 4 + 2) == 1
    wait_until(lambda: not worker.session(), 5, "nobody is left")


# Deaths


@pytest.mark.parametrize(
    ("code", "env"),
    [
        (7, {"TASKCLAIM_TEST_STILLBORN": "7"}),
        (1, {"TASKCLAIM_TEST_DEAD_THREAD": "taskclaim-service"}),
        (1, {"TASKCLAIM_TEST_DEAD_THREAD": "taskclaim-claimer"}),
        (1, {"TASKCLAIM_TEST_DEAD_THREAD": "taskclaim-handler-1"}),
    ],
    ids=["process", "service", "claimer", "handler"],
)
def test_a_stillborn_child_is_tried_again_with_growing_pauses(
    start_worker: Start, code: int, env: dict[str, str]
) -> None:
    """Five deaths, of the process or of one of its threads, before a child was ready: the worker gives up with 1."""
    jobs(1)
    worker = start_worker(**env)
    assert worker.wait(90) == 1
    said = [text for text in texts(worker, level="ERROR") if "has died" not in text]
    pauses = [float(text.split(" in ")[1].split()[0]) for text in said if "a new one" in text]
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert all(f"died with code {code}" in text for text in said[:-1])
    assert "died 5 times before it was ready; giving up" in said[-1]
    assert states() == {"open": 1}


def test_a_child_that_finds_no_room_is_tried_again(start_worker: Start) -> None:
    """The host has no process left for it; the supervisor lives, says so and starts it later."""
    jobs(3)
    worker = start_worker("--drain", first=NO_ROOM_AT_FIRST)
    assert worker.wait(60) == 0
    assert states() == {"complete": 3}
    (told,) = (one for one in worker.events() if "could not be started" in one["text"])
    assert told["level"] == "ERROR"


def test_a_stop_is_heeded_between_two_tries(start_worker: Start) -> None:
    """While a child that cannot be started is waited for, a stop ends the worker at once."""
    worker = start_worker(TASKCLAIM_TEST_STILLBORN="7")
    wait_until(lambda: "in 4.0 s" in "".join(texts(worker, level="ERROR")), 60)
    worker.signal(signal.SIGTERM)
    assert worker.wait(2) == 0


def test_deaths_at_work_are_no_stillbirths(start_worker: Start) -> None:
    """However often rows kill their process, another one takes over."""
    jobs(12, "die", priority=1)
    good = jobs(1)
    worker = start_worker("--drain", "--batch-size", "1", "--lease", "60")
    wait_until(lambda: Job.objects.filter(pk__in=good, status="complete").exists(), 90)
    assert worker.process.poll() is None
    deaths = texts(worker, level="ERROR")
    # A process that died may have held one more row, not started.
    assert len(deaths) > HOPELESS
    assert all(text.endswith("died with code 9; a new one starts in 0.1 s") for text in deaths)


@pytest.mark.parametrize("thread", ["claimer", "service"])
def test_a_child_with_a_thread_that_hangs_is_replaced(start_worker: Start, thread: str) -> None:
    """It would never do any work again; its rows go back as those of a dead child, and another one does them."""
    jobs(1, f"hang:{thread}")
    jobs(4, "sleep:0.1")
    worker = start_worker("--lease", "4", "--grace", "1", TASKCLAIM_TEST_ATTEMPTS="50")
    wait_until(Ledger.objects.exists)
    before = set(worker.children())
    Job.objects.update(act="work")
    wait_until(lambda: set(worker.children()) - before, what="another process")
    jobs(1)
    wait_until(lambda: states() == {"complete": 6})
    assert any(
        f"the thread taskclaim-{thread} hangs" in one for one in texts(worker, level="ERROR")
    )
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("act", ["sleep:0.1", "sleep:60"])
def test_children_of_a_killed_supervisor(start_worker: Start, act: str) -> None:
    """They claim nothing after 3 s, are gone within 8 s, and leave no row behind."""
    jobs(500, act)
    worker = start_worker("--processes", "2", "--batch-size", "5", "--lease", "30")
    wait_until(lambda: Ledger.objects.count() >= 2)
    worker.signal(signal.SIGKILL)
    killed_at = time.time()
    worker.process.wait(5)
    wait_until(lambda: not worker.session(), killed_at + 8 - time.time(), "all are gone")
    assert [event for event in worker.events("claimed") if event["at"] > killed_at + 3] == []
    assert states().get("processing") is None


def test_a_child_that_nobody_reads_ends_with_its_supervisor(start_worker: Start) -> None:
    """Standard error is a full pipe: every thread that has something to say, the main one too, waits for ever."""
    jobs(1, "shout")
    worker = start_worker("--lease", "2")
    wait_until(Job.objects.expired().exists, what="the process could not even renew")
    worker.signal(signal.SIGKILL)
    killed_at = time.time()
    worker.process.wait(5)
    wait_until(lambda: not worker.session(), killed_at + 8 - time.time(), "all are gone")


def test_children_that_are_starting_when_the_supervisor_is_killed(start_worker: Start) -> None:
    """Those that were importing leave too, and claim nothing."""
    jobs(50)
    worker = start_worker("--processes", "2")
    wait_until(worker.children, what="a child")
    worker.signal(signal.SIGKILL)
    worker.process.wait(5)
    wait_until(lambda: not worker.session(), 8, "all are gone")
    assert states() == {"open": 50}


# Wrong usage, and the table of exit codes


def test_wrong_usage_is_2_and_starts_nothing(start_worker: Start, tmp_path: Path) -> None:
    for words in (
        ["--filter", "nope=1"],
        ["--once", "--drain"],
        ["--processes", "0"],
        ["--in-process", "--processes", "2"],
        ["--health-file", str(tmp_path / "missing" / "file")],
        ["--database", "nope"],
    ):
        worker = start_worker(*words)
        assert worker.wait() == 2, words
        assert worker.process.stderr is not None
        said = worker.process.stderr.read()
        assert said.count("\n") == 1, said
        assert "Traceback" not in said


def test_a_stop_of_a_paused_drain_is_0(start_worker: Start) -> None:
    """Work left is told by 3 only where the drain itself came to its end."""
    jobs(2, "sleep:5")
    worker = start_worker("--drain", "--batch-size", "1")
    wait_until(Ledger.objects.exists)
    pause(Job)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert states() == {"complete": 1, "open": 1}


def test_a_drain_of_many_processes_is_3_if_one_leaves_work(start_worker: Start) -> None:
    jobs(2)
    pause(Job)
    assert start_worker("--drain", "--processes", "2").wait() == 3


def test_the_unit_of_the_docs_fits() -> None:
    """systemd restarts what failed, never what was called wrongly, and kills no worker before its stop is over."""
    unit = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
    settings = dict(re.findall(r"^(Restart\w*|TimeoutStopSec)=(.+)$", unit, re.MULTILINE))
    assert settings["Restart"] == "on-failure"
    assert settings["RestartPreventExitStatus"] == str(int(ExitCode.USAGE))
    assert float(settings["TimeoutStopSec"]) > conf.DEFAULTS["GRACE"] + AFTER_GRACE
