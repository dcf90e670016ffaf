"""A connection pooler, as far as a check can tell one from a server."""

import contextlib
import socket
import struct
import threading

from django.db import connection


class Pooler(threading.Thread):
    """Passes connections on, and tells them another process number, as poolers do."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]

    def run(self) -> None:
        while True:
            client, _ = self.door.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        settings = connection.settings_dict
        server = socket.create_connection((settings["HOST"], int(settings["PORT"] or 5432)))
        # Closed here alone, once nobody reads from them any more.
        with client, server:
            back = threading.Thread(target=self.copy, args=(server, client), daemon=True)
            back.start()
            self.copy(client, server)
            back.join()

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        """Copy to the end of the stream; in BackendKeyData, the message K of 12 bytes, change the number."""
        mark = b"K" + struct.pack(">i", 12)
        # A client that dies resets its connection: the stream has ended, and the other side has to hear of it.
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                place = data.find(mark)
                if place >= 0:
                    start = place + len(mark)
                    data = data[:start] + struct.pack(">i", 77) + data[start + 4 :]
                target.sendall(data)
        with contextlib.suppress(OSError):
            # The other side may have gone first.
            target.shutdown(socket.SHUT_WR)
