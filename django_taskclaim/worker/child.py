"""One worker process: its main thread waits for signals and for its supervisor, and asks the database for nothing."""

import contextlib
import gc
import select
import threading
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from django_taskclaim.claim import clock
from django_taskclaim.worker.health import HealthFile, goes_on
from django_taskclaim.worker.options import ExitCode
from django_taskclaim.worker.stop_signals import SignalPipe, leave, leave_at_last

#: How long running rows may go on once the supervisor is gone.
ORPHAN_GRACE = 5.0

#: When an orphan ends that could not end in good order.
ORPHAN_END = 7.5

#: What a process that must be replaced has beyond the grace period, in seconds.
AFTER_GRACE = 4.0

#: How long giving everything back may take after "now".
NOW = 1.0

#: Seconds between two signs of life.
SIGN_EVERY = 1.0

#: Seconds between two looks at the threads, and while a stop is under way.
LOOK_EVERY, STOPPING = 0.2, 0.02


def run_child(options: Any, link: Connection, memory: Any, signals: SignalPipe) -> None:
    """Be a child of a supervisor: says ``ready``, hears ``stop`` and ``now``, and takes an end of file for its death.

    It ends by ``os._exit``, because a handler that sleeps would never be joined.
    """
    from django_taskclaim.connecting import work_in_schema
    from django_taskclaim.worker.process import Process
    from django_taskclaim.worker.records import log_to_console

    log_to_console(options.verbosity)
    work_in_schema(options.schema)
    sender = Link(link)
    sender.end_with_supervisor()
    if signals.count_stops() or link.poll():
        # Told to stop, or orphaned, while it imported.
        sender.exit_cleanly(0)
    process = Process(options, memory)
    # What is loaded by now stays: looking through it for garbage again and again costs more than rows do.
    gc.freeze()
    # Ready before the first claim: a row that kills this process at once is no reason to give it up.
    if not process.start(sender.ready):
        process.log_why()
        # It ends without that word: it is a start that failed.
        leave(ExitCode.CUT_SHORT)
    sender.exit_cleanly(MainLoop(process, options, signals, sender).run())


def run_in_process(options: Any) -> int:
    """Be the whole worker, without supervisor or child, and return the exit code; Django is set up already."""
    from django_taskclaim.worker.process import Process

    health = HealthFile(options.health_file)
    with SignalPipe() as signals:
        process = Process(options)
        if signals.count_stops():
            return 0
        process.start()
        try:
            return MainLoop(process, options, signals, None, health).run()
        finally:
            health.remove()


class Link:
    """What a child says to its supervisor, from any thread, and hears from it; it never waits for a frozen one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._connection.fileno()

    def end_with_supervisor(self) -> None:
        """See to it, in a thread of its own, that the process ends soon after its supervisor.

        The main thread ends it in good order, unless it is held up by then, as in a log that nobody reads.
        """
        threading.Thread(target=self._follow, name="taskclaim-lifeline", daemon=True).start()

    def _follow(self) -> None:
        death = select.poll()
        death.register(self._connection, 0)
        death.poll()
        leave_at_last(ORPHAN_END, ExitCode.CUT_SHORT)

    def ready(self) -> None:
        """Say that the process works now."""
        self._send(b"ready")

    def alive(self) -> None:
        """Say that the threads go on."""
        self._send(b"alive")

    def exit_cleanly(self, code: int) -> NoReturn:
        """End the process in good order: a code without this word came from a handler that ended the process."""
        self._send(b"exiting")
        leave(code)

    def receive(self) -> bytes:
        """Return the next order; EOFError or OSError once the supervisor is dead."""
        return self._connection.recv_bytes()

    def _send(self, word: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            if select.select([], [self._connection], [], 0)[1]:
                self._connection.send_bytes(word)


class MainLoop:
    """The main thread's loop."""

    def __init__(
        self,
        process: Any,
        options: Any,
        signals: SignalPipe,
        link: Link | None,
        health: HealthFile | None = None,
    ) -> None:
        self.process = process
        self.signals = signals
        self.link = link
        self.health = health
        self._grace: float = options.grace.total_seconds()
        self._deadline: float | None = None
        self._recycling = False
        self._sign_due = 0.0

    def run(self) -> int:
        """Wait until the work is done or a stop is over, and return the exit code."""
        while True:
            self._listen()
            self.process.service.keeper.fence()
            self._show_life()
            if self._deadline is None and self.process.must_be_replaced():
                self._recycle()
            if self.process.service.stop_asked.is_set() and self._deadline is None:
                self._stop(self._grace)
            if self._deadline is None:
                if self.process.has_ended():
                    return int(self.process.finish())
            elif self.process.is_idle() or clock() >= self._deadline:
                return int(self.process.finish(recycle=self._recycling))

    def _listen(self) -> None:
        sources: list[Any] = [self.signals, *([self.link] if self.link is not None else [])]
        pause = LOOK_EVERY if self._deadline is None else STOPPING
        ready, _, _ = select.select(sources, [], [], pause)
        if self.signals in ready and self.signals.count_stops():
            # Without a supervisor to count them, a second signal means now.
            again = self.link is None and self._deadline is not None
            self._stop(NOW if again else self._grace)
        if self.link is not None and self.link in ready:
            self._obey(self.link)

    def _obey(self, link: Link) -> None:
        try:
            order = link.receive()
        except (EOFError, OSError):
            # The supervisor is dead; so are we, soon.
            self.link = None
            self._stop(min(self._grace, ORPHAN_GRACE))
            return
        self._stop(NOW if order == b"now" else self._grace)

    def _show_life(self) -> None:
        """Tell the supervisor, or the health file where there is none, that the threads go on."""
        if clock() < self._sign_due:
            return
        self._sign_due = clock() + SIGN_EVERY
        if not goes_on(self.process):
            return
        if self.link is not None:
            self.link.alive()
        elif self.health is not None:
            self.health.touch()

    def _recycle(self) -> None:
        self._recycling = True
        if self.link is not None:
            # First, for what hangs may hold the lock of a log.
            leave_at_last(self._grace + AFTER_GRACE, ExitCode.RECYCLE)
        self.process.log_why()
        self._stop(self._grace)

    def _stop(self, grace: float) -> None:
        end = clock() + grace
        self._deadline = end if self._deadline is None else min(end, self._deadline)
        self.process.stop()
