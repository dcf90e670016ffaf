"""Stopping a process in mid-work, as a laptop's lid or a paused virtual machine does."""

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from django.db import connection


def freeze(pid: int, seconds: float = 60) -> None:
    """Stop every thread; on SQLite not while one has the write lock, which nobody could then take from it."""
    end = time.monotonic() + seconds
    while True:
        os.kill(pid, signal.SIGSTOP)
        # Where the thread that is to see the signal waits for the disk, the others go on, and may get the lock yet.
        while not is_stopped(pid):
            assert time.monotonic() < end, f"process {pid} does not stop"
            time.sleep(0.01)
        if connection.vendor != "sqlite" or write_lock_is_free():
            return
        assert time.monotonic() < end, f"process {pid} has the write lock whenever it stops"
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)


def is_stopped(pid: int) -> bool:
    """Say whether every thread of the process stands still; ProcessLookupError where there is none any more."""
    states = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            states.append(stat(thread)[0])
    if set(states) <= {"Z"}:
        raise ProcessLookupError(pid)
    return set(states) == {"T"}


def offspring(pid: int) -> list[int]:
    """Return the processes that this one has started, as they are at this moment."""
    return [number for number, fields in processes() if int(fields[1]) == pid]


def processes() -> Iterator[tuple[int, list[str]]]:
    """Yield each process there is, with what ``stat`` says of it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield int(folder.name), stat(folder)


def worker_children(pid: int) -> list[int]:
    """Return the living processes that do the work of a supervisor."""
    found = []
    for child in offspring(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"spawn_main" in words:
                found.append(child)
    return found


def stat(folder: Path) -> list[str]:
    """Return what /proc says of a process or thread, from its state on."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def write_lock_is_free() -> bool:
    """Say whether nobody keeps the write lock for a second, as a frozen process would."""
    name = connection.settings_dict["NAME"]
    with contextlib.closing(sqlite3.connect(name, timeout=1, isolation_level=None)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
    return True
