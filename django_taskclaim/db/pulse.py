"""What a database says of its own health: how far its replicas lag, and what a statement of the user's finds.

Beside the dialects, which claim: nothing here reads a table of the user's, and all of it is read by a thread that has
leases to renew, so each question is asked inside ``bounded``.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple

from django.db import DatabaseError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper


class Refusal(NamedTuple):
    """Why a database cannot answer a question, and what would help."""

    message: str
    hint: str


class Replica(NamedTuple):
    """One replica as its primary sees it."""

    name: str
    lag: timedelta


class Pulse:
    """The questions; where nothing special is known, the database answers none of them.

    A question is known by the name of its method, in ``unknown`` and in ``denied``.
    """

    #: What this kind of database can never answer: which surroundings could.
    unknown: ClassVar[Mapping[str, str]] = {
        "replicas": "ReplicaLag is for PostgreSQL, MySQL and MariaDB.",
        "own_lag": "ReplicaLag is for PostgreSQL, MySQL and MariaDB.",
    }

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection

    def replicas(self) -> list[Replica]:
        """Return how far each connected replica lags behind, as this primary knows it."""
        raise NotImplementedError

    def own_lag(self) -> timedelta | None:
        """Return how far this replica lags behind its primary, None where it does not follow it at all."""
        raise NotImplementedError

    def number(self, statement: str) -> float | None:
        """Return the one number that a statement of the user's gives, None for NULL."""
        rows = self._rows(statement)
        if len(rows) != 1 or len(rows[0]) != 1:
            raise ValueError(
                f"the statement gives {len(rows)} rows; a check needs one row with one number."
            )
        return None if rows[0][0] is None else float(rows[0][0])

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        """Have the server end each statement of the block that takes longer, where it can be told so.

        Nothing that a statement of the block writes is kept, where there are transactions to roll back.
        """
        yield

    def refusal(self, question: str) -> Refusal | None:
        """Say why databases of this kind cannot answer; asks no server."""
        if question not in self.unknown:
            return None
        what = f"{self.connection.display_name} (database {self.connection.alias!r})"
        return Refusal(f"{what} cannot answer {question}().", self.unknown[question])

    def denied(self, question: str) -> Refusal | None:
        """Say why this server does not answer, or not in full, the user that we log in as."""
        return None

    def _rows(self, statement: str, params: Any = None) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, params)
            return list(cursor.fetchall())

    def _run(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)


class PostgreSQLPulse(Pulse):
    """Sessions of other users show their transactions to pg_read_all_stats only; to others they look healthy."""

    unknown: ClassVar[Mapping[str, str]] = {}

    def replicas(self) -> list[Replica]:
        # NULL once a replica has caught up and nothing more is written.
        rows = self._rows(
            "SELECT COALESCE(NULLIF(application_name, ''), HOST(client_addr), 'replica'),"
            " COALESCE(EXTRACT(EPOCH FROM replay_lag), 0) FROM pg_stat_replication WHERE state <> 'backup'"
        )
        return [Replica(name, timedelta(seconds=float(lag))) for name, lag in rows]

    def own_lag(self) -> timedelta | None:
        # Received and replayed are equal, too, once the primary is out of reach; then there is no receiver.
        # A standby that has replayed no transaction yet lags since it was started, for all that it can know.
        ((follows, seconds),) = self._rows(
            "SELECT EXISTS (SELECT 1 FROM pg_stat_wal_receiver),"
            " CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0"
            " ELSE EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()"
            " - COALESCE(pg_last_xact_replay_timestamp(), pg_postmaster_start_time())) END"
        )
        return timedelta(seconds=max(0.0, float(seconds))) if follows else None

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        alias, limit = self.connection.alias, f"{int(seconds * 1000)}ms"
        with transaction.atomic(using=alias):
            self._run(f"SET LOCAL statement_timeout = '{limit}'")
            yield
            # Takes the setting back also where the caller's transaction goes on.
            transaction.set_rollback(True, using=alias)

    def denied(self, question: str) -> Refusal | None:
        ((standby, sees_all, user),) = self._rows(
            "SELECT pg_is_in_recovery(), pg_has_role(CURRENT_USER, 'pg_read_all_stats', 'USAGE'), CURRENT_USER"
        )
        alias = self.connection.alias
        if question == "own_lag" and not standby:
            return _no_replica(alias)
        if question == "replicas" and not sees_all:
            return Refusal(
                f"On the database {alias!r} the user {user} may not see what sessions of other users do, so a check"
                " would find everything well.",
                f"GRANT pg_read_all_stats TO {self.connection.ops.quote_name(user)};",
            )
        return None


