"""One worker process: its threads, started together and stopped in order, and the loop of its main thread.

The main thread waits for signals, and one more for the supervisor; neither asks the database for anything.
"""

import contextlib
import gc
import select
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import NoReturn, TypeVar

from django_taskclaim.claim import clock
from django_taskclaim.connecting import start_thread, work_in_schema
from django_taskclaim.error_text import redact
from django_taskclaim.worker.batch import Notes, PutBack
from django_taskclaim.worker.claimer import Claimer
from django_taskclaim.worker.executors import Executor, HandlerThread, LoopThread
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import AFTER_GRACE, NOW, ExitCode, WorkerOptions
from django_taskclaim.worker.records import log_to_console, logger, named, summary, touch
from django_taskclaim.worker.service import Service
from django_taskclaim.worker.stop_signals import STOP_SIGNALS, StopSignals, leave, leave_at_last
from django_taskclaim.worker.threads import WorkerThread, stack_of

T = TypeVar("T")

#: How many seconds a silent database may hold up the start.
START_WAIT = 10.0
#: Seconds that running rows may go on once the supervisor is gone.
ORPHAN_GRACE = 5.0
#: Seconds after which an orphan ends by force.
ORPHAN_END = 7.5
#: Seconds between two signs of life.
SIGN_EVERY = 1.0
#: Seconds between two checks of the threads.
CHECK_EVERY = 0.1
#: Seconds for giving rows back once nothing runs any more.
GIVE_BACK = 2.0
#: Seconds for each of the other threads to close its connections.
LAST_WORDS = 0.5


class Process:
    """Claimer, service and handler threads around the rows they hold, and the loop of the main thread."""

    def __init__(
        self, options: WorkerOptions, memory: object = None, *, is_child: bool = False
    ) -> None:
        self.options, self._is_child = options, is_child
        handlers = options.handlers()
        self.inflight = InFlight(Notes(memory))
        self.service = Service(options, handlers, self.inflight)
        self.claimer = Claimer(self.service)
        are_async = {handler.is_async for handler in handlers}
        self.executors: list[Executor] = [
            HandlerThread(self.service, f"handler-{number + 1}")
            for number in range(options.threads if False in are_async else 0)
        ]
        if True in are_async:
            self.executors.append(LoopThread(self.service, "loop"))
        self.threads: list[WorkerThread] = [self.service, *self.executors]
        self._grace: float = options.grace.total_seconds()
        #: By ``clock()``, when what still runs is cut short: one for each who has asked for a stop.
        self._deadlines: list[float] = []
        self._recycling = False

    # The loop

    def run(self, signals: StopSignals, send: Callable[[bytes], None]) -> ExitCode:
        """Work until the work is done or a stop is over, and return how the process ends.

        It sends a sign of life each second, the first one before its first claim.
        """
        for thread in self.threads:
            thread.start()
        sign_due, is_stopping = 0.0, False
        while not self._has_ended():
            if signals.came(CHECK_EVERY):
                # Without a supervisor to count them, a second signal means now.
                self.stop(NOW if self._deadlines and not self._is_child else self._grace)
            if self._deadlines and not is_stopping:
                is_stopping = True
                running, facts = len(self.inflight.running()), {"event": "stopping"}
                logger.info("%s stops, %d running", self.options.name, running, extra=facts)
            self.service.keeper.fence()
            if clock() >= sign_due:
                sign_due = clock() + SIGN_EVERY
                faults = self.faults()
                if not faults:
                    send(b"alive")
                    if self.claimer not in self.threads:
                        # After the sign: a row that kills this process at once is no failed start.
                        self.threads.append(self.claimer)
                        self.claimer.start()
                elif not self._deadlines:
                    self._recycle(faults)
        return self._finish()

    def _has_ended(self) -> bool:
        """Say whether a stop is over, or the work came to its own end and every row is settled.

        Once the time is over, results that cannot be written are waited for no longer than a grace period.
        """
        if self._deadlines:
            is_idle = not self.inflight.running() and not self.claimer.is_alive()
            return is_idle or clock() >= min(self._deadlines)
        if self.claimer.finished.is_set() and self.inflight.is_empty():
            return True
        return clock() > self.options.ends_at + self._grace and self.inflight.runs_dry()

    def obey(self, link: Connection) -> None:
        """Stop when the supervisor says how many seconds are left, and end soon after the supervisor itself.

        It has a thread of its own, because the main thread may be held up, as in a log that nobody reads.
        """
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.stop(link.recv())
        # The supervisor is dead.
        leave_at_last(ORPHAN_END, ExitCode.CUT_SHORT)
        self.stop(min(self._grace, ORPHAN_GRACE))

    def _recycle(self, faults: list[str]) -> None:
        self._recycling = True
        if self._is_child:
            # First, because what hangs may hold the lock of a log.
            leave_at_last(self._grace + AFTER_GRACE, ExitCode.RECYCLE)
        for fault in faults:
            logger.error("%s cannot go on: %s", self.options.name, redact(fault, keep_end=True))
        self.stop(self._grace)

    # Whether it is well

    def faults(self) -> list[str]:
        """Return why only a new process helps: threads that have died or hang, and a handler that has overrun."""
        faults = ["a handler has overrun"] if self.service.keeper.has_overrun else []
        for thread in self.threads:
            if not thread.is_alive():
                faults.append(f"the thread {thread.name} has died")
            elif thread.hangs():
                faults.append(f"the thread {thread.name} hangs at:\n{stack_of(thread.ident)}")
        return faults

    # Ending

    def stop(self, grace: float) -> None:
        """Claim nothing more and give back what has not started; running rows go on for *grace* seconds at most.

        Any thread may call it, and again; the shortest time counts. It logs nothing, so it cannot be held up.
        """
        self._deadlines.append(clock() + grace)
        self.claimer.leave()
        self.inflight.close()

    def _finish(self) -> ExitCode:
        """Give back what still runs, sign off, and return how the process ends."""
        cut_short = self.inflight.running()
        for item in cut_short:
            logger.warning("%s was cut short; it is given back", named(item.rows[0].row))
            self.inflight.abandon(item, PutBack("cut short"))
        for thread in (self.claimer, *self.executors):
            thread.leave()
        if self.claimer not in self.threads and any(one.orphaned for one in self.service.feeds):
            # The stop came first. What the process before this one had not started goes back all the same.
            self.claimer.start()
        end = clock() + GIVE_BACK
        if self.claimer.is_alive():
            self.claimer.join(GIVE_BACK / 2)
            self.inflight.release_unwritten()
            self.claimer.join(GIVE_BACK / 2)
        self.service.leave()
        self.service.join(max(LAST_WORDS, end - clock()))
        if not cut_short:
            # A thread that closes its connection while the interpreter ends may hold that up.
            for executor in self.executors:
                executor.join(LAST_WORDS)
        # What was cut short has just been given back.
        summary(self.options.name, self.service.counters, 0)
        if self._recycling:
            return ExitCode.RECYCLE
        if cut_short:
            return ExitCode.CUT_SHORT
        return ExitCode.WORK_LEFT if self.claimer.leaves_work else ExitCode.ENDED


