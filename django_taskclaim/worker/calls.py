"""What the service thread waits for between two rounds: calls from the database.

A call makes the claimer look at once instead of at its next poll. Calls come on the service's own connection, so they
cost no further one, and polling goes on as without them.
"""

import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

from django.db import connections

from django_taskclaim.claim import clock
from django_taskclaim.db.notify import SILENCE, Listener, can_hear
from django_taskclaim.worker.feeds import Feed


class Calls:
    """The calls that one process hears; each is noted on the feeds of its table."""

    def __init__(self, using: str, feeds: list[Feed], on_call: Callable[[], None]) -> None:
        self._using, self._on_call = using, on_call
        hears = can_hear(connections[using])
        self._feeds = [feed for feed in feeds if hears and feed.handler.wake_up]
        self._listener: Listener | None = None

    def listen(self) -> bool:
        """See to it that this thread's session listens; True if the database was asked and has answered."""
        if not self._feeds:
            return False
        connection = connections[self._using]
        if self._listener is not None and self._listener.still_on(connection):
            return False
        self._listener = Listener(connection, self._hear)
        # What came in before is for the next poll, unless somebody looks now.
        for feed in self._feeds:
            self._hear(feed.table)
        return True

    def wait(self, seconds: float, leaving: threading.Event) -> None:
        """Take the calls that come within so many seconds; where none can come, wait for *leaving* so long."""
        listener = self._listener
        if listener is None or not listener.still_on(connections[self._using]):
            leaving.wait(seconds)
            return
        sources: list[Any] = [listener]
        end = clock() + seconds
        while (left := end - clock()) > 0:
            if wait(sources, left):
                listener.take()

    def _hear(self, table: str) -> None:
        now = clock()
        for feed in self._feeds:
            if feed.table == table:
                is_first = feed.called < feed.look_began
                feed.called, feed.silent_until = now, now + SILENCE
                if is_first:
                    self._on_call()
