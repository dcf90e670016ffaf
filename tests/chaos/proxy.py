"""A TCP proxy in front of a database server, in a process of its own, that does what networks do.

``python -m tests.chaos.proxy HOST PORT`` prints the port it listens on and obeys one word a line on standard input:
``pass``; ``delay`` every packet; ``hang`` (what is sent goes nowhere, both ways); ``refuse`` new connections; ``reset``
those there are; ``swallow`` the server's answer to the next COMMIT, and cut that connection. It ends with its standard
input.
"""

import asyncio
import contextlib
import os
import random
import re
import socket
import struct
import sys

from tests.processes import Partner, say

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
        self.word, self.swallowing = "pass", False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.writers: set[asyncio.StreamWriter] = set()

    def obey(self, word: str) -> None:
        if word == "swallow":
            self.swallowing = True
        if word in ("reset", "refuse"):
            for writer in list(self.writers):
                cut(writer)
        if word in ("pass", "delay", "hang", "refuse"):
            self.word = word
            self.flowing.clear() if word == "hang" else self.flowing.set()

    async def connected(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        await self.flowing.wait()
        try:
            if self.word == "refuse":
                raise ConnectionRefusedError
            answers, server = await asyncio.open_connection(*self.target)
        except OSError:
            cut(client)
            return
        both = {client, server}
        self.writers |= both
        committing = False

        async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal committing
            with contextlib.suppress(OSError):
                while packet := await source.read(65536):
                    if self.word == "delay":
                        await asyncio.sleep(random.uniform(0.05, 0.3))
                    await self.flowing.wait()
                    if sink is server:
                        committing = asks_to_commit(packet)
                    elif self.swallowing and (committing or COMMITTED.search(packet)):
                        self.swallowing = False
                        break
                    sink.write(packet)
            for writer in both:
                cut(writer)

        try:
            await asyncio.gather(forward(reader, server), forward(answers, client))
        finally:
            self.writers -= both


def cut(writer: asyncio.StreamWriter) -> None:
    """End a connection as a crash does: a reset, no farewell."""
    raw: socket.socket | None = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def serve(host: str, port: int) -> None:
    proxy = Proxy(host, port)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    say(server.sockets[0].getsockname()[1])
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while word := (await orders.readline()).decode().strip():
        proxy.obey(word)


class ProxyProcess(Partner):
    """The proxy as its owner sees it."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(os.environ, "tests.chaos.proxy", host, port)
        self.port: int = self.heard()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
