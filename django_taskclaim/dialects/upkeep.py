"""What a database tells of how well it keeps up with a table that is updated all the time; nothing is changed.

Asked by the doctor, once: PostgreSQL's answers come from its statistics, those of MySQL and MariaDB from InnoDB's own
books, which must not be asked for more often than twice a second.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.dialects.inspection import real_name
from django_taskclaim.dialects.statements import Table


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is known of one table, or of all its partitions."""

    #: The tables that hold the rows, as SQL writes them.
    tables: tuple[str, ...]
    #: Rows as they are now, and versions of rows that nobody can see any more but that still take room.
    live_rows: int
    dead_rows: int
    #: Updates since the statistics began, and how many of them left the indexes alone.
    updates: int
    hot_updates: int
    #: The options that the table, or the first of its partitions, has of its own, by name.
    options: Mapping[str, str]
    #: When a vacuum last ended, and how many dead rows of a table one waits for.
    vacuumed_ago: timedelta | None
    vacuum_waits_for: int
    #: Whether the server vacuums by itself at all.
    autovacuum: bool

    @property
    def fillfactor(self) -> int:
        """The part of each page that new rows fill, in per cent; the rest is left for updates."""
        return int(self.options.get("fillfactor", 100))


@dataclass(frozen=True, slots=True)
class Horizon:
    """What keeps a server from clearing away what nobody needs any more."""

    #: How long the oldest transaction has been open that holds old versions back, and whose it is.
    age: timedelta
    holder: str
    #: What ends it, as a statement; empty where an operator has to look for himself.
    remedy: str = ""


def upkeep_of(connection: BaseDatabaseWrapper, table: Table) -> Upkeep | None:
    """Return what the database tells of *table*; None where it has nothing to keep up with."""
    return _UPKEEP[connection.vendor](connection, table) if connection.vendor in _UPKEEP else None


def horizon_of(connection: BaseDatabaseWrapper) -> Horizon | None:
    """Return the oldest transaction that holds back what could be cleared away; None where none is known."""
    return _HORIZONS[connection.vendor](connection) if connection.vendor in _HORIZONS else None


def purge_lag(connection: BaseDatabaseWrapper) -> int | None:
    """Return how many changed rows wait to be purged (InnoDB's history list length); None where nothing tells.

    From the counter that InnoDB keeps for it, which costs nothing to read.
    """
    if connection.vendor != "mysql":
        return None
    rows = _rows(
        connection,
        "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'",
    )
    return int(rows[0][0]) if rows else None


def _rows(connection: BaseDatabaseWrapper, statement: str, params: Any = None) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())


# PostgreSQL

_TABLES = """
SELECT c.oid::regclass::text, s.n_live_tup, s.n_dead_tup, s.n_tup_upd, s.n_tup_hot_upd,
    EXTRACT(EPOCH FROM CLOCK_TIMESTAMP() - GREATEST(s.last_vacuum, s.last_autovacuum)), c.reloptions::text,
    current_setting('autovacuum_vacuum_scale_factor')::float, current_setting('autovacuum_vacuum_threshold')::int,
    current_setting('autovacuum')::bool
FROM pg_stat_all_tables s JOIN pg_class c ON c.oid = s.relid
WHERE c.relkind = 'r'
    AND c.oid IN (SELECT TO_REGCLASS(%s) UNION SELECT relid FROM pg_partition_tree(TO_REGCLASS(%s)))
ORDER BY s.n_live_tup DESC
"""


def _postgresql_upkeep(connection: BaseDatabaseWrapper, table: Table) -> Upkeep | None:
    found = _rows(connection, _TABLES, [real_name(table.name)] * 2)
    if not found:
        return None
    names, live, dead, updates, hot, ago, spelled, scale, threshold, automatic = zip(
        *found, strict=True
    )
    options = _options(spelled[0])
    scaled = float(options.get("autovacuum_vacuum_scale_factor", scale[0]))
    least = int(options.get("autovacuum_vacuum_threshold", threshold[0]))
    vacuums = [float(seconds) for seconds in ago if seconds is not None]
    return Upkeep(
        tables=names,
        live_rows=sum(live),
        dead_rows=sum(dead),
        updates=sum(updates),
        hot_updates=sum(hot),
        options=options,
        vacuumed_ago=timedelta(seconds=min(vacuums)) if vacuums else None,
        vacuum_waits_for=least + int(scaled * max(live)),
        autovacuum=automatic[0],
    )


def _options(spelled: str | None) -> dict[str, str]:
    """Read ``{fillfactor=80,autovacuum_enabled=false}``."""
    inside = (spelled or "").strip("{}")
    return dict(option.split("=", 1) for option in inside.split(",") if "=" in option)


_OLDEST = """
SELECT * FROM (
    SELECT EXTRACT(EPOCH FROM CLOCK_TIMESTAMP() - xact_start) AS seconds,
        'session ' || pid || ' of ' || COALESCE(usename, '?') || ', ' || COALESCE(state, '?') AS holder,
        'SELECT pg_terminate_backend(' || pid || ');' AS remedy
    FROM pg_stat_activity
    WHERE datname = CURRENT_DATABASE() AND backend_type = 'client backend' AND pid <> PG_BACKEND_PID()
        AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    UNION ALL
    SELECT EXTRACT(EPOCH FROM CLOCK_TIMESTAMP() - prepared), 'the prepared transaction ' || gid,
        'ROLLBACK PREPARED ' || quote_literal(gid) || ';'
    FROM pg_prepared_xacts WHERE database = CURRENT_DATABASE()
) AS holders WHERE seconds IS NOT NULL ORDER BY seconds DESC LIMIT 1
"""


def _postgresql_horizon(connection: BaseDatabaseWrapper) -> Horizon | None:
    return _told(_rows(connection, _OLDEST))


# MySQL and MariaDB

# trx_started is told in the zone of the server's system, whatever that of the session is.
_OLDEST_OF_INNODB = """
SELECT TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), UTC_TIMESTAMP()),
    CONCAT('session ', trx_mysql_thread_id, ', ', LOWER(trx_state)), CONCAT('KILL ', trx_mysql_thread_id, ';')
FROM information_schema.innodb_trx WHERE trx_mysql_thread_id NOT IN (0, CONNECTION_ID())
ORDER BY trx_started LIMIT 1
"""


#: MySQL refuses this table while a statement of some session holds bytes that are no text.
_CANNOT_CONVERT = 3854

#: Seconds between two looks: InnoDB copies its books for each, and whoever asks more often reads the same copy again.
_LOOK_AGAIN = 0.5


def _innodb_horizon(connection: BaseDatabaseWrapper) -> Horizon | None:
    for _ in range(4):
        try:
            return _told(_rows(connection, _OLDEST_OF_INNODB))
        except OperationalError as error:
            if error.args[0] != _CANNOT_CONVERT:
                raise
        time.sleep(_LOOK_AGAIN)
    return None


def _told(rows: list[Any]) -> Horizon | None:
    if not rows:
        return None
    ((seconds, holder, remedy),) = rows
    return Horizon(timedelta(seconds=max(0.0, float(seconds))), str(holder), str(remedy))


_UPKEEP: Mapping[str, Callable[[BaseDatabaseWrapper, Table], Upkeep | None]] = {
    "postgresql": _postgresql_upkeep
}
_HORIZONS: Mapping[str, Callable[[BaseDatabaseWrapper], Horizon | None]] = {
    "postgresql": _postgresql_horizon,
    "mysql": _innodb_horizon,
}
