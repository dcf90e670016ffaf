"""A display in a terminal that is drawn anew every few seconds, and leaves the terminal as it found it."""

import re
import shutil
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django_taskclaim.overview import Overview, Worker
from django_taskclaim.policy import policy_for
from django_taskclaim.wording import lasting

# What terminals understand: another screen, and back; where the cursor is; what is cleared.
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

#: What a coloured line consists of: codes, which have no width, and characters.
_PIECE = re.compile(r"\x1b\[[\d;]*m|.", re.DOTALL)
_PLAIN = "\x1b[0m"


@contextmanager
def other_screen(out: Any) -> Iterator[None]:
    """Show the terminal's other screen during the block, also where Ctrl-C or SIGTERM ends that."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    out.write(_OTHER_SCREEN, ending="")
    try:
        yield
    finally:
        out.write(_OWN_SCREEN, ending="")
        out.flush()
        signal.signal(signal.SIGTERM, before)


def draw(out: Any, lines: Sequence[str]) -> None:
    """Show *lines* from the top, as much of them as there is room for."""
    width, height = shutil.get_terminal_size()
    shown = list(lines)
    if len(shown) > height:
        hidden = len(shown) - height + 1
        shown = [*shown[: height - 1], f"… {hidden} more lines; name fewer models, or enlarge"]
    picture = f"{_REST_OF_LINE}\r\n".join(clipped(line, width) for line in shown)
    # In one piece, and over what was there: nothing flickers.
    out.write(f"{_HOME}{picture}{_REST_OF_LINE}{_REST_OF_SCREEN}", ending="")
    out.flush()


def clipped(line: str, width: int) -> str:
    """Return as much of a line, which may be coloured, as fits."""
    kept: list[str] = []
    room = width
    for piece in _PIECE.findall(line):
        if piece[0] != "\x1b":
            room -= 1
            if room < 0:
                return "".join(kept) + (_PLAIN if "\x1b" in line else "")
        kept.append(piece)
    return "".join(kept)


class Pace:
    """How fast rows come to their end, by what was seen lately.

    Where rows are estimated it goes by what the workers report that serve this model alone.
    """

    #: Seconds that it looks back.
    SPAN = 60.0

    #: Workers report every few seconds, so over a shorter time their reports tell nothing.
    REPORTS = 10.0

    def __init__(self) -> None:
        self._seen: dict[Any, deque[tuple[float, int]]] = {}
        self._reports: dict[Any, Reports] = {}

    def note(self, seen: Overview, known: Sequence[Worker] = ()) -> None:
        """Take in one more look."""
        finished = seen.progress.finished
        if seen.estimated:
            finished = self._reports.setdefault((seen.model, seen.alias), Reports()).take(
                worker for worker in known if worker.serves(seen.model)
            )
        looks = self._looks(seen)
        looks.append((time.monotonic(), finished))
        while looks[-1][0] - looks[0][0] > self.SPAN:
            looks.popleft()

    def told(self, seen: Overview) -> Iterator[str]:
        """Say how fast it goes, and how long it will take; nothing where that cannot be told."""
        looks = self._looks(seen)
        if len(looks) < 2 or not policy_for(seen.model).completion.keeps:
            return
        (began, at_first), (now, at_last) = looks[0], looks[-1]
        if seen.estimated and now - began < self.REPORTS:
            return
        rate = (at_last - at_first) / (now - began) if now > began else 0.0
        if rate <= 0:
            return
        about = "about " if seen.estimated else ""
        left = seen.progress.open + seen.progress.processing
        rest = f", {about}{lasting(timedelta(seconds=left / rate))} left" if left else ""
        yield f"{about}{rate:,.1f} rows/s over the last {lasting(timedelta(seconds=now - began))}{rest}"

    def _looks(self, seen: Overview) -> deque[tuple[float, int]]:
        return self._seen.setdefault((seen.model, seen.alias, bool(seen.estimated)), deque())


class Reports:
    """How many rows the workers of one model say that they have finished, since the first look."""

    def __init__(self) -> None:
        self._known: dict[str, int] | None = None
        self._finished = 0

    def take(self, workers: Iterable[Worker]) -> int:
        """Take in what they say now, and return the sum; one that serves other models too is left out."""
        now = {one.name: one.done + one.failed for one in workers if len(one.labels) == 1}
        if self._known is not None:
            self._finished += sum(
                max(0, count - self._known.get(name, 0)) for name, count in now.items()
            )
        self._known = {**(self._known or {}), **now}
        return self._finished
