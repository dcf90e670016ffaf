"""``claimstatus --watch``: what stands in the terminal while it runs, and afterwards."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management.base import OutputWrapper

from django_taskclaim import overview as overview_module
from django_taskclaim.census import Census
from django_taskclaim.management import watching
from django_taskclaim.management.commands.claimstatus import Command
from django_taskclaim.management.watching import Pace, clipped, draw
from django_taskclaim.overview import Worker, overview
from django_taskclaim.querysets import Progress
from tests.behaviour.support import DEADLINE
from tests.factories import make
from tests.test_commands import no_savepoint, refused, table_away
from tests.testapp.models import Photo, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")


class Terminal:
    """A terminal with a command in it, and all that was written there."""

    def __init__(self, env: dict[str, str], *words: str) -> None:
        self.end, theirs = pty.openpty()
        command = [sys.executable, "-m", "django", *words]
        self.process = subprocess.Popen(
            command,
            env={**env, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            # What a shell starts in the background is deaf to Ctrl-C, and so is all that it starts.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self.written = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        """Return what matches in the text that came since the last call."""
        deadline = time.monotonic() + 3 * DEADLINE
        while not (found := re.search(pattern, self.written, re.DOTALL)):
            assert time.monotonic() < deadline, self.written
            self.written += self._read()
        self.written = self.written[found.end() :]
        return found

    def _read(self) -> str:
        try:
            return os.read(self.end, 65536).decode()
        except OSError:
            # Linux says so where nobody writes any more.
            raise AssertionError(f"the command ended: {self.written}") from None

    def rest(self) -> str:
        """Return what came since, up to the command's end."""
        try:
            while part := self._read():
                self.written += part
        except AssertionError:
            pass
        return self.written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_drawn_again_until_it_is_stopped_and_what_was_last_seen_stays(
    number: signal.Signals, process_env: dict[str, str]
) -> None:
    make(Photo, 3)
    shown = Terminal(process_env, "claimstatus", "testapp.Photo", "--watch", "100ms", "--no-color")
    try:
        shown.read_until(r"\x1b\[\?1049h.*\x1b\[Hclaimstatus every 0 s.*testapp\.Photo +3 ")
        make(Photo, 4)
        shown.read_until(r"\x1b\[H.*testapp\.Photo +7 ")
        shown.process.send_signal(number)
        # Back on the terminal's own screen.
        shown.read_until(r"\x1b\[\?25h\x1b\[\?1049l")
        assert re.search(r"^MODEL .*\r\ntestapp\.Photo +7 ", shown.rest())
        assert shown.process.wait(DEADLINE) == 0
    finally:
        shown.process.kill()
        shown.process.wait()
        os.close(shown.end)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--watch",), "--watch needs a terminal to draw on."),
        (("--watch", "0"), "--watch: '0' is no time longer than zero;"),
        (("--watch", "--format", "json"), "--watch is for people to look at;"),
        (("--watch", "--fail-if", "due>0"), "--watch is for people to look at;"),
        (("--watch", "--require-complete"), "--watch is for people to look at;"),
    ],
)
def test_where_it_cannot_be_drawn_one_sentence_says_so(
    words: tuple[str, ...], sentence: str
) -> None:
    code, said = refused("claimstatus", "testapp.Photo", *words)
    assert code == 2
    assert said.startswith(sentence)


@no_savepoint
def test_a_database_that_refuses_is_part_of_the_picture() -> None:
    command = Command(no_color=True)
    where = [(UuidKey, "default"), (Photo, "default")]
    with table_away(UuidKey):
        picture = command._picture(where)
    assert "testapp.UuidKey on 'default' cannot be read: " in picture
    assert "\ntestapp.Photo " in picture
    assert "cannot be read" not in command._picture(where)


def test_estimates_are_marked_and_stand_in_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    make(Photo)
    estimate = Census(Progress(open=30_000_000, failed=3), frozenset({"open"}))
    monkeypatch.setattr(overview_module, "census", lambda model, alias: estimate)
    heads, line = Command(no_color=True)._picture([(Photo, "default")]).splitlines()[:2]
    assert line.split()[1:6] == ["~30,000,000", "0", "0", "3", "0"]
    assert line.index("~30,000,000") + len("~30,000,000") == heads.index("OPEN") + len("OPEN")


def drawn(lines: list[str], monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> list[str]:
    out = io.StringIO()
    monkeypatch.setattr(watching.shutil, "get_terminal_size", lambda: os.terminal_size(size))
    draw(OutputWrapper(out), lines)
    text = out.getvalue()
    assert text.startswith("\x1b[H")
    return text.removeprefix("\x1b[H").removesuffix("\x1b[J").replace("\x1b[K", "").split("\r\n")


def test_a_picture_never_leaves_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"line {number} of ten" for number in range(10)]
    assert drawn(lines, monkeypatch, (80, 10)) == lines
    assert drawn(lines, monkeypatch, (6, 4)) == ["line 0", "line 1", "line 2", "… 7 mo"]


def test_colours_have_no_width_and_end_where_a_line_is_cut() -> None:
    line = "\x1b[31;1mred\x1b[0m and plain"
    assert clipped(line, 13) == line
    assert clipped(line, 2) == "\x1b[31;1mre\x1b[0m"


def test_the_pace_is_that_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    make(Photo, 10)
    now = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(watching, "time", now)
    pace = Pace()

    def look(at: float, done: int) -> list[str]:
        rows: Any = Photo.objects.claim_batch(done) if done else []
        Photo.objects.complete(rows)
        now.monotonic = lambda: at
        pace.note(overview(Photo, "default"))
        return list(pace.told(overview(Photo, "default")))

    assert look(0, 0) == []
    assert look(10, 5) == ["0.5 rows/s over the last 10 s, 10 s left"]
    assert look(65, 1) == ["0.0 rows/s over the last 55 s, 3 min 40 s left"]
    assert look(200, 0) == []


def test_the_pace_of_a_large_table_is_what_its_workers_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(watching, "time", now)
    pace = Pace()
    seen = replace(
        overview(Photo, "default"), progress=Progress(open=6_000), estimated=frozenset({"open"})
    )

    def look(at: float, **done: int) -> list[str]:
        now.monotonic = lambda: at
        pace.note(seen, [reported(name, count) for name, count in done.items()])
        return list(pace.told(seen))

    assert look(0, one=900) == []
    assert look(8, one=1_000) == []
    # The second has begun since, and the first has ended: what it did stays done.
    assert look(10, one=1_700, two=200) == [
        "about 100.0 rows/s over the last 10 s, about 1 min left"
    ]
    assert look(20, two=1_200) == ["about 100.0 rows/s over the last 20 s, about 1 min left"]


def reported(name: str, done: int) -> Worker:
    moment = datetime.now(UTC)
    return Worker(name, ("testapp.Photo",), "running", moment, moment, 0, done, 0, "", True)
