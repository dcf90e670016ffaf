"""Signs of life: whether the threads of a process go on, and the file that a liveness probe looks at."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from django_taskclaim.claim import clock
from django_taskclaim.worker.records import Limited

#: Looks without a sign, one a second, after which a thread is taken for hung: three times the 10 s or so that bound
#: each of its calls (``service_options``).
HUNG_AFTER = 30

#: Seconds between two touches of the health file.
TOUCH_EVERY = 3.0

#: Modules that wait for a database, and those through which they wait.
DRIVERS = ("django.db", "psycopg", "MySQLdb", "sqlite3")
SOCKETS = ("selectors", "socket", "ssl")


class HangDetector:
    """Counts the looks at which a thread has neither made progress nor waited for its database.

    A silent database hangs nobody: PostgreSQL's driver waits for as long as the server keeps the connection, and a
    process that was replaced for that would be replaced again and again. No time is measured, for the whole process may
    have been frozen, or one thread may have had the GIL.
    """

    def __init__(self, thread: Any) -> None:
        self.thread = thread
        self._turn, self._looks = thread.last_turn, 0

    def hangs(self) -> bool:
        """Look, and say whether the thread has been silent for HUNG_AFTER looks."""
        self._looks += 1
        if self.thread.last_turn != self._turn or _waits_for_database(self.thread):
            self._turn, self._looks = self.thread.last_turn, 0
        return self._looks > HUNG_AFTER


def _waits_for_database(thread: Any) -> bool:
    frame = sys._current_frames().get(thread.ident)
    while frame is not None and _module(frame).startswith(SOCKETS):
        frame = frame.f_back
    return frame is not None and _module(frame).startswith(DRIVERS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


class HealthFile:
    """A file that is touched every few seconds while all is well; without a path nothing is done."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._due = 0.0
        self._limited = Limited()

    def touch(self) -> None:
        """Touch the file, unless that was just done; a failure is logged, and the file grows old."""
        if self._path is None or clock() < self._due:
            return
        self._due = clock() + TOUCH_EVERY
        try:
            Path(self._path).touch()
        except OSError as error:
            self._limited.warn("touching the health file", error)
