"""The web server of the demo: the admin, and pictures to download, which it does not always give away."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.servers.basehttp import ThreadedWSGIServer
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.test.testcases import QuietWSGIRequestHandler

from ..pictures import paint

asked: Counter[int] = Counter()
"""How often each picture was asked for."""
_asked_lock = threading.Lock()


def picture(request: HttpRequest, number: int) -> HttpResponse:
    """Answer with the picture; of fifty numbers one is slow, two fail at first and one fails for ever."""
    with _asked_lock:
        asked[number] += 1
        is_first = asked[number] == 1
    trouble = number % 50
    time.sleep(2.0 if trouble == 40 else Random(number).uniform(0.01, 0.07))
    if trouble == 10:
        return HttpResponse("gone", status=404)
    if trouble == 20 and is_first:
        return HttpResponse("closed", status=503, headers={"Retry-After": "3"})
    if trouble == 30 and is_first:
        return HttpResponse("broken", status=502)
    return HttpResponse(paint(number), content_type="image/jpeg")


class QuietRequest(QuietWSGIRequestHandler):
    """Logs nothing, and sends a picture without waiting until its headers have arrived."""

    disable_nagle_algorithm = True


@contextmanager
def serving() -> Iterator[str]:
    """The address of the site, on a free port of loopback, until the block ends."""
    server = ThreadedWSGIServer(("127.0.0.1", 0), QuietRequest)
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