class MySQLPulse(Pulse):
    """MySQL and MariaDB."""

    unknown: ClassVar[Mapping[str, str]] = {
        "replicas": "A primary does not know how far its replicas lag. Name a replica that DATABASES lists:"
        ' ReplicaLag(using="replica").',
    }

    @property
    def _is_mariadb(self) -> bool:
        return bool(getattr(self.connection, "mysql_is_mariadb", False))

    def own_lag(self) -> timedelta | None:
        lags = self._told_lags()
        known = [lag for lag in lags if lag is not None]
        return timedelta(seconds=max(known)) if known and len(known) == len(lags) else None

    def _told_lags(self) -> list[int | None]:
        """Return the lag of each source that this replica follows, None where it has stopped."""
        version: tuple[int, ...] = self.connection.mysql_version  # type: ignore[attr-defined]
        asks = "SHOW REPLICA STATUS" if version >= (8, 0, 22) else "SHOW SLAVE STATUS"
        with self.connection.cursor() as cursor:
            cursor.execute("SHOW ALL SLAVES STATUS" if self._is_mariadb else asks)
            names = [column[0].lower() for column in cursor.description]
            (lag,) = (at for at, name in enumerate(names) if name in _BEHIND)
            return [row[lag] for row in cursor.fetchall()]

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        name, limit = ("max_execution_time", int(seconds * 1000))
        if self._is_mariadb:
            name, limit = ("max_statement_time", max(1, int(seconds)))
        ((usual,),) = self._rows(f"SELECT @@SESSION.{name}")
        self._run(f"SET SESSION {name} = {limit}")
        try:
            yield
        finally:
            self._run(f"SET SESSION {name} = {usual}")

    def denied(self, question: str) -> Refusal | None:
        if question != "own_lag":
            return None
        alias = self.connection.alias
        try:
            if not self._told_lags():
                return _no_replica(alias)
        except DatabaseError as error:
            if error.args[:1] not in {(ACCESS_DENIED,), (NO_PRIVILEGE,)}:
                raise
            ((user,),) = self._rows("SELECT CURRENT_USER()")
            name, _, host = user.rpartition("@")
            privilege = "REPLICA MONITOR" if self._is_mariadb else "REPLICATION CLIENT"
            return Refusal(
                f"The database {alias!r} does not answer {question}(): {error.args[-1]}",
                f"GRANT {privilege} ON *.* TO '{name}'@'{host}';",
            )
        return None


class SQLitePulse(Pulse):
    """One writer and no server: nothing to ask but what the user's own statement asks."""

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        self.connection.ensure_connection()
        end = time.monotonic() + seconds
        driver: Any = self.connection.connection
        driver.set_progress_handler(lambda: time.monotonic() > end, STEPS)
        try:
            yield
        finally:
            driver.set_progress_handler(None, STEPS)


_BEHIND = frozenset({"seconds_behind_source", "seconds_behind_master"})

ACCESS_DENIED, NO_PRIVILEGE = 1045, 1227

#: Instructions of SQLite's virtual machine between two looks at the clock; about a millisecond.
STEPS = 10_000

_PULSES: Mapping[str, Callable[[BaseDatabaseWrapper], Pulse]] = {
    "postgresql": PostgreSQLPulse,
    "mysql": MySQLPulse,
    "sqlite": SQLitePulse,
}


def pulse_of(connection: BaseDatabaseWrapper) -> Pulse:
    """Return what can be asked of the database behind *connection*."""
    return _PULSES.get(connection.vendor, Pulse)(connection)


def _no_replica(alias: str) -> Refusal:
    return Refusal(
        f"The database {alias!r} is no replica, so it lags behind nothing.",
        "Name the alias of a replica in ReplicaLag(using=…); on PostgreSQL, leave it out to ask the primary.",
    )
