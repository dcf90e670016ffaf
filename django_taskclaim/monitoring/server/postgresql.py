"""PostgreSQL: statistics and indexes of the catalogs, and the settings of sessions."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from django.core.checks import CheckMessage
from django.db import transaction

from django_taskclaim.db.postgresql import configured_isolation
from django_taskclaim.db.sql import SQL, Table, sql
from django_taskclaim.monitoring.server.base import Server, message

#: How many rows a step gives, as EXPLAIN writes it.
PLANNED = re.compile(r" rows=(\d+)")


class PostgreSQLServer(Server):
    """What PostgreSQL reports about itself."""

    def expected_rows(self, table: Table, where: SQL) -> float:
        # The planner takes the rows a page as last counted times the pages as they are now.
        ((first,), *_) = self.dialect.fetch(sql("EXPLAIN SELECT FROM {}{}", table.name, where))
        return float(PLANNED.findall(first)[0])

    def indexes(self, table: Table) -> list[list[tuple[str, str]]]:
        # Django's introspection finds no table of another schema. What a failed CREATE INDEX CONCURRENTLY leaves behind
        # is not valid.
        found = self.ask(
            "SELECT array_agg(COALESCE(a.attname::text, '') ORDER BY part.place),"
            " array_agg(CASE WHEN part.option & 1 = 1 THEN 'DESC' ELSE 'ASC' END ORDER BY part.place)"
            " FROM pg_index i"
            " CROSS JOIN unnest(i.indkey, i.indoption) WITH ORDINALITY part(number, option, place)"
            " LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = part.number"
            " WHERE i.indrelid = to_regclass(%s) AND i.indisvalid GROUP BY i.indexrelid",
            table.name,
        )
        return [list(zip(names, orders, strict=True)) for names, orders in found]

    # Settings and versions

    def server_faults(self, tables: Sequence[Table]) -> Iterator[CheckMessage]:
        ((isolation,),) = self.ask("SHOW default_transaction_isolation")
        if "committed" not in isolation and not configured_isolation(self.connection):
            yield message(
                "E104",
                f"default_transaction_isolation of the database {self.alias!r} is {isolation!r}: two claims that meet"
                " are an error instead of passing each other.",
                f'DATABASES["{self.alias}"]["OPTIONS"]["isolation_level"] = IsolationLevel.READ_COMMITTED'
                "  # from django.db.backends.postgresql.psycopg_any",
            )

    # Old versions of rows

    oldest_transaction = """
SELECT EXTRACT(EPOCH FROM CLOCK_TIMESTAMP() - xact_start),
    'session ' || pid || ' of ' || COALESCE(usename, '?') || ', ' || COALESCE(state, '?'),
    'SELECT pg_terminate_backend(' || pid || ');'
FROM pg_stat_activity
WHERE datname = CURRENT_DATABASE() AND backend_type = 'client backend' AND pid <> PG_BACKEND_PID()
    AND xact_start IS NOT NULL AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
ORDER BY xact_start LIMIT 1
"""

    def dead_rows(self, table: Table) -> tuple[int, int]:
        # Of a partitioned table those of its partitions.
        ((living, dead),) = self.ask(
            "SELECT COALESCE(SUM(n_live_tup), 0), COALESCE(SUM(n_dead_tup), 0) FROM pg_stat_all_tables,"
            " to_regclass(%s) named WHERE relid = named"
            " OR relid IN (SELECT relid FROM pg_partition_tree(named))",
            table.name,
        )
        return int(living), int(dead)

    # Health

    def own_lag(self) -> timedelta | None:
        # Received and replayed are equal, too, once the primary is out of reach; then there is no receiver.
        # A standby that has replayed no transaction yet lags since it was started, for all that it can know.
        ((follows, seconds),) = self.ask(
            "SELECT EXISTS (SELECT 1 FROM pg_stat_wal_receiver),"
            " CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0"
            " ELSE EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()"
            " - COALESCE(pg_last_xact_replay_timestamp(), pg_postmaster_start_time())) END"
        )
        return timedelta(seconds=max(0.0, float(seconds))) if follows else None

    # How long questions may take

    @contextmanager
    def limiting_statements(self, limit: timedelta) -> Iterator[None]:
        # The rollback at the end gives a caller's transaction back what it had.
        setting = f"{max(1, int(limit / timedelta(milliseconds=1)))}ms"
        with transaction.atomic(using=self.alias):
            self.ask("SELECT set_config('statement_timeout', %s, true)", setting)
            yield
            transaction.set_rollback(True, using=self.alias)
