"""What the service thread waits for between two rounds: calls from the database.

A call makes the claimer look at once instead of at its next poll. Calls come on the service's own connection, so they
cost no further one, and polling goes on as without them.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from django.db import connections
from django.db.models import Model

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.notify import QUIET, SILENCE, Listener, can_hear
from django_taskclaim.handlers import Handler
from django_taskclaim.worker.options import WorkerOptions


@dataclass(slots=True)
class _Look:
    """What a model has been looked at for, in seconds by ``clock()``."""

    began: float = 0.0
    #: The last call.
    called: float = float("-inf")
    #: Until when rows may come in without a call.
    silent_until: float = float("-inf")


class Calls:
    """The calls that one process hears, and what it still has to look at because of them."""

    def __init__(
        self, options: WorkerOptions, handlers: list[Handler], on_call: Callable[[], None]
    ) -> None:
        self._options = options
        self._on_call = on_call
        self._looks = {handler.model: _Look() for handler in handlers}
        self._models: dict[str, list[type[Model]]] = {}
        hears = can_hear(connections[options.using])
        for handler in handlers:
            if hears and handler.wake_up:
                table = claim_columns(handler.model).owner._meta.db_table
                self._models.setdefault(table, []).append(handler.model)
        self._listener: Listener | None = None

    # Of the claimer

    def look_at(self, model: type[Model]) -> float:
        """Return when to look for rows of *model* because of calls, by ``clock()``.

        At once after a call, and at the end of the silence that follows it; calls in quick succession are one.
        """
        look = self._looks[model]
        if look.began <= look.called:
            return look.began + QUIET
        return look.silent_until if look.began < look.silent_until else float("inf")

    def begin_look(self, model: type[Model]) -> None:
        """Note that a look begins: a call that comes from now on asks for another one."""
        self._looks[model].began = clock()

    # Of the service

    def look_now(self, model: type[Model]) -> None:
        """Have the claimer look for rows of *model*, also during its pause."""
        self._looks[model].called = clock()
        self._on_call()

    def listen(self) -> bool:
        """See to it that this thread's session listens; True if the database was asked and has answered."""
        if not self._models:
            return False
        connection = connections[self._options.using]
        if self._listener is not None and self._listener.still_on(connection):
            return False
        self._listener = Listener(connection, self._hear)
        # What came in before is for the next poll, unless somebody looks now.
        for table in self._models:
            self._hear(table)
        return True

    def wait(self, seconds: float, leaving: threading.Event) -> None:
        """Take the calls that come within so many seconds; where none can come, wait for *leaving* so long."""
        listener = self._listener
        if listener is None or not listener.still_on(connections[self._options.using]):
            leaving.wait(seconds)
            return
        sources: list[Any] = [listener]
        end = clock() + seconds
        while (left := end - clock()) > 0:
            if wait(sources, left):
                listener.take()

    def _hear(self, table: str) -> None:
        now = clock()
        for model in self._models.get(table, ()):
            look = self._looks[model]
            is_first = look.called < look.began
            look.called, look.silent_until = now, now + SILENCE
            if is_first:
                self._on_call()
