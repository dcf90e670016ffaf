"""The demo's workers: real processes, each as `manage.py claimworker` starts it in production."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

MODEL = "photos.Photo"
STOPPED_WITHIN = 15.0
LONGEST_LIFE = 6 * 3600
"""Seconds after which a worker ends by itself, should the demo have died without stopping it."""


@dataclass(slots=True)
class Worker:
    """One `claimworker`: its supervisor and the supervisor's children are one process group."""

    name: str
    process: subprocess.Popen[bytes]
    records: Path
    output: Path
    stopping: bool = field(default=False, init=False)

    @classmethod
    def start(cls, name: str, folder: Path, *, threads: int) -> Self:
        """Start the worker; its records and what it prints go to files in `folder`."""
        records, output = folder / f"{name}.jsonl", folder / f"{name}.log"
        records.touch()
        with output.open("wb") as target:
            process = subprocess.Popen(
                command(name, threads),
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TASKCLAIM_RECORDS": str(records)},
                # Ctrl-C in the terminal reaches the demo alone, which then stops the workers.
                start_new_session=True,
            )
        return cls(name, process, records, output)

    @property
    def alive(self) -> bool:
        """Whether the supervisor still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL every process of the worker at once, as a power cut would."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ask the worker to finish, as systemd, Docker and Kubernetes do."""
        if self.alive:
            self.stopping = True
            self.process.terminate()

    def wait(self, deadline: float) -> None:
        """Wait for the end until `deadline` (monotonic), then end it."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
            return
        self.kill()

    @property
    def killed(self) -> bool:
        """Whether somebody ended it with SIGKILL who had not asked it to stop before."""
        return not self.stopping and self.process.poll() == -signal.SIGKILL

    @property
    def ended_badly(self) -> bool:
        """Whether it ended by itself, or not with exit code 0 when it was asked to."""
        return not self.killed and self.process.poll() not in (None, 0) and not self._had_not_begun

    @property
    def _had_not_begun(self) -> bool:
        """Whether the signal to stop met it before its first line, and so ended it as signals do."""
        met = self.stopping and self.process.poll() == -signal.SIGTERM
        return met and not self.records.stat().st_size

    @property
    def cause_of_death(self) -> str:
        """How it ended although nobody asked it to stop."""
        code = self.process.poll() or 0
        how = "was killed with" if self.killed else "ended by"
        return f"{how} {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    def last_words(self) -> str:
        """The end of what it printed."""
        return self.output.read_text(errors="replace")[-2000:].strip()


def command(name: str, threads: int) -> list[str]:
    """What one would type, or write into a unit file."""
    return [
        sys.executable,
        str(Path(__file__).resolve().parents[2] / "manage.py"),
        "claimworker",
        MODEL,
        f"--name={name}",
        f"--threads={threads}",
        f"--max-time={LONGEST_LIFE}",
    ]


@contextmanager
def crew(size: int, folder: Path, *, threads: int) -> Iterator[list[Worker]]:
    """`size` workers, none of which outlives the block."""
    workers: list[Worker] = []
    try:
        for number in range(1, size + 1):
            workers.append(Worker.start(f"worker-{number}", folder, threads=threads))
        yield workers
    finally:
        try:
            dismiss(workers)
        except KeyboardInterrupt:  # a second Ctrl-C: no patience left
            for worker in workers:
                worker.kill()
            raise


def dismiss(workers: list[Worker]) -> None:
    """Ask all to stop, then wait for all."""
    for worker in workers:
        worker.stop()
    deadline = time.monotonic() + STOPPED_WITHIN
    for worker in workers:
        worker.wait(deadline)
