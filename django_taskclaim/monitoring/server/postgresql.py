"""PostgreSQL: plans, statistics and indexes of the catalogs, and the settings of sessions."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from django.core.checks import CheckMessage
from django.db import NotSupportedError, transaction

from django_taskclaim.db.postgresql import configured_isolation
from django_taskclaim.db.sql import SQL, Table, real_name, sql, unqualified
from django_taskclaim.findings import message
from django_taskclaim.monitoring.server.base import (
    LARGE,
    DeadRows,
    Estimate,
    NoReplica,
    Plan,
    Replica,
    Server,
    option_hint,
)
from django_taskclaim.tables import SWITCH_TABLE

#: Rows up to which it says nothing that a plan sorts them …
TINY = 2
#: … and up to which nothing that it reads all of them, or sorts what it has joined: any index is as good.
SMALL = 1000

#: Assumed for a table that was never analysed.
ROWS_A_PAGE = 40

#: Joining by hash or merge reads all of a small table as rightly as a sequential scan does.
DEAR = ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "sort")

#: A table and its partitions.
RELATIONS = "SELECT %s::regclass AS oid UNION SELECT relid FROM pg_partition_tree(%s::regclass)"

INDEX_WALKS = {"Index Scan", "Index Only Scan", "Bitmap Index Scan"}


class _Faults(NamedTuple):
    sorts: bool
    scans: bool


class PostgreSQLServer(Server):
    """What PostgreSQL reports about itself."""

    on_a_busy_table = " (while the table is in use: CREATE INDEX CONCURRENTLY)"

    def explain(self, statement: SQL, table: Table) -> Plan:
        """Judge a large table by its plan, a small one by the plan where reading and sorting all of it are dear.

        On a small table PostgreSQL rightly reads all of it.
        """
        ours, known = self._relations(table), self._known_rows(table)
        is_large = LARGE <= known < math.inf
        with transaction.atomic(using=self.alias):
            for name in () if is_large else DEAR:
                self.dialect.run(SQL(f"SET LOCAL enable_{name} = off"))
            plan = self._plan(statement)
            # Takes the settings back.
            transaction.set_rollback(True, using=self.alias)
        found = _faults(plan, ours, SMALL if is_large else 0)
        # Every claim reads the switch.
        few = SMALL if _read_by(plan) - ours - {SWITCH_TABLE} else TINY
        return Plan(_lines(plan), found.sorts and known > few, found.scans and known > SMALL)

    def _plan(self, statement: SQL) -> object:
        (row,) = self.dialect.fetch(sql("EXPLAIN (FORMAT JSON) {}", statement))
        answer = json.loads(row[0]) if isinstance(row[0], str) else row[0]
        return answer[0]["Plan"]

    def _relations(self, table: Table) -> frozenset[str]:
        """Return the names of the table and of its partitions."""
        name = real_name(table.name)
        parts = self.ask(f"SELECT oid::regclass::text FROM ({RELATIONS}) AS parts", name, name)
        own = real_name(unqualified(table.name)).strip('"')
        return frozenset({own, *(part.split(".")[-1].strip('"') for (part,) in parts)})

    def _known_rows(self, table: Table) -> float:
        """Return how many rows the planner knows of; of a table that was never analysed it assumes many."""
        name = real_name(table.name)
        ((is_analysed,),) = self.ask(
            "SELECT bool_and(reltuples >= 0) FROM pg_class"
            f" WHERE relkind = 'r' AND oid IN ({RELATIONS})",
            name,
            name,
        )
        return self.estimate(table).rows if is_analysed else math.inf

    def estimate(self, table: Table) -> Estimate:
        """Take the rows a page as last counted times the pages as they are now, as the planner does."""
        name = real_name(table.name)
        ((rows,),) = self.ask(
            "SELECT COALESCE(SUM(CASE WHEN c.reltuples >= 0 AND c.relpages > 0"
            f" THEN c.reltuples / c.relpages * pages.now ELSE pages.now * {ROWS_A_PAGE} END), 0)"
            " FROM pg_class c,"
            " LATERAL (SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint) pages(now)"
            f" WHERE c.oid IN ({RELATIONS})",
            name,
            name,
        )
        shares = self.ask(
            "SELECT unnest(most_common_vals::text::text[]), unnest(most_common_freqs) FROM ("
            "SELECT s.most_common_vals, s.most_common_freqs FROM pg_stats s"
            " JOIN pg_namespace n ON n.nspname = s.schemaname"
            " JOIN pg_class c ON c.relname = s.tablename AND c.relnamespace = n.oid"
            " WHERE c.oid = %s::regclass AND s.attname = %s ORDER BY s.inherited DESC LIMIT 1) known",
            name,
            real_name(table.columns.status.column),
        )
        return Estimate(float(rows), {state: share * float(rows) for state, share in shares})

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
            real_name(table.name),
        )
        return [list(zip(names, orders, strict=True)) for names, orders in found]

    # Settings and versions

    def server_faults(self, tables: Sequence[Table]) -> Iterator[CheckMessage]:
        ((isolation, read_only, standby),) = self.ask(
            "SELECT current_setting('default_transaction_isolation'),"
            " current_setting('default_transaction_read_only'), pg_is_in_recovery()"
        )
        if "committed" not in isolation and not configured_isolation(self.connection):
            yield message(
                "E104",
                f"default_transaction_isolation of the database {self.alias!r} is {isolation!r}: two claims that meet"
                " are an error instead of passing each other.",
                option_hint(self.alias, "isolation_level", "IsolationLevel.READ_COMMITTED")
                + "  # from django.db.backends.postgresql.psycopg_any",
            )
        if read_only == "on" or standby:
            why = "is a standby" if standby else "has default_transaction_read_only on"
            yield message(
                "E105",
                f"The database {self.alias!r} {why}: no row can be claimed through it.",
                f"Let the router's db_for_write() name the primary for the claimable models, not {self.alias!r}.",
            )

    # Old versions of rows

    oldest_transaction_query = """
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

    def dead_rows(self, table: Table) -> DeadRows | None:
        name = real_name(table.name)
        ((tables, living, dead),) = self.ask(
            "SELECT COUNT(*), COALESCE(SUM(s.n_live_tup), 0), COALESCE(SUM(s.n_dead_tup), 0)"
            " FROM pg_stat_all_tables s JOIN pg_class c ON c.oid = s.relid WHERE c.relkind = 'r'"
            f" AND c.oid IN ({RELATIONS})",
            name,
            name,
        )
        return DeadRows(int(living), int(dead)) if tables else None

    # Health

    def replicas(self) -> list[Replica]:
        ((sees_all,),) = self.ask("SELECT pg_has_role(CURRENT_USER, 'pg_read_all_stats', 'USAGE')")
        if not sees_all:
            raise NotSupportedError(
                f"On the database {self.alias!r} this user may not see what sessions of other users do, so a check"
                " would find everything well. GRANT pg_read_all_stats TO it."
            )
        # NULL once a replica has caught up and nothing more is written.
        rows = self.ask(
            "SELECT COALESCE(NULLIF(application_name, ''), HOST(client_addr), 'replica'),"
            " COALESCE(EXTRACT(EPOCH FROM replay_lag), 0) FROM pg_stat_replication WHERE state <> 'backup'"
        )
        return [Replica(name, timedelta(seconds=float(lag))) for name, lag in rows]

    def own_lag(self) -> timedelta | None:
        # Received and replayed are equal, too, once the primary is out of reach; then there is no receiver.
        # A standby that has replayed no transaction yet lags since it was started, for all that it can know.
        ((standby, follows, seconds),) = self.ask(
            "SELECT pg_is_in_recovery(), EXISTS (SELECT 1 FROM pg_stat_wal_receiver),"
            " CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0"
            " ELSE EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()"
            " - COALESCE(pg_last_xact_replay_timestamp(), pg_postmaster_start_time())) END"
        )
        if not standby:
            raise NoReplica(self.alias)
        return timedelta(seconds=max(0.0, float(seconds))) if follows else None

    # How long questions may take

    @contextmanager
    def limiting_statements(self, limit: timedelta) -> Iterator[None]:
        # A caller's transaction goes on with what it had. An error, or the end of our own, rolls the setting back.
        inside = self.connection.in_atomic_block
        with transaction.atomic(using=self.alias):
            before = self.ask("SHOW statement_timeout") if inside else []
            self._set_timeout(f"{max(1, int(limit / timedelta(milliseconds=1)))}ms")
            yield
            for (setting,) in before:
                self._set_timeout(setting)

    def _set_timeout(self, setting: str) -> None:
        self.ask("SELECT set_config('statement_timeout', %s, true)", setting)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _faults(plan: object, ours: frozenset[str], few: int) -> _Faults:
    """Say whether the plan sorts more than a *few* rows of *ours*, and whether it reads all of them."""
    sorts = scans = False
    for node in _nodes(plan):
        kind = node["Node Type"]
        if "Sort" in kind and _read_by(node) & ours:
            sorts = sorts or node["Plans"][0]["Plan Rows"] > few
        if node.get("Relation Name") in ours:
            walks = kind == "Seq Scan" or (kind in INDEX_WALKS and "Index Cond" not in node)
            scans = scans or walks
    return _Faults(sorts, scans)


def _read_by(plan: object) -> set[str]:
    """Return the names of the tables that a plan reads."""
    return {node["Relation Name"] for node in _nodes(plan) if "Relation Name" in node}


def _lines(plan: Any, depth: int = 0) -> tuple[str, ...]:
    """Return a plan as EXPLAIN shows it, one line a node."""
    words = [plan["Node Type"]]
    if "Index Name" in plan:
        words.append(f"using {plan['Index Name']}")
    if "Relation Name" in plan:
        words.append(f"on {plan['Relation Name']}")
    line = f"{'  ' * depth}{' '.join(words)} (about {plan['Plan Rows']:,} rows)"
    return (line, *(text for child in plan.get("Plans", ()) for text in _lines(child, depth + 1)))
