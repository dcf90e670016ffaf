"""Named leases between real processes: killed, frozen, and with clocks that are wrong."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_taskclaim import named_lease
from tests.chaos.crew import CLOCKS
from tests.freezing import freeze
from tests.leases.support import is_held, stored
from tests.testapp.models import Ledger, Photo
from tests.worker.conftest import wait_until

Start = Callable[..., "Probe"]


class Probe:
    """One process of ``tests.leases.probe``."""

    def __init__(self, env: dict[str, str], *words: object) -> None:
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.leases.probe", *map(str, words)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A line that comes right behind another one stays in the pipe, where it is looked for.
            bufsize=0,
        )

    def next_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 120)
        line = self.process.stdout.readline() if ready else b""
        assert line, "the process said nothing"
        facts: dict[str, Any] = json.loads(line)
        return facts

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def end(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            self.process.send_signal(number)
        self.process.communicate(timeout=30)


@pytest.fixture
def start(process_env: dict[str, str]) -> Iterator[Start]:
    """Start a probe; what still runs at the end of the test is killed."""
    started: list[Probe] = []

    def begin(*words: object, **env: str) -> Probe:
        started.append(Probe(process_env | env, *words))
        return started[-1]

    Photo.objects.create()
    yield begin
    for probe in started:
        probe.end()


@pytest.mark.promise(1, 3)
def test_one_process_at_a_time_is_inside_while_another_is_frozen(start: Start) -> None:
    """No increment is lost; the frozen one learns after its thaw that the lease has passed on, and writes nothing."""
    frozen = start("hold", "counter", 2)
    token = frozen.next_line()["token"]
    # What they do between check and write is fenced by nothing, so none of their leases may end there.
    counting = [start("count", "counter", 30) for _ in range(3)]
    freeze(frozen.process.pid)
    wait_until(lambda: stored("counter").iteration > token[1] + 10)
    frozen.process.send_signal(signal.SIGCONT)
    frozen.go_on()
    thawed = frozen.next_line()
    assert (thawed["lost"], thawed["wrote"]) == (True, 0)
    assert "'counter': the lease" in thawed["left"]
    seen = stored("counter").iteration
    wait_until(lambda: stored("counter").iteration > seen + 5)
    for probe in counting:
        probe.go_on()
    done = sum(probe.next_line()["done"] for probe in counting)
    assert Photo.objects.get().counter == Ledger.objects.count() == done >= 10
    assert not is_held("counter")


@pytest.mark.promise(7)
def test_a_dead_holder_keeps_others_out_for_its_lease_and_no_longer(start: Start) -> None:
    dead = start("hold", "report", 10)
    dead.next_line()
    first = stored("report")
    # It renews as long as it lives.
    wait_until(lambda: stored("report").expires_at > first.expires_at)
    dead.process.kill()
    dead.process.wait(120)
    ends = stored("report").expires_at
    with named_lease("report", wait=120):
        assert stored("report").claimed_at >= ends


@pytest.mark.promise(6)
@pytest.mark.parametrize("days", [1, pytest.param(-1, marks=pytest.mark.once)])
def test_a_process_with_a_wrong_clock_does_what_the_others_do(start: Start, days: int) -> None:
    """It neither enters a lease that is held nor keeps its own for longer or shorter than it should."""
    path = os.pathsep.join([str(CLOCKS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    shifted = {"TASKCLAIM_CHAOS_SHIFT": str(days * 86400), "PYTHONPATH": path}
    with named_lease("taken", lease=600):
        wrong = start("hold", "report", 8, "taken", **shifted)
        assert wrong.next_line()["entered"] is False
    first = stored("report")
    # Renewed meanwhile, perhaps.
    assert timedelta(seconds=7) < first.expires_at - first.claimed_at < timedelta(hours=1)
    wait_until(lambda: stored("report").expires_at > first.expires_at, what="it renews its lease")
    assert stored("report").expires_at - first.expires_at < timedelta(hours=1)
    wrong.go_on()
    assert wrong.next_line()["wrote"] == 1
    assert not is_held("report")
