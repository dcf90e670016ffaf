"""The web server that the demo downloads from: real HTTP on loopback, and not always in the mood."""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from .fates import Fate, Fates
from .pictures import PictureBook

MEDIA_TYPES = {".jpg": "image/jpeg", ".png": "image/png"}


class PictureServer(ThreadingHTTPServer):
    """Serves the pictures of a book under their numbers and counts who asks for what."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, book: PictureBook, fates: Fates) -> None:
        super().__init__(("127.0.0.1", 0), PictureRequest)
        self.book = book
        self.fates = fates
        self._lock = threading.Lock()
        self._requests: Counter[int] = Counter()
        self._first_asked: dict[int, float] = {}

    def url(self, number: int) -> str:
        """Where picture `number` is asked for."""
        return f"http://127.0.0.1:{self.server_port}/pictures/{number}"

    def note(self, number: int) -> tuple[int, float]:
        """Count a request; return how many there were and the seconds since the first."""
        now = time.monotonic()
        with self._lock:
            self._requests[number] += 1
            first = self._first_asked.setdefault(number, now)
            return self._requests[number], now - first

    def requests(self) -> Counter[int]:
        """How often each number was asked for until now."""
        with self._lock:
            return Counter(self._requests)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a worker killed in the middle of a download is part of the story."""


class PictureRequest(BaseHTTPRequestHandler):
    """One connection, kept open for many requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave together

    def do_GET(self) -> None:
        """Answer with the picture, or as the fate of its number has it."""
        server = cast(PictureServer, self.server)
        number = self._number()
        if number is None:
            return self._refuse(HTTPStatus.NOT_FOUND)
        count, age = server.note(number)
        time.sleep(server.fates.delay(number))
        match server.fates.of(number):
            case Fate.GONE:
                return self._refuse(HTTPStatus.NOT_FOUND)
            case Fate.FLAKY if count <= server.fates.refusals(number):
                return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            case Fate.CLOSED if (left := server.fates.closing(number) - age) > 0:
                return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, retry_after=math.ceil(left))
        path = server.book.path(number)
        return self._answer(HTTPStatus.OK, path.read_bytes(), MEDIA_TYPES[path.suffix])

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the display has the terminal."""

    def _number(self) -> int | None:
        folder, _, name = self.path.rpartition("/")
        return int(name) if folder == "/pictures" and name.isdecimal() else None

    def _refuse(self, status: HTTPStatus, *, retry_after: int | None = None) -> None:
        self._answer(status, status.phrase.encode(), "text/plain", retry_after)

    def _answer(
        self, status: HTTPStatus, body: bytes, media_type: str, retry_after: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(book: PictureBook, fates: Fates) -> Iterator[PictureServer]:
    """A server on a free port of loopback, answering in threads until the block ends."""
    with PictureServer(book, fates) as server:
        thread = threading.Thread(target=server.serve_forever, name="pictures", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
