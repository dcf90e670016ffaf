"""A worker frozen inside a transaction: the server ends its session, and others get the rows it held."""

import threading
from datetime import timedelta

import pytest
from django.db import Error, OperationalError, connection, transaction

from django_taskclaim.dialects import dialect_for
from django_taskclaim.dialects.statements import SQL
from django_taskclaim.worker.connections import guard_connections
from tests.behaviour.support import DEADLINE, elsewhere
from tests.factories import make
from tests.testapp.models import Photo
from tests.worker.conftest import wait_until

pytestmark = [pytest.mark.django_db(transaction=True)]


def take_lock() -> bool:
    """Say whether nobody else has the row locked."""
    try:
        with transaction.atomic():
            return bool(list(Photo.objects.select_for_update(nowait=True)))
    except OperationalError:
        return False


def hold_the_lock(locked: threading.Event, thaw: threading.Event) -> None:
    """Lock the row and do nothing; the next statement ends in an error where the server has ended the session."""
    with transaction.atomic():
        list(Photo.objects.select_for_update())
        locked.set()
        thaw.wait(DEADLINE * 3)
        list(Photo.objects.all())


def test_idle_transactions_of_a_worker_are_ended_by_the_server() -> None:
    """A row that a frozen session holds locked is free again soon after the idle time is over."""
    if not connection.features.has_select_for_update:
        pytest.skip(
            "needs has_select_for_update: this database has one write lock and no sessions to end"
        )
    make(Photo, 1)
    locked, thaw = threading.Event(), threading.Event()

    def freeze() -> None:
        guard_connections(timedelta(seconds=1), ours_alone=True)
        hold_the_lock(locked, thaw)

    frozen = elsewhere(freeze)
    try:
        assert locked.wait(DEADLINE)
        wait_until(take_lock, DEADLINE, "the frozen session's lock is gone")
    finally:
        thaw.set()
    with pytest.raises(Error):
        frozen.result(DEADLINE)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs settings of a transaction")
def test_behind_a_pooler_each_transaction_is_told_how_long_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A setting of the session there would be that of the next client, too."""
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    dialect = dialect_for(connection)
    dialect.end_idle_transactions(timedelta(seconds=60), ours_alone=True)
    try:
        assert not dialect.commits_alone
        assert dialect.fetch(SQL("SHOW lock_timeout")) == [("0",)]
        with dialect.own_transaction():
            assert dialect.fetch(SQL("SHOW lock_timeout")) == [("1s",)]
    finally:
        dialect.end_idle_transactions(timedelta(seconds=60), ours_alone=False)
    assert dialect.commits_alone


def test_an_open_connection_follows_another_bound() -> None:
    """A lease that becomes shorter binds the sessions that are open already."""
    if not connection.features.has_select_for_update:
        pytest.skip(
            "needs has_select_for_update: this database has one write lock and no sessions to end"
        )
    make(Photo, 1)
    locked, thaw = threading.Event(), threading.Event()

    def freeze() -> None:
        guard_connections(timedelta(seconds=60), ours_alone=True)
        list(Photo.objects.all())
        guard_connections(timedelta(seconds=1), ours_alone=True)
        hold_the_lock(locked, thaw)

    frozen = elsewhere(freeze)
    try:
        assert locked.wait(DEADLINE)
        wait_until(take_lock, DEADLINE, "the frozen session's lock is gone")
    finally:
        thaw.set()
    with pytest.raises(Error):
        frozen.result(DEADLINE)
