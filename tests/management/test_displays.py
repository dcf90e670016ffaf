"""What ``claimstatus --watch`` shows in a real terminal."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from tests.commands import no_savepoint
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = [pytest.mark.once, no_savepoint]


class Watch:
    """``claimstatus --watch`` in a terminal."""

    def __init__(self, env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
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

    def wait_for(self, *patterns: str) -> None:
        """Read on until all of these were shown."""
        while not all(re.search(one, self.written, re.MULTILINE) for one in patterns):
            assert self.read(), f"the command ended: {self.written}"

    def read(self) -> bool:
        """Wait for more, and say whether there was any."""
        try:
            self.written += os.read(self._ours, 65536).decode(errors="replace").replace("\r", "")
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
    """An error text cannot send codes; the last picture stays."""
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
    assert " 22  45.4 %" in shown.written.rpartition("Ctrl-C ends it")[2]
