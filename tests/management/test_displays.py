"""What ``claimstatus --watch`` shows in a real terminal."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from functools import partial

import pytest

from tests.commands import no_savepoint
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = [pytest.mark.once, no_savepoint]

_PLACED = re.compile(r"\x1b\[[\d;]*H|\r*\n")
_CODE = re.compile(r"\x1b\[\??[\d;]*[a-zA-Z]")


class Watch:
    """``claimstatus --watch`` in a terminal of 30 lines and 100 columns."""

    def __init__(self, env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        words = ["claimstatus", "testapp.Photo", "--watch", "100ms", "--no-color"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "django", *words],
            env={**env, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            # A process started in the background ignores Ctrl-C, and so does all that it starts.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self.written = ""

    @property
    def text(self) -> str:
        """What was written so far without codes; each line that was placed on the screen begins a line."""
        return _CODE.sub("", _PLACED.sub("\n", self.written))

    def wait_for(self, *patterns: str) -> None:
        """Read on until the text has all of these in it."""
        while not all(re.search(one, self.text, re.MULTILINE) for one in patterns):
            assert self.read(), f"the command ended: {self.text}"

    def read(self) -> bool:
        """Wait for more, and say whether there was any."""
        try:
            self.written += os.read(self._ours, 65536).decode(errors="replace")
        except OSError:
            # Linux raises it when nobody can write any more.
            return False
        return True

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def shown(process_env: dict[str, str]) -> Iterator[Watch]:
    make(Photo, 20)
    Photo.objects.complete(Photo.objects.claim_batch(10))
    (row,) = Photo.objects.claim_batch(1)
    row.claim.fail(ValueError("no\x1b[2J picture"), retry=False)
    Photo.objects.claim_batch(3)
    watch = Watch(process_env)
    yield watch
    watch.end()


def test_a_watch_is_drawn_again_until_it_is_stopped(shown: Watch) -> None:
    """An error text cannot send codes; the last picture stays, and the terminal is as it was."""
    shown.wait_for(
        r"^testapp\.Photo +6 +3 +10 +1 +0 +20  50\.0 %$",
        r"^  last error: \d+: ValueError: no \[2J picture$",
        r"^Workers: none alive$",
    )
    make(Photo, 2)
    shown.wait_for(r"^testapp\.Photo +8 .* 22 ")
    shown.process.send_signal(signal.SIGINT)
    while shown.read():
        pass
    assert shown.process.wait() == 0
    assert " 22  45.4 %" in shown.text.rpartition("Ctrl-C ends it")[2]
