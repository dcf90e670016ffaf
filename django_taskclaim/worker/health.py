"""Signs of life: whether the threads of a process go on, and the file that a liveness probe looks at."""

import contextlib
from pathlib import Path
from typing import Any

from django_taskclaim.tokens import clock
from django_taskclaim.worker.records import Limited

#: Seconds without a sign after which a thread is taken for hung: longer than a slow statement or a hoarded GIL.
HUNG_AFTER = 30.0

#: Seconds between two touches of the health file.
TOUCH_EVERY = 3.0


def goes_on(crew: Any) -> bool:
    """Say whether claimer and service of a process make progress, or are about to end as asked.

    A database that is away hangs nobody: the service's connection gives up soon, and as long as the service is told
    so, a claimer that waits for the same database is excused. A handler that has overrun is there until its process
    is replaced.
    """
    service, claimer = crew.service, crew.claimer
    if service.overrun.is_set():
        return False
    if not service.is_alive() or _hangs(service):
        return False
    if claimer.leaving.is_set():
        return True
    excused = service.troubled_since(clock() - HUNG_AFTER)
    return claimer.is_alive() and (excused or not _hangs(claimer))


def _hangs(thread: Any) -> bool:
    return clock() - float(thread.last_turn) > HUNG_AFTER


class HealthFile:
    """A file that is touched every few seconds while all is well; without a path it does nothing."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path).absolute()
        self._due = 0.0
        self._limited = Limited()

    def prepare(self) -> None:
        """Make sure that it can be written, and take away what a dead worker left; OSError where that fails.

        What is no empty file is somebody's, and is not touched: FileExistsError.
        """
        if self._path is None:
            return
        if self._path.exists() and not (self._path.is_file() and not self._path.stat().st_size):
            raise FileExistsError(f"{self._path} exists and is no empty file")
        self._path.touch()
        self._path.unlink()

    def touch(self) -> None:
        """Note that all is well, unless that was just done; a failure is logged, and the file grows old."""
        if self._path is None or clock() < self._due:
            return
        self._due = clock() + TOUCH_EVERY
        try:
            self._path.touch()
        except OSError as error:
            self._limited.warn("touching the health file", error)

    def remove(self) -> None:
        """Take the file away: nobody is there to be well."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
