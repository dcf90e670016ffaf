"""A TCP proxy between a client and its database server, for what only a network does: answers that never arrive."""

import contextlib
import re
import select
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from django.db import OperationalError, connection, connections

from tests import servers

HAS_A_SERVER = connection.vendor != "sqlite"


def url_through(port: int | str) -> str:
    """Return the URL of the default database behind a proxy at this port, without encryption."""
    there = servers.url_of(connection.settings_dict | {"HOST": "127.0.0.1", "PORT": str(port)})
    plain = "?sslmode=disable&gssencmode=disable" if connection.vendor == "postgresql" else ""
    return there + plain


#: Not "SET autocommit", not "read committed".
COMMIT = re.compile(rb"(?i)(?<!auto)commit\b")

#: What opens a transaction, ends one, and commits by itself outside of one. A length stands in front of a statement,
#: and one of its bytes may look like a letter.
BEGIN = re.compile(rb"(?i)begin\b|autocommit ?= ?0")
END = re.compile(rb"(?i)commit\b|rollback\b(?! to)")
WRITE = re.compile(rb"(?<!FOR )(?<!KEY )(UPDATE|DELETE|INSERT)\b")

#: Given the bytes that hold a COMMIT and both ends, deals with it and leaves the ends closed, or open for later.
Fate = Callable[[bytes, socket.socket, socket.socket], None]


def swallowed(sent: bytes, client: socket.socket, server: socket.socket) -> None:
    """Let the server commit, and cut the client off before it hears of it."""
    server.sendall(sent)
    server.recv(65536)
    cut(client, server)


def withheld(sent: bytes, client: socket.socket, server: socket.socket) -> None:
    """Cut off both before the COMMIT arrives."""
    cut(client, server)


FATES = pytest.mark.parametrize("fate", [swallowed, withheld], ids=["committed", "not committed"])


class Belated:
    """Cuts off the client at once, and lets the server hear the COMMIT only when ``deliver`` is called."""

    def __init__(self) -> None:
        self.parked = threading.Event()

    def __call__(self, sent: bytes, client: socket.socket, server: socket.socket) -> None:
        self._sent, self._server = sent, server
        cut(client)
        self.parked.set()

    def deliver(self) -> None:
        self._server.sendall(self._sent)
        self._server.recv(65536)
        cut(self._server)


def cut(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


class CommitProxy:
    """Stands before the default database and passes all on but the one COMMIT that ``arm`` was told the fate of.

    A statement outside of any transaction that writes is a COMMIT, too.
    """

    def __init__(self) -> None:
        settings = connection.settings_dict
        self._server = (settings["HOST"] or "127.0.0.1", int(settings["PORT"]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._fate: Fate | None = None
        self._ends: list[socket.socket] = []
        self._heard = b""
        #: Set once the COMMIT has met its fate.
        self.sprung = threading.Event()
        #: Connections are cut as soon as they are made while this is set.
        self.refusing = threading.Event()
        #: How many were.
        self.refused = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        cut(self._listener, *self._ends)

    def arm(self, fate: Fate, *, heard: bytes = b"") -> None:
        """Deal with the next COMMIT so; with *heard*, on a connection over which these bytes have gone, either way."""
        self.sprung.clear()
        self._fate, self._heard = fate, heard

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refusing.is_set():
                    self.refused += 1
                    cut(client)
                    continue
                server = socket.create_connection(self._server)
                self._ends += [client, server]
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        """Carry both ways by one thread, so that the code that deals with a COMMIT has both ends for itself."""
        # A socket that __exit__ has closed is no file any more.
        heard = within = False
        with contextlib.suppress(OSError, ValueError):
            while True:
                readable, _, _ = select.select([client, server], [], [])
                for source in readable:
                    data = source.recv(65536)
                    heard = heard or self._heard in data
                    commits = source is client and _commits(data, within=within)
                    if source is client:
                        within = bool(BEGIN.search(data)) or (within and not END.search(data))
                    if commits and heard and self._fate is not None:
                        fate, self._fate = self._fate, None
                        fate(data, client, server)
                        self.sprung.set()
                        return
                    if not data:
                        cut(client, server)
                        return
                    (server if source is client else client).sendall(data)


def _commits(data: bytes, *, within: bool) -> bool:
    """Say whether a client's message commits something; *within* a transaction only its COMMIT does."""
    alone = not within and not BEGIN.search(data) and WRITE.search(data)
    return bool(COMMIT.search(data) or alone)


class LocalCommit:
    """What the proxy is to a server: deals with a COMMIT that never leaves the process.

    A statement outside of a transaction that writes commits itself.
    """

    def __init__(self, wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fate: Fate | None = None
        self._usual = wrapper._commit
        self.sprung = threading.Event()
        self._wrapper = wrapper
        monkeypatch.setattr(wrapper, "_commit", self._commit)
        monkeypatch.setattr(wrapper, "execute_wrappers", [*wrapper.execute_wrappers, self._execute])

    def _execute(
        self, execute: Callable[..., Any], text: str, params: Any, many: bool, context: Any
    ) -> Any:
        if self._wrapper.in_atomic_block or not text.startswith(
            ("UPDATE", "INSERT", "DELETE", "WITH")
        ):
            return execute(text, params, many, context)

        def send() -> None:
            nonlocal found
            found = execute(text, params, many, context)

        found: Any = None
        self._deal_with(send)
        return found

    def arm(self, fate: Fate) -> None:
        self._fate = fate

    def _commit(self) -> None:
        self._deal_with(self._usual)

    def _deal_with(self, commit: Callable[[], None]) -> None:
        if self._fate is None:
            return commit()
        fate, self._fate = self._fate, None
        if fate is swallowed:
            commit()
        self.sprung.set()
        error = OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR  # type: ignore[attr-defined]
        raise error


@pytest.fixture
def commits(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommitProxy | LocalCommit]:
    """Arm it with the fate of a COMMIT on the default connection."""
    if not HAS_A_SERVER:
        yield LocalCommit(connections["default"], monkeypatch)
        return
    usual = connections["default"]
    with CommitProxy() as proxy:
        wrapper = connections.create_connection("default")
        wrapper.settings_dict = usual.settings_dict | {"HOST": "127.0.0.1", "PORT": str(proxy.port)}
        connections["default"] = wrapper
        yield proxy
        wrapper.close()
        connections["default"] = usual
