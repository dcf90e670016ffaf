"""Other sessions that make a database busy, and databases of our own under an alias."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import Error, connection, connections

from django_taskclaim.dialects.pulse import pulse_of
from django_taskclaim.throttling import Surroundings
from django_taskclaim.throttling.throttles import Throttles
from tests.settings import database
from tests.testapp.models import Photo

HERE = Surroundings(Photo, "default")


def needs(question: str) -> pytest.MarkDecorator:
    """Skip where the database cannot answer one of the questions of ``Pulse``."""
    refusal = pulse_of(connection).refusal(question)
    return pytest.mark.skipif(
        refusal is not None, reason=f"needs a database that answers {question}()"
    )


def wait_until(
    condition: Callable[[], Any], seconds: float = 30.0, what: str = "", every: float = 0.05
) -> Any:
    """Return what *condition* gives once it is true; fail after *seconds*."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(every)
    pytest.fail(f"not within {seconds} s: {what or condition}")


class Session:
    """Another session on the same database."""

    def __init__(self) -> None:
        self.connection = connections.create_connection("default")
        self._threads: list[threading.Thread] = []

    def execute(self, *statements: str) -> list[Any]:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def begin(self) -> None:
        self.connection.set_autocommit(False)

    def number(self) -> int:
        """Return how the server calls this session."""
        asks = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
        ((number,),) = self.execute(asks[self.connection.vendor])
        return int(number)

    def execute_meanwhile(self, statement: str) -> None:
        """Run a statement in a thread; it may be ended from outside."""

        def run() -> None:
            try:
                self.execute(statement)
            except Error:
                pass
            finally:
                self.connection.close()

        self.connection.inc_thread_sharing()
        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

    @property
    def is_busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(30)
        self.connection.close()


@pytest.fixture
def session(transactional_db: None) -> Iterator[Callable[[], Session]]:
    opened: list[Session] = []

    def open_one() -> Session:
        opened.append(Session())
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@contextmanager
def database_at(url: str, alias: str) -> Iterator[Any]:
    """Have the server at *url* under *alias*, in the calling test alone."""
    entry = database(url, "default")
    entry = (
        connections.settings["default"] | entry | {"TEST": connections.settings["default"]["TEST"]}
    )
    connections.settings[alias] = entry
    try:
        yield connections[alias]
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


@pytest.fixture
def throttles(transactional_db: None) -> Iterator[Callable[..., Throttles]]:
    """Make the throttles of one process; they hear of contention until the test is over."""
    made: list[Throttles] = []

    def make(*models: Any, process: str = "worker@here:1", **own: Any) -> Throttles:
        made.append(Throttles(process, "default", dict.fromkeys(models or (Photo,), ()), **own))
        made[-1].listen()
        return made[-1]

    yield make
    for one in made:
        one.close()
