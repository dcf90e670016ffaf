"""Ending the session of another thread, whose handler holds rows locked: that session, and no other."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django.db import Error, connection, connections

from django_taskclaim import connecting
from django_taskclaim.connecting import close_all, drop_broken, end_session_of, guard_connections
from tests.behaviour.support import DEADLINE, elsewhere

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server with sessions"),
]


class Handler:
    """A thread with a session; it does as told, one thing after the other."""

    def __init__(self) -> None:
        self.ready, self.go, self.done = (threading.Event() for _ in range(3))
        self.job: Callable[[], Any] = ask
        self.outcome: Future[Any] = elsewhere(self._run)
        assert self.ready.wait(DEADLINE)

    def _run(self) -> Any:
        guard_connections(timedelta(minutes=1), ours_alone=False)
        ask()
        self.thread, self.wrapper = threading.get_ident(), connections["default"]
        self.ready.set()
        try:
            assert self.go.wait(DEADLINE)
            self.job()
            self.done.set()
            self.go.clear()
            assert self.go.wait(DEADLINE)
            return ask()
        finally:
            self.done.set()
            close_all()

    def does(self, job: Callable[[], Any]) -> None:
        self.job = job
        self.go.set()
        assert self.done.wait(DEADLINE)

    def asks(self) -> Any:
        """Return what the session answers; the database's error where it was ended."""
        self.go.set()
        return self.outcome.result(DEADLINE)


def ask() -> Any:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT 1")
        return cursor.fetchone()


@pytest.fixture
def handlers() -> Iterator[Callable[[], Handler]]:
    started: list[Handler] = []

    def start() -> Handler:
        started.append(Handler())
        return started[-1]

    yield start
    for handler in started:
        # A thread that nothing waits for any more.
        while not handler.outcome.done():
            handler.go.set()


def test_the_session_of_another_thread_is_ended(handlers: Callable[[], Handler]) -> None:
    handler = handlers()
    handler.does(ask)
    assert end_session_of(handler.thread, "default")
    with pytest.raises(Error):
        handler.asks()


CLOSE: dict[str, Callable[[], None]] = {
    "close": lambda: connections["default"].close(),
    "drop_broken": lambda: drop_broken("default"),
    "close_all": close_all,
}


@pytest.mark.parametrize("close", CLOSE.values(), ids=CLOSE)
def test_a_session_that_was_closed_is_nobodys(
    handlers: Callable[[], Handler], close: Callable[[], None]
) -> None:
    """By Django too, which gives it back to a pool, where another thread may have got it."""
    handler = handlers()
    handler.does(close)
    assert not end_session_of(handler.thread, "default")
    assert handler.asks() == (1,)


def test_the_next_session_of_the_thread_is_the_one_that_is_ended(
    handlers: Callable[[], Handler],
) -> None:
    handler = handlers()
    handler.does(lambda: (connections["default"].close(), ask()))
    assert end_session_of(handler.thread, "default")
    with pytest.raises(Error):
        handler.asks()


def test_a_session_that_got_the_number_of_another_one_lives(
    handlers: Callable[[], Handler],
) -> None:
    """The server has ended the handler's session, or was started again, and numbers come round."""
    handler, innocent = handlers(), handlers()
    handler.does(ask)
    innocent.does(ask)
    number, since = vars(innocent.wrapper)[connecting.SESSION][1]
    other = since - (timedelta(seconds=1) if connection.vendor == "postgresql" else 10**9)
    vars(handler.wrapper)[connecting.SESSION] = handler.wrapper.connection, (number, other)
    assert not end_session_of(handler.thread, "default")
    assert innocent.asks() == (1,)
