"""How a worker process begins and ends, and how SIGTERM and SIGINT reach it."""

import contextlib
import logging
import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

#: Signals that ask a worker to stop. A child does not count its own, because a process group gets them all.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def leave(code: int) -> NoReturn:
    """End the process at once, in the middle of its threads' work; what it has logged and printed is written first."""
    logging.shutdown()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def leave_at_last(seconds: float, code: int) -> None:
    """End the process after so many seconds, even if a lock, or a log that nobody reads, holds it up."""
    last = threading.Timer(seconds, os._exit, [code])
    last.daemon = True
    last.start()


class StopSignals:
    """Notes stop signals, for the main thread to ask for."""

    def __init__(self) -> None:
        # The one queue that a signal handler may write to while its thread reads.
        self._came = SimpleQueue[int]()
        self._pid = os.getpid()
        self._before: dict[int, Any] = {one: signal.signal(one, self) for one in STOP_SIGNALS}
        self._blocked: set[int | signal.Signals] = set()
        if hasattr(signal, "pthread_sigmask"):
            # Before any thread starts: a thread that has them blocked passes that on to every subprocess.
            self._blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def __call__(self, number: int, frame: object) -> None:
        """Be the handler of the signals."""
        if os.getpid() != self._pid:
            # They end a process that a handler has forked.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._came.put(number)

    def close(self) -> None:
        """Let signals do what they did before."""
        for one, handler in self._before.items():
            # They were blocked before: this process is about to end, and its threads do not block them.
            signal.signal(one, signal.SIG_IGN if one in self._blocked else handler)

    def came(self, seconds: float = 0.0) -> bool:
        """Wait at most so many seconds for a signal, and return whether one came; of several, each call takes one."""
        with contextlib.suppress(Empty):
            self._came.get(timeout=seconds)
            return True
        return False


def run_spawned(options: bytes, link: Connection, memory: object) -> None:
    """Set Django up, and be the child that the pickled *options* ask for.

    The process comes with the stop signals blocked, so it cannot die of one while it imports.
    """
    signals = StopSignals()
    import django

    django.setup()
    from django_taskclaim.worker.process import run_child

    run_child(pickle.loads(options), link, memory, signals)
