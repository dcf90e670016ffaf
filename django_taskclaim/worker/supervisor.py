"""The parent of the worker processes. It makes no database call, so nothing holds it up."""

import contextlib
import logging
import math
import multiprocessing
import pickle
import signal
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from django_taskclaim.claim import clock
from django_taskclaim.worker.batch import shared_memory
from django_taskclaim.worker.health import HealthFile
from django_taskclaim.worker.options import ExitCode, WorkerOptions
from django_taskclaim.worker.stop_signals import STOP_SIGNALS, SignalPipe, run_spawned

logger = logging.getLogger("django_taskclaim.worker")

#: So many deaths in a row, each before the child was ready, end the attempts to start it.
HOPELESS = 5
LONGEST_PAUSE = 30.0
#: The pause after the machine had no free process, memory or file for a child.
NO_ROOM = 5.0
#: Seconds between a second signal and the end of the children by force.
NOW_LIMIT = 4.0
#: Seconds that a child may need beyond the grace period of its running rows.
AFTER_GRACE = 4.0
#: Seconds between two looks at what is due. A signal, a message and the end of a child are noticed at once.
LOOK_EVERY = 0.25
#: A child is well while its last sign of life is younger than so many seconds.
SIGN_WITHIN = 30.0


@dataclass(slots=True)
class Child:
    """One of the children; its process may change."""

    options: WorkerOptions
    #: Here a process notes its claims, and its successor gives back what had not started.
    memory: object = field(default_factory=shared_memory)
    process: SpawnProcess | None = None
    link: Connection | None = None
    ready: bool = False
    #: The process has sent that it ends as asked, so its exit code can be trusted.
    exits_cleanly: bool = False
    sign_at: float = 0.0
    failed_starts: int = 0
    start_at: float = 0.0
    code: int | None = None

    def kill(self) -> bool:
        """Kill its process, and say whether one was running."""
        if self.process is None or not self.process.is_alive():
            return False
        self.process.kill()
        return True

    @property
    def over(self) -> bool:
        return self.process is None and self.code is not None

    @property
    def well(self) -> bool:
        """Whether it works and has sent a sign of life lately, or has ended as asked."""
        return self.over or (self.ready and clock() - self.sign_at < SIGN_WITHIN)

    def begin(self, process: SpawnProcess, link: Connection) -> None:
        self.process, self.link = process, link
        self.ready, self.exits_cleanly = False, False

    def receive(self) -> None:
        """Read what the process has sent since the last time."""
        # Once it has ended there is no more to read; its exit code says how.
        with contextlib.suppress(EOFError, OSError):
            while self.link is not None and self.link.poll():
                word = self.link.recv_bytes()
                self.sign_at = clock()
                if word == b"ready":
                    self.ready, self.failed_starts = True, 0
                elif word == b"exiting":
                    self.exits_cleanly = True


