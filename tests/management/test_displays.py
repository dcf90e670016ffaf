"""What ``claimstatus --watch`` shows in a real terminal."""

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial

import pytest

from django_taskclaim.management.commands.claimstatus import CLEAR, WRAP
from tests.commands import no_savepoint, table_away
from tests.factories import make
from tests.testapp.models import Photo


@pytest.mark.once
@no_savepoint
def test_a_watch_is_drawn_again_until_it_is_stopped(process_env: dict[str, str]) -> None:
    """An error text cannot send codes, an error of the database ends nothing; the last picture stays."""
    make(Photo, 20)
    Photo.objects.complete(Photo.objects.claim_batch(10))
    (row,) = Photo.objects.claim_batch(1)
    row.claim.fail(ValueError("no\x1b[2J picture"), retry=False)
    Photo.objects.claim_batch(3)
    ours, theirs = pty.openpty()
    words = ["claimstatus", "testapp.Photo", "--watch", "100ms", "--no-color"]
    watch = subprocess.Popen(
        [sys.executable, "-m", "django", *words],
        env={**process_env, "TERM": "xterm"},
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        # A process started in the background ignores Ctrl-C, and so does all that it starts.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    written: list[str] = []

    def read_until(pattern: str) -> None:
        # Linux raises an error at the end, when nobody can write any more.
        with suppress(OSError):
            while not (written and re.search(pattern, written[-1])):
                written.append(terminal.readline().rstrip())

    with watch, open(ours, errors="replace") as terminal:
        read_until(r"^testapp\.Photo +6 +3 +10 +1 +0 +20  50\.0 %$")
        read_until(r"^  failed: \d+: ValueError: no \[2J picture$")
        read_until(r"^Workers: none alive")
        with table_away(Photo):
            read_until(r"^Run: manage\.py migrate testapp")
        make(Photo, 2)
        read_until(r"^testapp\.Photo +8 .* 22 ")
        watch.send_signal(signal.SIGINT)
        read_until("never written")
    assert watch.returncode == 0
    # What is too long for a line is cut off, but not after the end.
    assert "".join(written).count(CLEAR) == "".join(written).count(WRAP)
    assert " 22  45.4 %" in "\n".join(written).rpartition("Ctrl-C ends it")[2]
