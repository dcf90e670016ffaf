"""The parent of the worker processes. It makes no database call, so nothing holds it up."""

import contextlib
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
from django_taskclaim.worker.options import AFTER_GRACE, NOW, ExitCode, WorkerOptions
from django_taskclaim.worker.records import logger, touch
from django_taskclaim.worker.stop_signals import STOP_SIGNALS, StopSignals, run_spawned

#: So many deaths in a row, each before the child was ready, end the attempts to start it.
HOPELESS = 5
#: The pause after the machine had no free process, memory or file for a child.
NO_ROOM = 5.0
#: Seconds between two checks of signals and of what is due. A message and the end of a child are noticed at once.
CHECK_EVERY = 0.25
#: A child is well while its last sign of life is younger than so many seconds.
SIGN_WITHIN = 30.0


@dataclass(slots=True)
class Child:
    """One of the children; its process may change."""

    options: WorkerOptions
    #: Here a process notes its claims, and its successor gives back what had not started.
    memory: object = field(default_factory=shared_memory)
    process: SpawnProcess | None = None
    #: Until it has ended and all that it sent is read.
    link: Connection | None = None
    #: What the process has sent: ``alive``, and ``exiting`` when it ends as asked, so its exit code can be trusted.
    sent: set[bytes] = field(default_factory=set)
    sign_at: float = 0.0
    failed_starts: int = 0
    #: By ``clock()``, when a process is started where there is none.
    start_at: float = 0.0
    #: Its exit code once no other process takes the place of the last one.
    code: int | None = None

    @property
    def is_well(self) -> bool:
        """Whether it works and has sent a sign of life lately, or has ended as asked."""
        is_alive = b"alive" in self.sent and clock() - self.sign_at < SIGN_WITHIN
        return is_alive or self.code is not None

    def start(self) -> None:
        """Start a process; OSError where the machine has no room for one."""
        # Before the signals are blocked: starting the tracker unblocks them.
        resource_tracker.ensure_running()
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        words = pickle.dumps(self.options), theirs, self.memory
        process = spawn.Process(target=run_spawned, args=words, name=self.options.name)
        # The child inherits the blocked signals, so it cannot die of one while it imports.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        theirs.close()
        self.process, self.link, self.sent = process, ours, set()

    def look(self) -> int | None:
        """Read what the process has sent since the last time, and return its exit code if it has ended since."""
        # In this order: what it sent right before its end counts.
        code = None if self.process is None else self.process.exitcode
        try:
            while self.link is not None and self.link.poll():
                self.sent.add(self.link.recv_bytes())
                self.sign_at = clock()
        except (EOFError, OSError):
            # It has ended, or is about to; its exit code says how.
            self.link = None
        if code is not None:
            self.process = self.link = None
        return code

    def stop(self, grace: float) -> None:
        """Tell the process how many seconds running rows may go on; one that has just ended does not read it."""
        with contextlib.suppress(OSError):
            if self.link is not None:
                self.link.send(grace)


class Supervisor:
    """Starts children, restarts those that crash, stops them all when asked, and leaves none behind."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.children = [Child(options.named(number)) for number in range(1, options.processes + 1)]
        #: By ``clock()``, when children are ended by force; infinity until a signal says stop.
        self._kill_at = math.inf

    def run(self) -> int:
        """Work until the work is done or a signal says stop, and return the exit code."""
        # Some parents leave it ignored, and then the end of a child goes unnoticed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with contextlib.closing(StopSignals()) as signals:
            try:
                # Its first turn hears a signal that came while the command parsed its options.
                while self._turn(signals):
                    # The end of a child closes its link.
                    wait([child.link for child in self.children if child.link], CHECK_EVERY)
                codes = [child.code or ExitCode.ENDED for child in self.children]
                return ExitCode.CUT_SHORT if ExitCode.CUT_SHORT in codes else max(codes)
            finally:
                for child in self.children:
                    if child.process is not None:
                        child.process.kill()

    def _turn(self, signals: StopSignals) -> bool:
        """Do what is due; False once all children have ended for good."""
        while signals.came():
            self._stop()
        for child in self.children:
            if (code := child.look()) is not None:
                self._judge(child, code)
            if child.process is None and child.code is None and clock() >= child.start_at:
                self._start(child)
            if clock() >= self._kill_at and child.process is not None:
                child.process.kill()
                logger.error("%s did not end in time and is killed", child.options.name)
        if all(child.is_well for child in self.children):
            touch(self.options.health_file)
        return any(child.code is None for child in self.children)

    def _start(self, child: Child) -> None:
        try:
            child.start()
        except OSError as error:
            # The others go on, and this one is tried again.
            logger.error("%s could not be started: %s", child.options.name, error)
            child.start_at = clock() + NO_ROOM

    # Ending

    def _stop(self) -> None:
        grace = self.options.grace.total_seconds() if self._kill_at == math.inf else NOW
        self._kill_at = min(self._kill_at, clock() + grace + AFTER_GRACE)
        for child in self.children:
            child.stop(grace)
            if child.process is None and child.code != ExitCode.CUT_SHORT:
                # Also where one has left work before.
                child.code = ExitCode.ENDED

    def _judge(self, child: Child, code: int) -> None:
        """Say what comes after a process that has ended with this code."""
        exits_cleanly = b"exiting" in child.sent
        if self._kill_at < math.inf:
            is_asked = exits_cleanly and code != ExitCode.CUT_SHORT
            child.code = ExitCode.ENDED if is_asked else ExitCode.CUT_SHORT
        elif exits_cleanly and code != ExitCode.RECYCLE:
            # By itself, or because somebody else stopped it.
            child.code = code
        else:
            self._restart(child, code)

    def _restart(self, child: Child, code: int) -> None:
        name = child.options.name
        child.failed_starts = 0 if b"alive" in child.sent else child.failed_starts + 1
        if child.failed_starts >= HOPELESS:
            logger.error("%s died %d times before it was ready; giving up", name, HOPELESS)
            child.code = ExitCode.CUT_SHORT
            return
        pause = 0.5 * 2**child.failed_starts if child.failed_starts else 0.1
        child.start_at = clock() + pause
        # The reason of a child that asked for its replacement is in its own log.
        how = f"died by signal {-code}" if code < 0 else f"ended with code {code}"
        logger.error("%s %s; a new one starts in %.1f s", name, how, pause)
