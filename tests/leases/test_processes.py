"""Named leases between real processes: killed, frozen, forked, and with clocks that are wrong."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.freezing import freeze
from tests.leases.support import is_held, stored
from tests.testapp.models import Ledger, Photo

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

    def told(self, seconds: float = 60) -> dict[str, Any]:
        """Return the next line that the process says."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else b""
        assert line, "the process said nothing"
        facts: dict[str, Any] = json.loads(line)
        return facts

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            self.process.send_signal(number)
        self.process.communicate(timeout=30)


def wait_for(state: Callable[[], Any], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not state():
        assert time.monotonic() < end, "the state awaited did not come"
        time.sleep(0.02)


@pytest.fixture
def start(process_env: dict[str, str]) -> Iterator[Start]:
    """Start a probe; what still runs at the end of the test is killed."""
    started: list[Probe] = []

    def begin(*words: object) -> Probe:
        started.append(Probe(process_env, *words))
        return started[-1]

    yield begin
    for probe in started:
        probe.end()


def holding(probe: Probe) -> list[Any]:
    """Wait until the process holds the lease, and return its token."""
    assert probe.told() == {"ready": True}
    token: list[Any] = probe.told()["token"]
    return token


@pytest.mark.timeout(400)
def test_one_process_at_a_time_whoever_dies_or_sleeps(start: Start) -> None:
    """No increment is lost, and the frozen process learns at its thaw that the lease has passed on."""
    Photo.objects.create()
    frozen = start("hold", "counter", 2)
    token = holding(frozen)
    # What it does between its check and its write is fenced by nothing, so no lease may end there.
    counting = [start("count", "counter", 20) for _ in range(4)]
    freeze(frozen.process.pid)
    wait_for(lambda: stored("counter").iteration > token[1] + 10, seconds=120)
    freeze(counting[0].process.pid)
    counting[0].signal(signal.SIGKILL)
    frozen.signal(signal.SIGCONT)
    frozen.go_on()
    thawed = frozen.told()
    assert (thawed["lost"], thawed["wrote"]) == (True, 0)
    assert "Lease 'counter'" in thawed["left"]
    seen = stored("counter").iteration
    wait_for(lambda: stored("counter").iteration > seen + 10, seconds=120)
    for probe in counting[1:]:
        probe.go_on()
    done = sum(probe.told()["done"] for probe in counting[1:])
    assert Photo.objects.get().counter == Ledger.objects.count() >= max(10, done)
    assert not is_held("counter")


def test_a_dead_holder_keeps_others_out_for_its_lease_and_no_longer(start: Start) -> None:
    Photo.objects.create()
    dead = start("hold", "report", 8)
    holding(dead)
    next_one = start("hold", "report", 60)
    assert next_one.told() == {"ready": True}
    # It renews as long as it lives.
    wait_for(lambda: stored("report").expires_at - stored("report").claimed_at > timedelta(0, 8.5))
    dead.signal(signal.SIGKILL)
    dead.process.wait(20)
    ends = stored("report").expires_at
    next_one.told()
    assert timedelta() <= stored("report").claimed_at - ends < timedelta(seconds=10)


def test_a_thawed_release_writes_nothing(start: Start) -> None:
    Photo.objects.create()
    frozen = start("hold", "report", 2)
    holding(frozen)
    freeze(frozen.process.pid)
    next_one = start("hold", "report", 60)
    holding(next_one)
    frozen.signal(signal.SIGCONT)
    frozen.go_on()
    assert "Lease 'report'" in frozen.told()["left"]
    frozen.process.wait(60)
    assert is_held("report")
    next_one.go_on()
    assert next_one.told() == {"lost": False, "wrote": 1, "left": "well"}
    assert stored("report").claimed_by is None


def test_a_forked_child_leaves_the_lease_to_its_parent(start: Start) -> None:
    told = start("fork", "report", 10).told()
    assert told["parent"] is True
    assert told["child"]["lost"] is True
    assert "the process that this one was forked from" in told["child"]["left"]
    assert told["child"]["own"] is True


@pytest.mark.parametrize("days", [1, -1])
def test_a_process_with_a_wrong_clock_does_what_the_others_do(start: Start, days: int) -> None:
    Photo.objects.create()
    holding(start("hold", "report", 60))
    wrong = start("wrong_clock", "report", days)
    assert wrong.told() == {"taken": False, "holder": stored("report").claimed_by}
    told = wrong.told()
    assert told["lost"] is False
    assert 0 < told["remaining"] <= 10
    assert is_held(f"report of {days}")
    row = stored(f"report of {days}")
    assert 0 <= (row.expires_at - row.claimed_at).total_seconds() < 60
    wrong.go_on()
    assert wrong.process.wait(60) == 0
    assert not is_held(f"report of {days}")
