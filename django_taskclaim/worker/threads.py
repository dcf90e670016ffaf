"""What the threads of a worker process have in common."""

import math
import sys
import threading
import traceback
from collections.abc import Callable

from django_taskclaim.connecting import call_and_close, drop_broken
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.records import log_rarely

#: Looks without a sign, one a second, after which a thread is taken for hung: three times the 10 s or so that bound
#: each of its calls (``service_options``).
HUNG_AFTER = 30

#: Modules that wait for a database, and those through which they wait.
DRIVERS = ("django.db", "psycopg", "MySQLdb", "sqlite3")
SOCKETS = ("selectors", "socket", "ssl")


class WorkerThread(threading.Thread):
    """A thread that goes on after errors, until it is to leave."""

    def __init__(self, options: WorkerOptions, inflight: InFlight, name: str) -> None:
        super().__init__(name=f"taskclaim-{name}", daemon=True)
        self.options, self.inflight = options, inflight
        #: Set when it is to end.
        self.leaving = threading.Event()
        #: How often it was looked at since it began a part of its work; never, where a part may take its time.
        self.looks = -math.inf

    def run(self) -> None:
        """Work, and close the connections that this thread has opened, however that ends."""
        call_and_close(self.work)

    def work(self) -> None:
        """Do what this thread is for, until it is to leave."""
        raise NotImplementedError

    def leave(self) -> None:
        """Let it begin nothing more, and end once the work under way is done."""
        self.leaving.set()
        self.inflight.wake()

    def attempt(self, what: str, job: Callable[[], object]) -> BaseException | None:
        """Do a part of the work; an error is logged and returned, and the connection is given up."""
        try:
            job()
        except BaseException as error:
            # SystemExit included: a receiver of a signal that raises it must not end this thread.
            log_rarely(f"{self.options.name}: {what}", error)
            drop_broken(self.options.using)
            return error
        return None

    def hangs(self) -> bool:
        """Look, and say whether this thread has neither gone on nor waited for its database for HUNG_AFTER looks.

        A silent database hangs nobody: PostgreSQL's driver waits for as long as the server keeps the connection, and a
        process that was replaced for that would be replaced again and again. No time is measured, for the whole process
        may have been frozen, or one thread may have had the GIL.
        """
        waits = _waits_for_database(self.ident)
        self.looks = min(self.looks, 0) if waits else self.looks + 1
        return self.looks > HUNG_AFTER


def stack_of(thread: int | None) -> str:
    """Return where a thread is at this moment."""
    frame = sys._current_frames().get(thread or 0)
    return "".join(traceback.format_stack(frame)) if frame else "its thread is gone"


def _waits_for_database(thread: int | None) -> bool:
    """Say whether a thread is in a module of DRIVERS, or in one of SOCKETS that was called there."""
    # Of a thread that has just ended, this one's own stack, which waits for nothing.
    stack = traceback.walk_stack(sys._current_frames().get(thread or 0))
    modules = (str(one.f_globals.get("__name__", "")) for one, _ in stack)
    return next((name for name in modules if not name.startswith(SOCKETS)), "").startswith(DRIVERS)
