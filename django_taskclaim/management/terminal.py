"""What a terminal shows while work goes on: drawn again and again, and the terminal is left as it was found."""

import os
import re
import shutil
import signal
import time
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.utils import timezone

from django_taskclaim.completion import Clear
from django_taskclaim.formatting import format_clock_time, format_duration
from django_taskclaim.monitoring.overview import Overview, Worker
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import Progress
from django_taskclaim.states import Status

# What terminals understand: another screen, and back; where the cursor is; what is cleared.
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

#: What a coloured line consists of: codes, which have no width, and characters.
_PIECE = re.compile(r"\x1b\[[\d;]*m|.", re.DOTALL)
_PLAIN = "\x1b[0m"


# The whole of a terminal


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
            room -= _width(piece)
            if room < 0:
                return "".join(kept) + (_PLAIN if "\x1b" in line else "")
        kept.append(piece)
    return "".join(kept)


def _width(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def moves_cursor(out: Any) -> bool:
    """Say whether *out* is a terminal on which a picture can be drawn over the last one."""
    return bool(out.isatty()) and os.environ.get("TERM", "") not in ("", "dumb")


# The picture of one model

#: How each state is painted: its colour, how it is drawn where there is none, and what people call it.
_STATES = {
    "complete": ("32", "#", "complete"),
    "failed": ("31", "x", "failed"),
    "processing": ("36", ">", "running"),
    "waiting": ("33", "-", "waiting"),
    "paused": ("35", "=", "paused"),
    "due": ("90", ".", "open"),
}


def bar(seen: Overview, width: int, *, coloured: bool) -> str:
    """Return the rows as a line that its states share, with how many are complete behind it."""
    end = f"  {rows_of(seen)}"
    numbers_of = _numbers(seen)
    cells = _shared_out(list(numbers_of.values()), max(10, width - len(end)))
    line = ""
    for state, n in zip(numbers_of, cells, strict=True):
        colour, letter, _ = _STATES[state]
        line += f"\x1b[{colour}m{'━' * n}{_PLAIN}" if coloured and n else letter * n
    return line + end


def rows_of(seen: Overview) -> str:
    """Return how many rows are complete, and which share of all; of rows that do not stay, how many are left."""
    progress, about = seen.progress, "~" if seen.estimated else ""
    if not policy_for(seen.model).completion.keeps:
        return left(seen) or f"{about}{progress.total:,} rows"
    return f"{percent(progress)}  {about}{progress.complete:,} of {about}{progress.total:,}"


def left(seen: Overview) -> str:
    """Return how many rows are left, and how many are paused; nothing where rows that are done are open again."""
    if isinstance(policy_for(seen.model).completion, Clear):
        return ""
    about, paused = "~" if seen.estimated else "", seen.progress.paused
    unfinished = seen.progress.total - seen.progress.finished - paused
    text = f"{about}{unfinished:,} left" if unfinished else "none left"
    return f"{text}, {about}{paused:,} paused" if paused else text


def legend(seen: Overview, width: int, *, coloured: bool) -> Iterator[str]:
    """Yield lines that say how many rows are in each state that has any, with the sign that the bar has for it."""
    line = ""
    for state, number in _numbers(seen).items():
        colour, letter, name = _STATES[state]
        sign = f"\x1b[{colour}m■{_PLAIN}" if coloured else letter
        about = "~" if ("open" if state == "due" else state) in seen.estimated else ""
        text = f"{sign} {about}{number:,} {name}"
        if not number:
            continue
        if line and clipped(f"{line}   {text}", width) != f"{line}   {text}":
            yield line
            line = ""
        line = f"{line}   {text}" if line else text
    yield line


def _numbers(seen: Overview) -> dict[str, int]:
    numbers = {state: getattr(seen.progress, state, 0) for state in _STATES}
    # What is due was counted a moment later, and where rows are estimated all open ones count as due.
    due = seen.progress.open if Status.OPEN in seen.estimated else min(seen.due, seen.progress.open)
    return numbers | {"due": due, "waiting": seen.progress.open - due}


def _shared_out(numbers: Sequence[int], cells: int) -> list[int]:
    """Return whole cells in proportion, *cells* together, at least one for what there is any of."""
    total = sum(numbers) or 1
    shares = [max(bool(number), cells * number // total) for number in numbers]
    largest = shares.index(max(shares))
    shares[largest] += cells - sum(shares)
    return shares


def percent(progress: Progress) -> str:
    """Return the share of complete rows; never 100 % while others are there."""
    share = progress.complete / progress.total if progress.total else 1.0
    return f"{int(share * 1000) / 10:.1f} %"


class Speed:
    """How fast rows come to their end, by what was seen lately.

    Where rows are estimated, or do not stay, it goes by what the workers report that serve this model alone.
    """

    #: Seconds that it looks back.
    SPAN = 30.0

    #: Workers report every few seconds, so over a shorter time their reports tell nothing.
    REPORTS = 10.0

    def __init__(self) -> None:
        self._seen: dict[Any, deque[tuple[float, int]]] = {}
        self._reports: dict[Any, Reports] = {}

    def note(self, seen: Overview) -> None:
        """Take in one more look."""
        finished = seen.progress.finished
        if _is_reported(seen):
            finished = self._reports.setdefault((seen.model, seen.alias), Reports()).take(
                seen.workers
            )
        looks = self._looks(seen)
        looks.append((time.monotonic(), finished))
        while looks[-1][0] - looks[0][0] > self.SPAN:
            looks.popleft()

    def describe(self, seen: Overview) -> Iterator[str]:
        """Say how fast it goes, and when it will be done; nothing where that is unknown."""
        looks = self._looks(seen)
        if len(looks) < 2:
            return
        (began, at_first), (now, at_last) = looks[0], looks[-1]
        if _is_reported(seen) and now - began < self.REPORTS:
            return
        rate = (at_last - at_first) / (now - began) if now > began else 0.0
        if rate <= 0:
            return
        about = "about " if _is_reported(seen) else ""
        span = format_duration(timedelta(seconds=now - began))
        yield f"{about}{rate:,.1f} rows/s over the last {span}{_forecast(seen, rate)}"

    def _looks(self, seen: Overview) -> deque[tuple[float, int]]:
        return self._seen.setdefault((seen.model, seen.alias, _is_reported(seen)), deque())


def _is_reported(seen: Overview) -> bool:
    return bool(seen.estimated) or not policy_for(seen.model).completion.keeps


def _forecast(seen: Overview, rate: float) -> str:
    rows = seen.progress.open + seen.progress.processing
    if not rows or not left(seen):
        return ""
    rest = timedelta(seconds=min(rows / rate, 1e9))
    return (
        f", about {format_duration(rest)} left, done at {format_clock_time(timezone.now() + rest)}"
    )


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