class Supervisor:
    """Starts children, restarts those that crash, stops them all when asked, and leaves none behind."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self._spawn = multiprocessing.get_context("spawn")
        self.children = [Child(options.named(number)) for number in range(1, options.processes + 1)]
        self._health = HealthFile(options.health_file)
        self._signals = 0
        self._kill_at = math.inf

    def run(self) -> int:
        """Work until the work is done or a signal says stop, and return the exit code."""
        # Some parents leave it ignored, and then the end of a child goes unnoticed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with SignalPipe() as signals:
            try:
                # A signal may have come while the command parsed its options.
                self._hear(signals)
                while not self._all_over():
                    self._start_due()
                    self._wait(signals)
                    self._hear(signals)
                    self._reap()
                    self._kill_late()
                    self._show_health()
                return self._exit_code()
            finally:
                for child in self.children:
                    child.kill()

    # Starting

    def _start_due(self) -> None:
        for child in self.children:
            if child.process is not None or child.code is not None or clock() < child.start_at:
                continue
            try:
                self._start(child)
            except OSError as error:
                # The others go on, and this one is tried again.
                logger.error("%s could not be started: %s", child.options.name, error)
                child.start_at = clock() + NO_ROOM

    def _start(self, child: Child) -> None:
        # Before the signals are blocked: starting the tracker unblocks them.
        resource_tracker.ensure_running()
        ours, theirs = self._spawn.Pipe()
        options = child.options
        process = self._spawn.Process(
            target=run_spawned,
            args=(pickle.dumps(options), theirs, child.memory),
            name=options.name,
            daemon=False,
        )
        # The child inherits the blocked signals, so it cannot die of one while it imports.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        theirs.close()
        child.begin(process, ours)

    # Waiting

    def _wait(self, signals: SignalPipe) -> None:
        """Wait for a signal, a message of a child, or its end."""
        links = [child.link for child in self.children if child.link is not None]
        ends = [child.process.sentinel for child in self.children if child.process is not None]
        wait([signals.fileno(), *links, *ends], LOOK_EVERY)

    def _hear(self, signals: SignalPipe) -> None:
        for _ in range(signals.count_stops()):
            self._signalled()
        for child in self.children:
            child.receive()

    def _show_health(self) -> None:
        if all(child.well for child in self.children):
            self._health.touch()

    def _signalled(self) -> None:
        self._signals += 1
        is_first = self._signals == 1
        self._send(b"stop" if is_first else b"now")
        limit = self.options.grace.total_seconds() + AFTER_GRACE if is_first else NOW_LIMIT
        self._kill_at = min(self._kill_at, clock() + limit)

    def _send(self, order: bytes) -> None:
        for child in self.children:
            # One that has just ended does not read it; what it sent before is still to be read.
            with contextlib.suppress(OSError):
                if child.link is not None:
                    child.link.send_bytes(order)
            if child.process is None and child.code is None:
                child.code = ExitCode.ENDED

    # Ending

    def _reap(self) -> None:
        for child in self.children:
            process = child.process
            if process is None or process.is_alive() or (code := process.exitcode) is None:
                continue
            child.receive()
            process.close()
            child.process, child.link = None, None
            self._judge(child, code)

    def _judge(self, child: Child, code: int) -> None:
        if self._signals:
            asked = code in (ExitCode.ENDED, ExitCode.WORK_LEFT, ExitCode.RECYCLE)
            child.code = ExitCode.ENDED if child.exits_cleanly and asked else ExitCode.CUT_SHORT
        elif child.exits_cleanly and code != ExitCode.RECYCLE:
            # By itself, or because somebody else stopped it.
            child.code = code
        else:
            self._restart(child, code)

    def _restart(self, child: Child, code: int) -> None:
        name = child.options.name
        if child.exits_cleanly and code == ExitCode.RECYCLE:
            logger.warning("%s is replaced, as its log says", name)
            return
        child.failed_starts = 0 if child.ready else child.failed_starts + 1
        if child.failed_starts >= HOPELESS:
            logger.error("%s died %d times before it was ready; giving up", name, HOPELESS)
            child.code = ExitCode.CUT_SHORT
            return
        pause = min(LONGEST_PAUSE, 0.5 * 2**child.failed_starts) if child.failed_starts else 0.1
        child.start_at = clock() + pause
        logger.error("%s died %s; a new one starts in %.1f s", name, _how(code), pause)

    def _kill_late(self) -> None:
        if clock() < self._kill_at:
            return
        for child in self.children:
            if child.kill():
                logger.error("%s did not end in time and is killed", child.options.name)
        self._kill_at = math.inf

    def _all_over(self) -> bool:
        return all(child.over for child in self.children)

    def _exit_code(self) -> int:
        codes = {child.code for child in self.children}
        if ExitCode.CUT_SHORT in codes:
            return ExitCode.CUT_SHORT
        is_left = ExitCode.WORK_LEFT in codes and not self._signals
        return ExitCode.WORK_LEFT if is_left else ExitCode.ENDED


def _how(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with code {code}"
