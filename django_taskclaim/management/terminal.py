"""A terminal on which ``claimstatus --watch`` draws again and again, and how fast rows are done meanwhile."""

import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django_taskclaim.completion import Clear
from django_taskclaim.formatting import format_duration
from django_taskclaim.monitoring.overview import Overview
from django_taskclaim.policy import policy_for

# The other screen, without a cursor and without line breaks where a line is too long; and back.
_BEGIN, _END = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def can_draw_on(out: Any) -> bool:
    """Say whether *out* is a terminal on which a picture can be drawn over the last one."""
    return bool(out.isatty()) and os.environ.get("TERM", "") not in ("", "dumb")


@contextmanager
def screen(out: Any) -> Iterator[Callable[[Sequence[str]], None]]:
    """Give what draws lines on the terminal's other screen; Ctrl-C and SIGTERM leave the terminal as it was."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    out.write(_BEGIN, ending="")

    def draw(lines: Sequence[str]) -> None:
        room = shutil.get_terminal_size().lines
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines = [*lines[: room - 1], f"… {hidden} more lines; name fewer models, or enlarge"]
        picture = f"{_REST_OF_LINE}\r\n".join(lines)
        # In one piece, and over what was there: nothing flickers.
        out.write(f"{_HOME}{picture}{_REST_OF_LINE}{_REST_OF_SCREEN}", ending="")
        out.flush()

    try:
        yield draw
    finally:
        out.write(_END, ending="")
        out.flush()
        signal.signal(signal.SIGTERM, before)


class Speed:
    """How fast rows of each model are done, by what was seen lately.

    Where rows are estimated, or do not stay, it counts what the workers report that serve this model alone.
    """

    #: Seconds that it looks back at most, and at least: workers report every few seconds.
    MOST, LEAST = 30.0, 10.0

    def __init__(self) -> None:
        self._looks: dict[Any, deque[tuple[float, int]]] = {}

    def describe(self, seen: Overview) -> str:
        """Note one more look, and say how fast it goes and how long the rest takes; empty where that is unknown."""
        completion = policy_for(seen.model).completion
        is_reported = bool(seen.estimated) or not completion.keeps
        alone = [worker for worker in seen.workers if len(worker.labels) == 1]
        done = (
            sum(worker.done + worker.failed for worker in alone)
            if is_reported
            else seen.progress.finished
        )
        looks = self._looks.setdefault((seen.model, seen.alias, is_reported), deque())
        if looks and done < looks[-1][1]:
            # A worker has left with what it reported, or rows were opened again.
            looks.clear()
        looks.append((time.monotonic(), done))
        while looks[-1][0] - looks[0][0] > self.MOST:
            looks.popleft()
        span, count = looks[-1][0] - looks[0][0], done - looks[0][1]
        if span < self.LEAST or not count:
            return ""
        rate = count / span
        text = f"{rate:,.1f} rows/s over the last {format_duration(timedelta(seconds=span))}"
        rest = seen.progress.open + seen.progress.processing
        if not rest or isinstance(completion, Clear):
            return text
        return f"{text}, about {format_duration(timedelta(seconds=min(rest / rate, 1e9)))} left"
