"""A TCP proxy in front of a database server, in a process of its own, that does what networks do.

``python -m tests.chaos.proxy HOST PORT`` prints the port it listens on and obeys one word a line on standard input:
``pass``; ``delay`` every packet; ``hang`` (what is sent goes nowhere, both ways); ``refuse`` new connections; ``reset``
those there are; ``swallow`` the server's answer to the next COMMIT, and cut that connection. For each answer that it
swallowed it prints ``swallowed``. It ends with its standard input.
"""

import asyncio
import contextlib
import random
import re
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Self

#: PostgreSQL's CommandComplete for COMMIT, as the server sends it, and for an UPDATE that has committed by itself: it
#: leaves the session idle.
COMMITTED = re.compile(
    rb"C\x00\x00\x00\x0bCOMMIT\x00|UPDATE [0-9]+\x00Z\x00\x00\x00\x05I", re.DOTALL
)

#: MySQL's COM_QUERY.
QUERY = 3


def asks_to_commit(packet: bytes) -> bool:
    """Say whether this is MySQL's COMMIT query, with or without the (empty) attributes of newer clients."""
    return len(packet) < 16 and packet[4:5] == bytes([QUERY]) and packet[-6:].upper() == b"COMMIT"


class Proxy:
    """One listening socket; what is wrong now is wrong with every connection."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.refusing = False
        self.delaying = False
        self.swallowing = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.writers: set[asyncio.StreamWriter] = set()

    def obey(self, word: str) -> None:
        if word == "reset":
            self.reset()
            return
        if word == "swallow":
            self.swallowing = True
            return
        self.refusing, self.delaying = word == "refuse", word == "delay"
        if word == "hang":
            self.flowing.clear()
        else:
            self.flowing.set()
        if word == "refuse":
            self.reset()

    def reset(self) -> None:
        for writer in list(self.writers):
            cut(writer)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.flowing.wait()
        if self.refusing:
            cut(writer)
            return
        try:
            there, back = await asyncio.open_connection(*self.target)
        except OSError:
            cut(writer)
            return
        pair = Pair(self, writer, back)
        self.writers |= {writer, back}
        try:
            await asyncio.gather(pair.forward(reader), pair.backward(there))
        finally:
            self.writers -= {writer, back}


class Pair:
    """One client's connection and the one made for it."""

    def __init__(
        self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.committing = False

    async def forward(self, reader: asyncio.StreamReader) -> None:
        async for packet in self._packets(reader):
            self.committing = asks_to_commit(packet)
            self.server.write(packet)
        self._close()

    async def backward(self, reader: asyncio.StreamReader) -> None:
        async for packet in self._packets(reader):
            if self.proxy.swallowing and (self.committing or COMMITTED.search(packet)):
                self.proxy.swallowing = False
                say("swallowed")
                break
            self.client.write(packet)
        self._close()

    async def _packets(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        with contextlib.suppress(OSError):
            while packet := await reader.read(65536):
                if self.proxy.delaying:
                    await asyncio.sleep(random.uniform(0.05, 0.3))
                await self.proxy.flowing.wait()
                yield packet

    def _close(self) -> None:
        cut(self.client)
        cut(self.server)


def cut(writer: asyncio.StreamWriter) -> None:
    """End a connection as a crash does: a reset, no farewell."""
    raw: socket.socket | None = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def serve(host: str, port: int) -> None:
    proxy = Proxy(host, port)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    say(str(server.sockets[0].getsockname()[1]))
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while word := (await orders.readline()).decode().strip():
        proxy.obey(word)


class ProxyProcess:
    """The proxy as its owner sees it."""

    def __init__(self, host: str, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.proxy", host, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.communicate()

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def swallow(self) -> None:
        """Let the next COMMIT's answer vanish, and return once that has happened."""
        assert self._process.stdout is not None
        self.tell("swallow")
        assert self._process.stdout.readline() == "swallowed\n"


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
