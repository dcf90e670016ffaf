"""What ``claimworker --drain`` and ``claimstatus --watch`` draw in a real terminal, and how they leave it."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands import no_savepoint
from tests.factories import make
from tests.freezing import offspring
from tests.querysets.support import wait_for
from tests.terminal import Terminal
from tests.testapp.models import Job, Photo

pytestmark = [pytest.mark.once, no_savepoint]

DRAIN = ("claimworker", "testapp.Job", "--drain", "--poll", "0.2", "--batch-size", "5")
Open = Callable[..., Terminal]


@pytest.fixture
def terminal(process_env: dict[str, str]) -> Iterator[Open]:
    """Open terminals with a command in each."""
    opened: list[Terminal] = []

    def open_one(*words: str, term: str = "xterm", **env: str) -> Terminal:
        opened.append(Terminal({**process_env, **env}, *words, size=(100, 30), term=term))
        return opened[-1]

    yield open_one
    for one in opened:
        one.end()


def painter_of(terminal: Terminal) -> int:
    """Return the process that draws for a worker."""
    (found,) = (
        pid
        for pid in offspring(terminal.process.pid)
        if b"look_on" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return found


def test_a_drain_shows_progress_below_the_log_and_sums_up(terminal: Open) -> None:
    """Bar, states, speed, errors and workers; a smaller window; no code of the picture in the log."""
    make(Job, 1, act="permanent")
    make(Job, 60, act="sleep:0.2")
    make(Job, 1, status="paused")
    shown = terminal(*DRAIN, "-v", "2")
    shown.wait_for(
        r"^testapp\.Job$",
        r"^ +━+ +\d+\.\d % +\d+ of 62$",
        r"^ +■ \d+ complete   ■ 1 failed   ■ \d+ running   ■ 1 paused   ■ \d+ open$",
        r"^ +\d+\.\d rows/s over the last \d+ s, about \d+ s left, done at \d\d:\d\d",
        r"^ +testapp\.Job \d+: \S*Permanent: ",
        r"^ +worker@\S+ +testapp\.Job +running ",
    )
    shown.resize(70, 24)
    shown.wait_for(r"^─{50,66} \d+ s ──$", since=len(shown.written))
    assert shown.wait() == 0
    assert shown.scrolls
    assert re.search(
        r"60 rows complete and 1 failed in .*, none left, 1 paused\.$", shown.text.rstrip()
    )
    log = re.sub(r"\x1b7.*?\x1b8", "", shown.written, flags=re.DOTALL)
    assert len(re.findall(r"^\d\d:\d\d:\d\d INFO Completed ", log, re.MULTILINE)) >= 8


@pytest.mark.promise(11)
def test_ctrl_c_gives_rows_and_terminal_back(terminal: Open) -> None:
    """The whole group hears it. Without colours letters show the states."""
    make(Job, 50, act="sleep:0.3")
    shown = terminal(*DRAIN, NO_COLOR="1")
    shown.wait_for(r"^ +#+>+\.+ +\d+\.\d % +\d+ of 50$")
    for pid in (painter_of(shown), shown.process.pid):
        os.kill(pid, signal.SIGINT)
    assert shown.wait() == 0
    assert shown.scrolls
    assert not re.search(r"\x1b\[[\d;]*m", shown.written)
    assert Job.objects.progress().processing == 0


def test_a_killed_supervisor_leaves_the_terminal_as_it_was(terminal: Open) -> None:
    """A worker does not wait for the process that draws."""
    make(Job, 50, act="sleep:0.3")
    shown = terminal(*DRAIN)
    shown.wait_for(r"^ +worker@\S+ ")
    painter = painter_of(shown)
    os.kill(painter, signal.SIGSTOP)
    wait_for(lambda: Job.objects.progress().complete >= 15)
    os.kill(painter, signal.SIGCONT)
    shown.process.kill()
    shown.wait()
    assert shown.scrolls
    wait_for(lambda: not Path(f"/proc/{painter}").exists())


def test_without_a_terminal_to_draw_on_lines_are_written(terminal: Open) -> None:
    make(Job, 20, act="sleep:0.3")
    shown = terminal(*DRAIN, term="dumb")
    shown.wait_for(r"\d\d:\d\d:\d\d \S+ testapp\.Job: \d+\.\d %  \d+ of 20")
    assert shown.wait() == 0
    assert "\x1b" not in shown.written


def test_a_watch_is_drawn_again_until_it_is_stopped(terminal: Open) -> None:
    """Every state is in the bar; an error text cannot send codes; the last picture stays."""
    make(Photo, 20)
    Photo.objects.complete(Photo.objects.claim_batch(10))
    (row,) = Photo.objects.claim_batch(1)
    row.claim.fail(ValueError("no\x1b[2J picture"), retry=False)
    Photo.objects.claim_batch(3)
    shown = terminal("claimstatus", "testapp.Photo", "--watch", "100ms", "--no-color")
    shown.wait_for(
        r"^  #+x+>+\.+  55\.0 %  11 of 20$",
        r"# 10 complete   x 1 failed   > 3 running   . 6 open",
        r"^  testapp\.Photo \d+: ValueError: no \[2J picture$",
        r"^Workers: none alive$",
    )
    make(Photo, 2)
    shown.wait_for(r" 11 of 22$")
    drawn = len(shown.written)
    shown.process.send_signal(signal.SIGINT)
    assert shown.wait() == 0
    # Back on the terminal's own screen, with the last picture.
    left = shown.written[drawn:].rpartition("\x1b[?1049l")[2]
    assert " 11 of 22" in left
