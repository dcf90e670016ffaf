"""One worker process: its threads, started together and stopped in order, and the loop of its main thread.

The main thread waits for signals and for its supervisor, and asks the database for nothing.
"""

import contextlib
import gc
import select
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import NoReturn

from django_taskclaim.claim import clock
from django_taskclaim.connecting import work_in_schema
from django_taskclaim.error_text import redact
from django_taskclaim.formatting import counted
from django_taskclaim.worker.batch import Notes, PutBack
from django_taskclaim.worker.claimer import Claimer
from django_taskclaim.worker.executors import Executor, HandlerThread, LoopThread
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.keeper import stack_of
from django_taskclaim.worker.options import ExitCode, WorkerOptions
from django_taskclaim.worker.records import log_to_console, logger, named, summary, touch
from django_taskclaim.worker.service import Service
from django_taskclaim.worker.stop_signals import SignalPipe, leave, leave_at_last
from django_taskclaim.worker.threads import WorkerThread

#: Seconds that running rows may go on once the supervisor is gone.
ORPHAN_GRACE = 5.0
#: Seconds after which an orphan ends by force.
ORPHAN_END = 7.5
#: Seconds beyond the grace period after which a process that must be replaced ends by force.
AFTER_GRACE = 4.0
#: Seconds for giving everything back after "now".
NOW = 1.0
#: Seconds between two signs of life.
SIGN_EVERY = 1.0
#: Seconds between two looks at the threads, and while they start or a stop is under way.
LOOK_EVERY, SOON = 0.2, 0.02
#: Seconds for giving rows back once nothing runs any more.
GIVE_BACK = 2.0
#: Seconds for each of the other threads to close its connections.
LAST_WORDS = 0.5


