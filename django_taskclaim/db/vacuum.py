"""What a server still keeps of rows that have changed: dead rows, and the oldest transaction that needs them.

Nothing is changed. PostgreSQL answers from its statistics, MySQL and MariaDB from InnoDB's list of transactions.
"""

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.db.inspection import real_name
from django_taskclaim.db.sql import Table


@dataclass(frozen=True, slots=True)
class DeadRows:
    """The rows of one table, or of all its partitions, and the versions that nobody can see any more."""

    living: int
    dead: int
    #: Since the last vacuum; None if there was none.
    vacuumed_ago: timedelta | None


@dataclass(frozen=True, slots=True)
class OldestTransaction:
    """The transaction that keeps a server from removing old versions of rows."""

    age: timedelta
    holder: str
    #: The statement that ends it.
    remedy: str


_DEAD_ROWS = """
SELECT COUNT(*), COALESCE(SUM(s.n_live_tup), 0), COALESCE(SUM(s.n_dead_tup), 0),
    EXTRACT(EPOCH FROM CLOCK_TIMESTAMP() - MAX(GREATEST(s.last_vacuum, s.last_autovacuum)))
FROM pg_stat_all_tables s JOIN pg_class c ON c.oid = s.relid
WHERE c.relkind = 'r'
    AND c.oid IN (SELECT TO_REGCLASS(%s) UNION SELECT relid FROM pg_partition_tree(TO_REGCLASS(%s)))
"""


def dead_rows_of(connection: BaseDatabaseWrapper, table: Table) -> DeadRows | None:
    """Return how many dead rows *table* has; None where the database does not count them."""
    if connection.vendor != "postgresql":
        return None
    name = real_name(table.name)
    ((tables, living, dead, seconds),) = _rows(connection, _DEAD_ROWS, [name, name])
    ago = None if seconds is None else timedelta(seconds=float(seconds))
    return DeadRows(int(living), int(dead), ago) if tables else None


_OLDEST = {
    "postgresql": """
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
""",
    # trx_started is in the time zone of the server's system.
    "mysql": """
SELECT TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), UTC_TIMESTAMP()),
    CONCAT('session ', trx_mysql_thread_id, ', ', LOWER(trx_state)), CONCAT('KILL ', trx_mysql_thread_id, ';')
FROM information_schema.innodb_trx WHERE trx_mysql_thread_id NOT IN (0, CONNECTION_ID())
ORDER BY trx_started LIMIT 1
""",
}

#: MySQL refuses its list while a statement of some session holds bytes that are not text.
_CANNOT_CONVERT = 3854

#: InnoDB copies its list for readers at most this often, in seconds.
_COPY_AGE = 0.5


def oldest_transaction(connection: BaseDatabaseWrapper) -> OldestTransaction | None:
    """Return the oldest transaction of another session; None where none is known."""
    if connection.vendor not in _OLDEST:
        return None
    for _ in range(4):
        try:
            found = _rows(connection, _OLDEST[connection.vendor])
        except OperationalError as error:
            if error.args[0] != _CANNOT_CONVERT:
                raise
            time.sleep(_COPY_AGE)
            continue
        if not found:
            return None
        ((seconds, holder, remedy),) = found
        age = timedelta(seconds=max(0.0, float(seconds)))
        return OldestTransaction(age, str(holder), str(remedy))
    return None


def _rows(connection: BaseDatabaseWrapper, statement: str, params: Any = None) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())
