"""The background that keeps a lease alive, and what is told when it cannot."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections

from django_taskclaim import named_lease
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.leases import renewer
from django_taskclaim.models import NamedLease
from tests.behaviour.support import DEADLINE, elsewhere, held_open, wait_for
from tests.leases.support import ends_lost, is_held, renewer_threads, stored
from tests.sessions import end_sessions

pytestmark = pytest.mark.django_db(transaction=True)


def told(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Return the records of leases; those of a thread that another test has left behind may lie between them."""
    return [record for record in caplog.records if record.name == "django_taskclaim.leases"]


def wait_for_loss(held: Any) -> None:
    """Wait until the hold knows that it is lost; fail if others could have been in before."""

    def is_told() -> bool:
        # Asked first: whatever time passes between the two questions, the second answer is the later one.
        others_may_be_in = not is_held(held.name)
        assert held.lost or not others_may_be_in, "told too late: others may be in by now"
        return bool(held.lost)

    wait_for(is_told)


def wait_for_renewal(held: Any) -> None:
    before = held.renewed
    wait_for(lambda: held.renewed > before)


def test_a_block_may_last_longer_than_its_lease() -> None:
    with named_lease("report", lease=8) as held:
        born = stored("report").expires_at
        wait_for(lambda: stored("report").expires_at > born + (born - stored("report").claimed_at))
        assert not held.lost
        assert held.check()
        assert is_held("report")


def test_many_leases_share_one_thread() -> None:
    blocks = [named_lease(f"report:{number}", lease=20 + number / 10) for number in range(10)]
    holds = [block.__enter__() for block in blocks]
    assert len(renewer_threads()) == 1
    for held in holds:
        wait_for_renewal(held)
        assert held.check()
    for block in blocks:
        block.__exit__(None, None, None)
    wait_for(lambda: not renewer_threads())


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_leases_of_several_databases_are_renewed() -> None:
    with named_lease("report", lease=8) as here, named_lease("r", lease=8, using="other") as there:
        wait_for_renewal(here)
        wait_for_renewal(there)
        assert len(renewer_threads()) == 1


def test_any_thread_may_use_a_hold() -> None:
    with named_lease("report", lease=60) as held:
        before = held.renewed
        assert elsewhere(held.renew).result(DEADLINE)
        assert held.renewed > before
        assert elsewhere(held.check).result(DEADLINE)
        assert elsewhere(lambda: held.lost).result(DEADLINE) is False


def test_two_hundred_leases_leave_no_connection_file_or_thread_behind() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with named_lease("report", lease=60) as held:
        assert held.renew()
    wait_for(lambda: not renewer_threads())
    before = open_files()
    for number in range(200):
        with named_lease(f"report:{number % 20}", lease=60) as held:
            # Each tenth has the renewer connect.
            assert number % 10 or held.renew()
    wait_for(lambda: not renewer_threads())
    # Some may have been left by others, and be closed meanwhile.
    wait_for(lambda: open_files() <= before)


def test_a_thread_that_cannot_start_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="renews in a thread, and none can be started"):
            named_lease("report").__enter__()
        assert not is_held("report")
    with named_lease("report") as held:
        assert held.renew()


# Trouble


def test_a_session_that_the_server_ends_costs_no_lease(caplog: pytest.LogCaptureFixture) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("needs a server: there are no sessions to end")
    with named_lease("report", lease=8) as held:
        wait_for_renewal(held)
        for _ in range(3):
            assert end_sessions() >= 1
            wait_for_renewal(held)
        assert held.check()
    assert not told(caplog), "the session is looked at before it is used"


def test_a_block_ends_well_on_a_connection_that_was_cut_meanwhile() -> None:
    """A caller that does its work elsewhere may find its own connection gone after an hour."""
    if connection.vendor == "sqlite":
        pytest.skip("needs a server: there are no sessions to end")
    with named_lease("report", lease=60):
        elsewhere(end_sessions).result(DEADLINE)
    assert not is_held("report")


@contextmanager
def nothing_can_be_written() -> Iterator[None]:
    """Keep the lease's row locked; on SQLite that is the whole database."""

    def lock() -> None:
        if connection.features.has_select_for_update:
            list(NamedLease.objects.select_for_update())
        else:
            NamedLease.objects.create(name="another")

    with held_open(lock):
        yield


def test_a_renewal_cut_off_is_told_before_the_lease_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_taskclaim.leases")
    with ends_lost("report", lease=3) as held:
        with nothing_can_be_written():
            wait_for_loss(held)
            with pytest.raises(ClaimLost, match="could not be renewed in time"):
                held.renew()
        # Once told it stays lost, though nobody else has come.
        time.sleep(0.5)
        assert held.lost
    # Where the renewal still waits for the lock, its trouble has not been told yet.
    events = [record.event for record in told(caplog) if record.event != "trouble"]
    assert events == ["taken", "lost", "released"]
    assert {record.lease for record in told(caplog)} == {"report"}


def test_a_short_hindrance_costs_no_lease() -> None:
    with named_lease("report", lease=20) as held:
        with nothing_can_be_written():
            # False: not now, and not lost either.
            assert held.renew() is False
        wait_for_renewal(held)
        assert held.check()


class Proxy:
    """Stands between a client and a server until it passes nothing on any more, without closing anything."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.silent = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = [self.listener]
        self.passed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            self.sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.passed += 1
                if not self.silent:
                    sink.sendall(data)

    def close(self) -> None:
        for one in self.sockets:
            cut(one)


def cut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_server_that_does_not_answer_is_told_before_the_lease_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The renewer hangs in its statement; the block hears of it all the same, and leases elsewhere are renewed."""
    monkeypatch.setattr(renewer, "STUCK", 0.5)
    settings: Any = connections.settings["default"]
    if not settings["PORT"]:
        pytest.skip("needs a server reached over TCP")
    proxy = Proxy(settings["HOST"], int(settings["PORT"]))
    try:
        with ends_lost("report", lease=8) as held:
            # The connection of this thread is there already; that of the renewer will be made now.
            monkeypatch.setitem(settings, "HOST", "127.0.0.1")
            monkeypatch.setitem(settings, "PORT", proxy.port)
            wait_for_renewal(held)
            assert proxy.passed
            proxy.silent = True
            wait_for_loss(held)
            with named_lease("report", lease=8, using="other") as elsewhere_held:
                wait_for_renewal(elsewhere_held)
    finally:
        monkeypatch.undo()
        proxy.close()
    wait_for(lambda: not renewer_threads())
    with named_lease("report", lease=60) as held:
        assert held.renew()