class Process:
    """Claimer, service and handler threads around the rows they hold, and the loop of the main thread."""

    def __init__(
        self, options: WorkerOptions, memory: object = None, link: Connection | None = None
    ) -> None:
        self.options = options
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
        #: To the supervisor; None without one, and once it is dead.
        self._link = link
        self._grace: float = options.grace.total_seconds()
        #: By ``clock()``, when what still runs is cut short; None until the process stops.
        self._stop_by: float | None = None
        self._claims = self._recycling = False

    # The loop

    def run(self, signals: SignalPipe, send: Callable[[bytes], None]) -> ExitCode:
        """Work until the work is done or a stop is over, and return how the process ends.

        It sends ``ready`` once all threads work, and then a sign of life each second.
        """
        if signals.count_stops() or (self._link is not None and self._link.poll()):
            # It was told to stop, or orphaned, while it imported.
            return ExitCode.ENDED
        for thread in self.threads:
            thread.start()
        sign_due = 0.0
        while not self._has_ended():
            self._listen(signals)
            if not self._claims and all(thread.started.is_set() for thread in self.threads):
                # Before the first claim, so that a row that kills this process at once is no failed start.
                send(b"ready")
                self._claims = True
                self.threads.append(self.claimer)
                self.claimer.start()
            self.service.keeper.fence()
            if clock() >= sign_due:
                sign_due = clock() + SIGN_EVERY
                if self.is_well():
                    send(b"alive")
                elif self._stop_by is None:
                    self._recycle()
        return self._finish()

    def _has_ended(self) -> bool:
        """Say whether a stop is over, or the work came to its own end and every row is settled.

        Once the time is over, results that cannot be written are waited for no longer than a grace period.
        """
        if self._stop_by is not None:
            is_idle = not self.inflight.running() and not self.claimer.is_alive()
            return is_idle or clock() >= self._stop_by
        if self.claimer.finished.is_set() and self.inflight.is_empty():
            return True
        end = self.options.ends_at
        return end is not None and clock() > end + self._grace and self.inflight.runs_dry()

    def _listen(self, signals: SignalPipe) -> None:
        """Wait a moment for signals, and for the commands of the supervisor."""
        link = self._link
        pause = LOOK_EVERY if self._claims and self._stop_by is None else SOON
        sources: list[SignalPipe | Connection] = [signals] if link is None else [signals, link]
        ready, _, _ = select.select(sources, [], [], pause)
        if signals in ready and signals.count_stops():
            # Without a supervisor to count them, a second signal means now.
            again = link is None and self._stop_by is not None
            self.stop(NOW if again else self._grace)
        if link is None or link not in ready:
            return
        try:
            command = link.recv_bytes()
        except (EOFError, OSError):
            # The supervisor is dead.
            self._link = None
            self.stop(min(self._grace, ORPHAN_GRACE))
        else:
            self.stop(NOW if command == b"now" else self._grace)

    def _recycle(self) -> None:
        self._recycling = True
        if self._link is not None:
            # First, because what hangs may hold the lock of a log.
            leave_at_last(self._grace + AFTER_GRACE, ExitCode.RECYCLE)
        for fault in self._faults():
            logger.error("%s: the thread %s", self.options.name, redact(fault, keep_end=True))
        self.stop(self._grace)

    # Whether it is well

    def is_well(self) -> bool:
        """Say whether every thread goes on, and no handler has overrun; if not, only a new process helps."""
        return not (self.service.keeper.has_overrun or self._faults())

    def _faults(self) -> list[str]:
        """Return which threads have died or hang; a process that stops needs no claimer."""
        faults = []
        for thread in self.threads:
            if thread is self.claimer and self._stop_by is not None:
                continue
            if not thread.is_alive():
                faults.append(f"{thread.name} has died")
            elif thread.hangs():
                faults.append(f"{thread.name} hangs; it is here:\n{stack_of(thread.ident)}")
        return faults

    # Ending

    def stop(self, grace: float) -> None:
        """Claim nothing more and give back what has not started; running rows go on for *grace* seconds at most."""
        end = clock() + grace
        if self._stop_by is not None:
            self._stop_by = min(end, self._stop_by)
            return
        self._stop_by = end
        self.claimer.leave()
        put_back = self.inflight.close()
        logger.info(
            "%s stops: %s given back, %d running",
            self.options.name,
            counted(put_back, "row"),
            len(self.inflight.running()),
            extra={"event": "stopping"},
        )

    def _finish(self) -> ExitCode:
        """Give back what still runs, sign off, and return how the process ends."""
        cut_short = self.inflight.running()
        for item in cut_short:
            logger.warning("%s was cut short; it is given back", named(item.rows[0].row))
            self.inflight.abandon(item, PutBack("cut short"))
        self.claimer.leave()
        for executor in self.executors:
            executor.leave()
        end = clock() + GIVE_BACK
        if self._claims:
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
    options: WorkerOptions, link: Connection, memory: object, signals: SignalPipe
) -> NoReturn:
    """Be a child of a supervisor: obey ``stop`` and ``now``, and end when the supervisor has died.

    It ends by ``os._exit``, because a handler that sleeps would never be joined.
    """
    log_to_console(options.verbosity)
    work_in_schema(options.schema)
    end_with(link)
    process = Process(options, memory, link)
    # What is loaded by now stays. The garbage collector need not look through it again and again.
    gc.freeze()
    code = process.run(signals, partial(send, link))
    # A code without this message comes from a handler that ended the process.
    send(link, b"exiting")
    leave(code)


def run_in_process(options: WorkerOptions) -> int:
    """Be the whole worker, without supervisor or child, and return the exit code; Django is set up already."""
    with contextlib.closing(SignalPipe()) as signals:
        code = Process(options).run(signals, lambda word: touch(options.health_file))
        # Nobody starts another process.
        return ExitCode.CUT_SHORT if code == ExitCode.RECYCLE else code


def send(link: Connection, word: bytes) -> None:
    """Send the supervisor a word, unless it is dead, or frozen and reads nothing."""
    with contextlib.suppress(OSError):
        if select.select([], [link], [], 0)[1]:
            link.send_bytes(word)


def end_with(link: Connection) -> None:
    """Start a thread that ends the process soon after its supervisor.

    The main thread ends it in good order, unless it is held up by then, as in a log that nobody reads.
    """

    def follow() -> None:
        death = select.poll()
        death.register(link, 0)
        death.poll()
        leave_at_last(ORPHAN_END, ExitCode.CUT_SHORT)

    threading.Thread(target=follow, name="taskclaim-lifeline", daemon=True).start()
