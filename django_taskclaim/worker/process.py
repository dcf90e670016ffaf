"""The threads of one process, started together and stopped in order."""

import threading
from collections.abc import Callable

from django_taskclaim.claim import clock
from django_taskclaim.error_text import redact
from django_taskclaim.formatting import counted
from django_taskclaim.handlers import Handler
from django_taskclaim.worker.claim_notes import Notes
from django_taskclaim.worker.claimer import Claimer
from django_taskclaim.worker.executors import Executor, HandlerThread, LoopThread
from django_taskclaim.worker.health import HangDetector
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.keeper import stack_of
from django_taskclaim.worker.options import ExitCode, WorkerOptions
from django_taskclaim.worker.outcomes import PutBack
from django_taskclaim.worker.records import logger, named, summary
from django_taskclaim.worker.service import Service

#: Seconds between two looks at threads that start.
LOOK = 0.05
#: How long a process may take to give rows back once nothing runs any more.
GIVE_BACK = 2.0
#: How long for each of the other threads, which have nothing left to do but to close their connections.
LAST_WORDS = 0.5


class Process:
    """Claimer, service and handler threads around the rows they hold."""

    def __init__(self, options: WorkerOptions, memory: object = None) -> None:
        self.options = options
        handlers = options.handlers()
        self.inflight = InFlight(Notes(memory))
        self.service = Service(options, handlers, self.inflight)
        self.claimer = Claimer(options, handlers, self.inflight, self.service)
        self.executors = self._executors(handlers)
        self.threads: list[Service | Executor | Claimer]
        self.threads = [self.service, *self.executors, self.claimer]
        self.hang_detectors = [HangDetector(thread) for thread in (self.service, self.claimer)]
        self._stopping = False

    def _executors(self, handlers: list[Handler]) -> list[Executor]:
        executors: list[Executor] = []
        if not all(handler.is_async for handler in handlers):
            executors += [
                HandlerThread(self.options, self.inflight, self.service, f"handler-{number}")
                for number in range(1, self.options.threads + 1)
            ]
        if any(handler.is_async for handler in handlers):
            executors.append(LoopThread(self.options, self.inflight, self.service, "loop"))
        return executors

    def start(self, ready: Callable[[], None] = lambda: None) -> bool:
        """Start the threads and call *ready* once each is at work, before the first claim; False if one has died."""
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            while not thread.started.wait(LOOK):
                if not thread.is_alive():
                    return False
        ready()
        self.claimer.opened.set()
        return True

    def has_ended(self) -> bool:
        """Say whether the work came to its own end: the claimer is done and every row it took is settled.

        Once the time is over, results that cannot be written are waited for no longer than a grace period.
        """
        if self.claimer.finished.is_set() and self.inflight.is_empty():
            return True
        end, grace = self.options.ends_at, self.options.grace.total_seconds()
        return end is not None and clock() > end + grace and self.inflight.runs_dry()

    def hung(self, beyond: float = 0.0) -> list[threading.Thread]:
        """Return those of claimer and service that hang, for so many seconds longer than would do."""
        return [one.thread for one in self.hang_detectors if one.hangs(beyond)]

    def must_be_replaced(self) -> bool:
        """Say whether a thread can only be got rid of with the process, or be had again with another one."""
        return self.service.keeper.has_overrun or bool(self._lost_threads())

    def log_why(self) -> None:
        """Log which threads the process has to be replaced for; a handler that has overrun is logged already."""
        for thread in self._lost_threads():
            what = (
                f"hangs; it is here:\n{stack_of(thread.ident)}" if thread.is_alive() else "has died"
            )
            text = f"{self.options.name}: the thread {thread.name} {what}"
            logger.error("%s", redact(text, keep_end=True))

    def _lost_threads(self) -> list[threading.Thread]:
        died = [thread for thread in self.threads if not thread.is_alive()]
        # A lease more: what it could not renew belongs to others by then, and is not run beside them.
        return [*died, *self.hung(self.service.keeper.longest_lease.total_seconds())]

    def stop(self) -> None:
        """Claim nothing more and give back what has not started; running rows go on."""
        if self._stopping:
            return
        self._stopping = True
        self.claimer.leave()
        put_back = self.inflight.close()
        logger.info(
            "%s stops: %s given back, %d running",
            self.options.name,
            counted(put_back, "row"),
            len(self.inflight.running()),
            extra={"event": "stopping"},
        )

    def is_idle(self) -> bool:
        """Say whether no row runs that anybody waits for, and nothing is left to write."""
        return not self.inflight.running() and not self.claimer.is_alive()

    def finish(self, *, recycle: bool = False) -> ExitCode:
        """Give back what still runs, sign off, and return how the process ends."""
        cut_short = self.inflight.running()
        for unit in cut_short:
            logger.warning("%s was cut short; it is given back", named(unit.called[0].row))
        self.claimer.leave()
        for executor in self.executors:
            executor.leave()
        for unit in cut_short:
            self.inflight.abandon(unit, PutBack("cut short"))
        end = clock() + GIVE_BACK
        self.claimer.join(GIVE_BACK / 2)
        self.inflight.give_up_results()
        self.claimer.join(GIVE_BACK / 2)
        self.service.leave()
        self.service.join(max(LAST_WORDS, end - clock()))
        if not cut_short:
            # A thread that closes its connection while the interpreter goes down may hold that up.
            for thread in self.executors:
                thread.join(LAST_WORDS)
        # What was cut short has just been given back.
        summary(self.options.name, self.service.counters, 0)
        for sentence in self.claimer.drain.set_aside:
            logger.info("%s", sentence)
        if recycle:
            return ExitCode.RECYCLE
        if cut_short:
            return ExitCode.CUT_SHORT
        if self.claimer.drain.left_over:
            logger.warning("%s", self.claimer.drain.left_over)
            return ExitCode.WORK_LEFT
        return ExitCode.ENDED
