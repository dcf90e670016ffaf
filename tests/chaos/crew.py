"""The workers of a run: real processes, each with its own way to the database and its own idea of the time."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.freezing import stat

CLOCKS = Path(__file__).with_name("clocks")
A_DAY = 86400

#: Where Debian keeps libfaketime, which shifts the clock of everything in a process, C code included.
FAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)


@dataclass(slots=True)
class Seat:
    """A place in the crew; whoever sits in it dies and is followed by the next."""

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
    #: How wrong its clock is.
    clock: str
    #: Frozen, or told to go: others leave it alone.
    busy: bool = False

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def claiming_pid(self) -> int | None:
        """Return the process that holds the rows: the worker's child, or itself; None while there is none."""
        if self.seat.in_process:
            return self.process.pid if self.alive else None
        return next(iter(children(self.process.pid)), None)

    def tell_where_it_is(self) -> None:
        """Have every process of it write down the stack of each thread, and end."""
        self.signal_group(signal.SIGCONT)
        self.signal_group(signal.SIGABRT)

    def signal_group(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return


def children(parent: int) -> list[int]:
    """Return the worker processes that *parent* started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = (folder / "cmdline").read_bytes()
            if int(stat(folder)[1]) == parent and (b"spawn_main" in words or b": child " in words):
                found.append(int(folder.name))
    return found


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
    proxied_url: str | None
    options: list[str]
    rng: random.Random
    log: Path
    may_fake_time: bool
    workers: list[Worker] = field(default_factory=list)
    exits: "Counter[int]" = field(default_factory=Counter)
    clocks: "Counter[str]" = field(default_factory=Counter)
    _started: int = 0

    def fill(self) -> None:
        """Start a worker in each empty seat."""
        for worker in [one for one in self.workers if not one.alive]:
            self.exits[worker.process.returncode] += 1
            self.workers.remove(worker)
        taken = [id(worker.seat) for worker in self.workers]
        for seat in self.seats:
            if id(seat) not in taken:
                self._start(seat)

    def _start(self, seat: Seat) -> None:
        self._started += 1
        name = f"w{self._started}."
        words = ["-m", "django", "claimworker", "chaos.Work", "--name", name, "-v", "0"]
        words += ["--threads", str(seat.threads), *self.options]
        words += ["--in-process"] if seat.in_process else []
        clock, env = self._clock()
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *words],
                env={**self._env(seat), **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(Worker(seat, name, process, clock))

    def _env(self, seat: Seat) -> dict[str, str]:
        env = {**self.env, "PYTHONFAULTHANDLER": "1"}
        if seat.proxied and self.proxied_url is not None:
            env["DATABASE_URL"] = self.proxied_url
        return env

    def _clock(self) -> tuple[str, dict[str, str]]:
        """Choose how wrong the clock is; two thirds of the workers are off by a day."""
        kinds = ["right", "python", "library" if FAKETIME and self.may_fake_time else "python"]
        kind = self.rng.choice(kinds)
        shift = self.rng.choice([-A_DAY, A_DAY])
        path = os.pathsep.join([str(CLOCKS), self.env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self.clocks[kind] += 1
        return kind, {
            "right": {},
            "python": {"TASKCLAIM_CHAOS_SHIFT": str(shift), "PYTHONPATH": path},
            "library": {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME": f"{shift:+d}",
                # The clocks that a lease is measured by are set by nobody.
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
                "PYTHONPATH": path,
            },
        }[kind]

    def victims(self) -> list[Worker]:
        """Return the workers that something may be done to now."""
        return [
            worker
            for worker in self.workers
            if worker.alive and not worker.busy and not worker.seat.calm
        ]

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
