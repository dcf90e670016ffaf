"""Replica lag, on a primary and a standby that the tests start."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from django_taskclaim.throttling import ReplicaLag
from tests.servers import EmbeddedPostgres
from tests.settings import database
from tests.worker.conftest import wait_until

pytestmark = pytest.mark.long

ON_PRIMARY = "primary"

Servers = tuple[Any, Any]


@contextmanager
def database_at(url: str, alias: str) -> Iterator[Any]:
    """Have the server at *url* under *alias*."""
    usual = connections.settings["default"]
    connections.settings[alias] = usual | database(url, "default") | {"TEST": usual["TEST"]}
    try:
        yield connections[alias]
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


@pytest.fixture(autouse=True)
def _unblocked(django_db_blocker: Any) -> Iterator[None]:
    """No test database is touched here, only servers of our own."""
    with django_db_blocker.unblock():
        yield


def run(on: Any, statement: str) -> None:
    with on.cursor() as cursor:
        cursor.execute(statement)


def write(primary: Any) -> None:
    run(primary, "INSERT INTO log VALUES (1)")


def stopped(check: ReplicaLag) -> str:
    """Return the reason of the check once it says stop."""
    return str(wait_until(lambda: check(ON_PRIMARY)))


def lag_of(reason: str) -> float:
    return float(reason.partition(" lags ")[2].partition(" s, more than ")[0])


@pytest.fixture
def postgres(_unblocked: None) -> Iterator[Servers]:
    """A primary, and a standby that streams from it."""
    # Not below tmp_path: the servers run as another account, which cannot pass through there.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as one_home,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as other_home,
        EmbeddedPostgres(Path(one_home)) as primary,
    ):
        standby = EmbeddedPostgres(Path(other_home))
        source = f"--dbname=host=127.0.0.1 port={primary.port} user=postgres application_name=r1"
        standby._run("pg_basebackup", source, "-R", "--checkpoint=fast", "--no-sync")
        standby.start()
        try:
            with (
                database_at(primary.url, "primary") as one,
                database_at(standby.url, "replica") as two,
            ):
                run(one, "CREATE TABLE log (n int)")
                yield one, two
        finally:
            standby.stop("immediate")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="has a standby of its own kind")
def test_a_standby_knows_how_far_it_lags_and_that_it_follows_nobody(postgres: Servers) -> None:
    """The lag grows as long as nothing is replayed, and is over when the standby has caught up."""
    primary, replica = postgres
    check = ReplicaLag(at_most=1.5, using="replica")
    wait_until(lambda: check(ON_PRIMARY) is None, what="the standby connects")
    run(replica, "SELECT pg_wal_replay_pause()")
    lag = lag_of(wait_until(lambda: write(primary) or check(ON_PRIMARY)))
    assert lag >= 1.5
    wait_until(lambda: lag_of(stopped(check)) > lag)
    run(replica, "SELECT pg_wal_replay_resume()")
    wait_until(lambda: write(primary) or check(ON_PRIMARY) is None)
    # It knows that it follows nobody, though it has replayed all it ever got.
    run(replica, "ALTER SYSTEM SET primary_conninfo = ''")
    run(replica, "SELECT pg_reload_conf()")
    wait_until(lambda: check(ON_PRIMARY) == "replica replica follows no primary")
