"""The parent of the worker processes. It makes no database call, so nothing can keep it from its one duty."""

import contextlib
import logging
import multiprocessing
import pickle
import signal
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from django_taskclaim.claim import clock
from django_taskclaim.worker.claim_notes import shared_memory
from django_taskclaim.worker.health import HealthFile
from django_taskclaim.worker.options import ExitCode, WorkerOptions
from django_taskclaim.worker.spawned import run_spawned
from django_taskclaim.worker.stop_signals import STOP_SIGNALS

logger = logging.getLogger("django_taskclaim.worker")

#: Deaths in a row, each before the child was ready, after which a child cannot be kept alive.
HOPELESS = 5
LONGEST_PAUSE = 30.0
#: The pause after the machine had no process, memory or file to spare for a child.
NO_ROOM = 5.0
#: What a second signal leaves the children before they are killed.
NOW_LIMIT = 4.0
#: What a child may need beyond the grace of its running rows.
AFTER_GRACE = 4.0
#: Seconds between two looks at the children; a signal, and the end of a child, are noticed at once.
BUSY, QUIET = 0.2, 1.0
#: How old the last sign of life of a child may be while all is well.
SIGN_WITHIN = 30.0

WATCHED = {*STOP_SIGNALS, signal.SIGCHLD}


@dataclass(slots=True)
class Child:
    """One of the children; its process may change."""

    options: WorkerOptions
    #: Where a process notes what the one after it gives back.
    memory: Any = field(default_factory=shared_memory)
    process: Any = None
    link: Connection | None = None
    ready: bool = False
    #: The process has said that it ends in good order, so that its exit code means what it says.
    exits_cleanly: bool = False
    #: What the process has claimed so far, where that is limited.
    claimed: int = 0
    sign_at: float = 0.0
    failed_starts: int = 0
    start_at: float = 0.0
    code: int | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.is_alive()

    @property
    def over(self) -> bool:
        return self.process is None and self.code is not None

    @property
    def well(self) -> bool:
        """Whether it works and was heard of lately, or has ended as it should."""
        return self.over or (self.ready and clock() - self.sign_at < SIGN_WITHIN)

    def begin(self, process: object, link: Connection) -> None:
        self.process, self.link = process, link
        self.ready, self.exits_cleanly, self.claimed = False, False, 0

    def receive(self) -> None:
        """Take in what the process has said since the last time."""
        try:
            while self.link is not None and self.link.poll():
                self._take_in(self.link.recv_bytes())
        except (EOFError, OSError):
            # It has ended; how, its exit code says.
            self.link = None

    def _take_in(self, word: bytes) -> None:
        what, _, number = word.partition(b" ")
        if what == b"ready":
            self.ready, self.failed_starts, self.sign_at = True, 0, clock()
        elif what == b"alive":
            self.sign_at = clock()
        elif what == b"claimed":
            self.claimed = int(number)
        elif what == b"exiting":
            self.exits_cleanly = True