def run_child(
    options: WorkerOptions, link: Connection, memory: object, signals: StopSignals
) -> NoReturn:
    """Be a child of a supervisor: stop when it says so, and end when it has died.

    It ends by ``os._exit``, because a handler that sleeps would never be joined.
    """
    log_to_console(options.verbosity)
    work_in_schema(options.schema)
    process = Process(options, memory, is_child=True)
    start_thread("link", process.obey, link)
    # What is loaded by now stays. The garbage collector need not look through it again and again.
    gc.freeze()
    code = process.run(signals, lambda word: send(link, word))
    # A code without this message comes from a handler that ended the process.
    send(link, b"exiting")
    leave(code)


def run_in_process(options: WorkerOptions) -> int:
    """Be the whole worker, without supervisor or child, and return the exit code; Django is set up already."""
    with contextlib.closing(StopSignals()) as signals:
        code = Process(options).run(signals, lambda word: touch(options.health_file))
        # Nobody starts another process.
        return ExitCode.CUT_SHORT if code == ExitCode.RECYCLE else code


def found_unless_stopped(search: Iterable[T]) -> list[T]:
    """Return what *search* finds within START_WAIT; a stop signal ends the process with 0.

    It runs in another thread, because a driver that waits for a silent database may react to no signal.
    """
    found: list[T] = []
    thread = start_thread("question", found.extend, search)
    end = clock() + START_WAIT
    while thread.is_alive() and clock() < end:
        if hasattr(signal, "sigpending") and signal.sigpending() & {*STOP_SIGNALS}:
            leave(0)
        thread.join(0.02)
    return found


def send(link: Connection, word: bytes) -> None:
    """Send the supervisor a word, unless it is dead, or frozen and reads nothing."""
    with contextlib.suppress(OSError):
        if select.select([], [link], [], 0)[1]:
            link.send_bytes(word)
