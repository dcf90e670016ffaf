"""The example's admin, served by the demo itself while it runs."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.servers.basehttp import (
    ThreadedWSGIServer,
    WSGIRequestHandler,
    get_internal_wsgi_application,
)
from django.urls import reverse


class Quiet(WSGIRequestHandler):
    """Says nothing of the requests: the terminal belongs to the demo."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def admin_site() -> Iterator[str]:
    """The address of the control room, on a free port of loopback, until the block ends."""
    server = ThreadedWSGIServer(("127.0.0.1", 0), Quiet)
    server.set_app(StaticFilesHandler(get_internal_wsgi_application()))
    thread = threading.Thread(target=server.serve_forever, name="admin", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{reverse('admin:photos_photo_control')}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def stay() -> None:
    """Wait for Ctrl-C."""
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)
