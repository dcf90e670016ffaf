"""A terminal with a command in it, and what stands on its screen."""

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

from tests.behaviour.support import DEADLINE

#: What this package sends to a terminal: codes with numbers, codes without, and text.
_PIECE = re.compile(r"\x1b\[\??([\d;]*)([a-zA-Z])|\x1b([78D])|([\r\n])|([^\x1b\r\n])")


class Terminal:
    """A command in a terminal; without a *size* the terminal does not know its own."""

    def __init__(
        self,
        env: dict[str, str],
        *words: str,
        size: tuple[int, int] = (0, 0),
        term: str = "xterm",
        program: tuple[str, ...] = ("-m", "django"),
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(*size)
        self.process = subprocess.Popen(
            [sys.executable, *program, *words],
            env={**env, "TERM": term},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            # What a shell starts in the background is deaf to Ctrl-C, and so is all that it starts.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self.written = ""
        self.all = ""

    def resize(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read_until(self, pattern: str) -> re.Match[str]:
        """Return what matches in the text that came since the last call."""
        deadline = time.monotonic() + 3 * DEADLINE
        while not (found := re.search(pattern, self.written, re.DOTALL)):
            assert time.monotonic() < deadline, self.written
            self._take(self._read())
        self.written = self.written[found.end() :]
        return found

    def wait_for(self, *patterns: str) -> "Screen":
        """Return the screen once it shows all of these."""
        deadline = time.monotonic() + 3 * DEADLINE
        while True:
            screen = Screen(self.all, self.columns, self.lines)
            missing = [one for one in patterns if not re.search(one, screen.text, re.MULTILINE)]
            if not missing:
                return screen
            assert time.monotonic() < deadline, f"{missing} not on\n{screen.text}"
            self._take(self._read())

    def _take(self, part: str) -> None:
        self.written += part
        self.all += part

    def _read(self) -> str:
        try:
            select.select([self._ours], [], [], DEADLINE)
            return os.read(self._ours, 65536).decode(errors="replace")
        except OSError:
            # Linux says so where nobody writes any more.
            raise AssertionError(f"the command ended: {self.all}") from None

    def rest(self) -> str:
        """Return what came since, up to the command's end."""
        try:
            while True:
                self._take(self._read())
        except AssertionError:
            return self.written

    def rest_of_all(self) -> str:
        """Return everything from the command's first character to its last."""
        self.rest()
        return self.all

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


class Screen:
    """What stands on a screen, and above it, when all of *written* has come; ``scrolls`` are the lines that do."""

    def __init__(self, written: str, columns: int, lines: int) -> None:
        self._columns = columns
        self._rows = [""] * lines
        self._above: list[str] = []
        self._at, self._saved = (0, 0), (0, 0)
        self.scrolls = (0, lines - 1)
        for piece in _PIECE.finditer(written):
            numbers, code, short, control, character = piece.groups()
            if code:
                self._obey(code, [int(number or 0) for number in numbers.split(";")])
            elif short:
                self._obey(short, [])
            elif control:
                row, column = self._at
                self._at = (row, 0) if control == "\r" else (row, column)
                if control == "\n":
                    self._down()
            else:
                self._put(character)

    @property
    def text(self) -> str:
        """Everything, line by line, what has left the screen at its top as well."""
        return "\n".join(row.rstrip() for row in [*self._above, *self._rows])

    def _put(self, character: str) -> None:
        row, column = self._at
        if column >= self._columns:
            self._at = (row, 0)
            self._down()
            row, column = self._at
        line = self._rows[row].ljust(column)
        self._rows[row] = line[:column] + character + line[column + 1 :]
        self._at = (row, column + 1)

    def _down(self) -> None:
        row, column = self._at
        top, bottom = self.scrolls
        if row == bottom:
            self._above.append(self._rows.pop(top))
            self._rows.insert(bottom, "")
        else:
            self._at = (min(row + 1, len(self._rows) - 1), column)

    def _obey(self, code: str, numbers: list[int]) -> None:
        row, column = self._at
        match code:
            case "7":
                self._saved = self._at
            case "8":
                self._at = self._saved
            case "D":
                self._down()
            case "A":
                self._at = (max(row - numbers[0], 0), column)
            case "H":
                self._at = (numbers[0] - 1, numbers[1] - 1)
            case "K":
                self._rows[row] = self._rows[row][:column]
            case "J":
                self._rows[row] = self._rows[row][:column]
                self._rows[row + 1 :] = [""] * (len(self._rows) - row - 1)
            case "r":
                first, last = numbers if len(numbers) == 2 else (1, len(self._rows))
                self.scrolls, self._at = (first - 1, last - 1), (0, 0)
            case "m":
                pass
            case _:
                raise AssertionError(f"a code that nobody sends: {code} {numbers}")
