"""The workers of a run: real processes, each with its own way to the database and its own idea of the time."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.freezing import stat, worker_children
from tests.processes import wrong_clock

A_DAY = 86400


@dataclass(eq=False, slots=True)
class Seat:
    """A place in the crew; a worker in it dies and the next one follows."""

    in_process: bool = False
    proxied: bool = False
    #: Nothing is done to it from outside, so that there is always somebody to put rows back.
    calm: bool = False
    threads: int = 1


@dataclass(eq=False, slots=True)
class Worker:
    """One ``claimworker``, under a name that no other one ever has."""

    seat: Seat
    name: str
    process: "subprocess.Popen[bytes]"
    #: Frozen, or told to go: others leave it alone.
    busy: bool = False

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def claiming_pid(self) -> int:
        """Return the process that holds the rows, the worker's child or itself; LookupError while there is none."""
        if self.seat.in_process and self.alive:
            return self.process.pid
        if children := worker_children(self.process.pid):
            return children[0]
        raise LookupError("its child has not started yet")

    def tell_where_it_is(self) -> None:
        """Have every process of it write down the stack of each thread, and end."""
        self.signal_group(signal.SIGCONT)
        self.signal_group(signal.SIGABRT)

    def signal_group(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return


def is_running(pid: int) -> bool:
    """Say whether the process is there and no zombie."""
    try:
        return stat(Path(f"/proc/{pid}"))[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass(slots=True)
class Crew:
    """Fills the seats, again and again."""

    seats: list[Seat]
    env: Mapping[str, str]
    #: The database as seen through the proxy, where there is one.
    proxied_url: str
    options: list[str]
    rng: random.Random
    log: Path
    workers: list[Worker] = field(default_factory=list)
    exits: "Counter[int]" = field(default_factory=Counter)
    clocks: "Counter[str]" = field(default_factory=Counter)
    _started: int = 0

    def awake(self) -> set[int]:
        """Return the processes that hold rows, or begin to, but for the frozen ones."""
        found = set()
        for worker in self.workers:
            with suppress(LookupError, OSError):
                pid = worker.claiming_pid()
                if stat(Path(f"/proc/{pid}"))[0] not in "TZ":
                    found.add(pid)
        return found

    def fill(self) -> None:
        """Start a worker in each empty seat."""
        for worker in [one for one in self.workers if not one.alive]:
            self.exits[worker.process.returncode] += 1
            self.workers.remove(worker)
        for seat in self.seats:
            if seat not in [worker.seat for worker in self.workers]:
                self._start(seat)

    def _start(self, seat: Seat) -> None:
        self._started += 1
        name = f"w{self._started}."
        words = [sys.executable, "-m", "django", "claimworker", "chaos.Work", "--name", name]
        words += ["-v", "0", "--threads", str(seat.threads), *self.options]
        words += ["--in-process"] if seat.in_process else []
        env = {**self.env, "PYTHONFAULTHANDLER": "1", **self._clock()}
        if seat.proxied:
            env["DATABASE_URL"] = self.proxied_url
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                words,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(Worker(seat, name, process))

    def _clock(self) -> dict[str, str]:
        """Choose how wrong the clock is; two thirds of the workers are off by a day."""
        shift = self.rng.choice([0, -A_DAY, A_DAY])
        self.clocks["wrong" if shift else "right"] += 1
        return wrong_clock(shift)

    def stop(self, seconds: float = 20.0) -> None:
        """Ask all to stop, and end what has not gone in time."""
        for worker in self.workers:
            worker.signal_group(signal.SIGCONT)
            worker.process.terminate()
        for worker in self.workers:
            try:
                self.exits[worker.process.wait(seconds)] += 1
            except subprocess.TimeoutExpired:
                self.exits[-signal.SIGKILL] += 1
        self.end()

    def end(self) -> None:
        """Leave no process behind, the children of killed supervisors included."""
        for worker in self.workers:
            worker.signal_group(signal.SIGKILL)
            worker.process.wait()
