"""A command in a real terminal, and what it wrote there."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from functools import partial

from tests.querysets.support import DEADLINE

_PLACED = re.compile(r"\x1b\[[\d;]*H|\r*\n")
_CODE = re.compile(r"\x1b\[\??[\d;]*[a-zA-Z]")


class Terminal:
    """A command in a terminal of 30 lines and 100 columns."""

    def __init__(self, env: dict[str, str], *words: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
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
        """Wait until the text has all of these in it."""
        deadline = time.monotonic() + 3 * DEADLINE
        while True:
            text = self.text
            missing = [one for one in patterns if not re.search(one, text, re.MULTILINE)]
            if not missing:
                return
            assert time.monotonic() < deadline, f"{missing} not in\n{text}"
            if not self._read():
                raise AssertionError(f"the command ended: {self.written}")

    def _read(self) -> bool:
        try:
            select.select([self._ours], [], [], DEADLINE)
            part = os.read(self._ours, 65536).decode(errors="replace")
        except OSError:
            # Linux raises it when nobody can write any more.
            return False
        self.written += part
        return True

    def wait(self) -> int:
        """Read on to the end of the command, and return its exit code."""
        while self._read():
            pass
        return self.process.wait(3 * DEADLINE)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