class Supervisor:
    """Starts children, restarts those that crash, stops them all when asked, and leaves none behind."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self._spawn = multiprocessing.get_context("spawn")
        self.children = [Child(options.named(number)) for number in range(1, options.processes + 1)]
        self._health = HealthFile(options.health_file)
        self._signals = 0
        #: Stop signals that came while they were not blocked.
        self._early = 0
        self._kill_at: float | None = None

    def run(self) -> int:
        """Work until the work is done or a signal says stop, and return the exit code."""
        # Ignored, as some parents leave it, children would never be seen to end.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        handlers = {one: signal.signal(one, self._note_early) for one in STOP_SIGNALS}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        try:
            # First: a signal may have come while the command was reading its words.
            self._wait(0)
            while not self._all_over():
                self._start_due()
                self._wait(QUIET if self._is_quiet() else BUSY)
                self._reap()
                self._kill_late()
                self._show_health()
            return self._exit_code()
        finally:
            for child in self.children:
                if child.running:
                    child.process.kill()
            self._health.remove()
            # Those who asked for a stop have had it.
            while signal.sigtimedwait(WATCHED, 0) is not None:
                continue
            for one, handler in handlers.items():
                signal.signal(one, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    # Starting

    def _start_due(self) -> None:
        for child in self.children:
            if child.process is not None or child.code is not None or clock() < child.start_at:
                continue
            if self.options.ends_at is not None and clock() >= self.options.ends_at:
                child.code = ExitCode.ENDED
            else:
                try:
                    self._start(child)
                except OSError as error:
                    # No memory, no process, no file left: the others go on, and this one is tried again.
                    logger.error("%s could not be started: %s", child.options.name, error)
                    child.start_at = clock() + NO_ROOM

    def _start(self, child: Child) -> None:
        # Launching its tracker, multiprocessing unblocks the stop signals: a handler notes what was waiting.
        # Then they are blocked again, before the child inherits that.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        ours, theirs = self._spawn.Pipe()
        options = child.options
        process = self._spawn.Process(
            target=run_spawned,
            args=(pickle.dumps(options), theirs, child.memory),
            name=options.name,
            daemon=False,
        )
        # The child inherits the blocked signals, so it cannot die of one while it imports.
        process.start()
        theirs.close()
        child.begin(process, ours)

    # Waiting

    def _wait(self, seconds: float) -> None:
        got = signal.sigtimedwait(WATCHED, 0 if self._early else seconds)
        asked, self._early = self._early, 0
        for _ in range(asked + (got is not None and got.si_signo in STOP_SIGNALS)):
            self._signalled()
        for child in self.children:
            child.receive()

    def _note_early(self, number: int, frame: object) -> None:
        self._early += 1

    def _is_quiet(self) -> bool:
        """Say whether nobody is starting or stopping."""
        return not self._signals and all(child.ready or child.over for child in self.children)

    def _show_health(self) -> None:
        if all(child.well for child in self.children):
            self._health.touch()

    def _signalled(self) -> None:
        self._signals += 1
        grace = self.options.grace.total_seconds()
        if self._signals == 1:
            self._send(b"stop")
            self._kill_at = clock() + grace + AFTER_GRACE
        else:
            self._send(b"now")
            self._kill_at = min(self._kill_at or clock() + NOW_LIMIT, clock() + NOW_LIMIT)

    def _send(self, order: bytes) -> None:
        for child in self.children:
            # One that has just ended does not hear it; what it said before is still to be read.
            with contextlib.suppress(OSError):
                if child.link is not None:
                    child.link.send_bytes(order)
            if child.process is None and child.code is None:
                child.code = ExitCode.ENDED

    # Ending

    def _reap(self) -> None:
        for child in self.children:
            if child.process is None or child.process.is_alive():
                continue
            code = child.process.exitcode
            child.receive()
            child.process.close()
            child.process, child.link = None, None
            self._judge(child, code)

    def _judge(self, child: Child, code: int) -> None:
        if self._signals:
            asked = code in (ExitCode.ENDED, ExitCode.WORK_LEFT, ExitCode.RECYCLE)
            child.code = ExitCode.ENDED if child.exits_cleanly and asked else ExitCode.CUT_SHORT
        elif child.exits_cleanly and code in (
            ExitCode.ENDED,
            ExitCode.CUT_SHORT,
            ExitCode.WORK_LEFT,
        ):
            # By itself, or told to by somebody else than us.
            child.code = code
        elif (left := child.options.left_after(child.claimed)) is None:
            # Another would claim more than was asked for.
            name = child.options.name
            logger.error("%s died %s; it has claimed all it may, so none follows", name, _how(code))
            child.code = ExitCode.CUT_SHORT
        else:
            child.options = left
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
        if self._kill_at is None or clock() < self._kill_at:
            return
        for child in self.children:
            if child.running:
                logger.error("%s did not end in time and is killed", child.options.name)
                child.process.kill()
        self._kill_at = None

    def _all_over(self) -> bool:
        return all(child.over for child in self.children)

    def _exit_code(self) -> int:
        codes = {child.code for child in self.children}
        if ExitCode.CUT_SHORT in codes:
            return ExitCode.CUT_SHORT
        return (
            ExitCode.WORK_LEFT
            if ExitCode.WORK_LEFT in codes and not self._signals
            else ExitCode.ENDED
        )


def _how(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with code {code}"
