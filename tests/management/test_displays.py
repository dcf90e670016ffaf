"""What ``claimworker --drain`` and ``claimstatus --watch`` show in a real terminal."""

import re
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.commands import no_savepoint
from tests.factories import make
from tests.terminal import Terminal
from tests.testapp.models import Job, Photo

pytestmark = [pytest.mark.once, no_savepoint]

DRAIN = ("claimworker", "testapp.Job", "--drain", "--poll", "0.2", "--batch-size", "5")
Open = Callable[..., Terminal]


@pytest.fixture
def terminal(process_env: dict[str, str]) -> Iterator[Open]:
    """Open terminals with a command in each."""
    opened: list[Terminal] = []

    def open_one(*words: str) -> Terminal:
        opened.append(Terminal(process_env, *words))
        return opened[-1]

    yield open_one
    for one in opened:
        one.end()


def test_a_drain_prints_its_progress_and_sums_up(terminal: Open) -> None:
    """Bar, share, speed and forecast are one line, and the log is whole."""
    make(Job, 1, act="permanent")
    make(Job, 60, act="sleep:0.2")
    make(Job, 1, status="paused")
    shown = terminal(*DRAIN, "-v", "2")
    shown.wait_for(
        r"testapp\.Job: ━+  \d+\.\d %  \d+ of 62, 1 failed, "
        r"\d+\.\d rows/s over the last \d+ s, about \d+ s left, done at \d\d:\d\d"
    )
    assert shown.wait() == 0
    assert re.search(
        r"60 rows complete and 1 failed in .*, none left, 1 paused\.$", shown.text.rstrip()
    )
    assert len(re.findall(r"^\d\d:\d\d:\d\d INFO Completed ", shown.text, re.MULTILINE)) >= 8


def test_a_watch_is_drawn_again_until_it_is_stopped(terminal: Open) -> None:
    """Every state is in the bar; an error text cannot send codes; the last picture stays."""
    make(Photo, 20)
    Photo.objects.complete(Photo.objects.claim_batch(10))
    (row,) = Photo.objects.claim_batch(1)
    row.claim.fail(ValueError("no\x1b[2J picture"), retry=False)
    Photo.objects.claim_batch(3)
    shown = terminal("claimstatus", "testapp.Photo", "--watch", "100ms", "--no-color")
    shown.wait_for(
        r"^  #+x+>+\.+  50\.0 %  10 of 20$",
        r"# 10 complete   x 1 failed   > 3 running   . 6 open",
        r"^  testapp\.Photo \d+: ValueError: no \[2J picture$",
        r"^Workers: none alive$",
    )
    make(Photo, 2)
    shown.wait_for(r" 10 of 22$")
    drawn = len(shown.written)
    shown.process.send_signal(signal.SIGINT)
    assert shown.wait() == 0
    # Back on the terminal's own screen, with the last picture.
    left = shown.written[drawn:].rpartition("\x1b[?1049l")[2]
    assert " 10 of 22" in left
