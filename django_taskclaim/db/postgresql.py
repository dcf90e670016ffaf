"""PostgreSQL: one statement claims a batch."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import InternalError, models, transaction

from django_taskclaim.db.base import Dialect
from django_taskclaim.db.claim_spec import ClaimStatement, limited
from django_taskclaim.db.inspection import LARGE, Belief, Fault, Plan, option_hint, real_name
from django_taskclaim.db.sql import (
    PREPARED,
    SQL,
    Key,
    KeyTable,
    OwnValues,
    Table,
    both,
    sql,
    value,
)
from django_taskclaim.db.watching import Standing
from django_taskclaim.fields import AnyField, MomentField
from django_taskclaim.policy import RENEWALS_PER_LEASE
from django_taskclaim.states import Token
from django_taskclaim.switch_reading import TABLE as SWITCH_TABLE

CANDIDATES = "taskclaim_candidates"

#: What libpq calls a transaction that is open and well.
IN_TRANSACTION = 2

#: Rows up to which it says nothing that a plan sorts them …
TINY = 2
#: … and up to which nothing that it reads all of them, or sorts what it has joined: any index is as good.
SMALL = 1000

#: Assumed for a table that was never analysed.
ROWS_A_PAGE = 40

#: How long our own sessions wait for a lock at most, in milliseconds.
LOCK_WAIT = 1000

#: Where our own connection behind a pooler keeps how long it may wait for a lock.
WAIT = "_taskclaim_lock_wait"

#: Where a connection keeps its session, and the level that transactions of it begin at.
LEVEL = "_taskclaim_isolation"


class PostgreSQL(Dialect):
    """Locks are NO KEY UPDATE, so that inserting a row with a foreign key to a claimed one does not wait."""

    # now() is the start of the transaction; clock_timestamp() is volatile and would lose the index.
    now = "STATEMENT_TIMESTAMP()"
    moment_after = "(STATEMENT_TIMESTAMP() + {} * INTERVAL '1 second')"
    unix_time = "FLOOR(EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP()))::bigint"
    lock_clause = "FOR NO KEY UPDATE"
    claims_in_one_statement = True
    passes_over_duplicates = True
    names_open_transactions = True
    leaves_out_complete = True
    on_a_busy_table = " (while the table is in use: CREATE INDEX CONCURRENTLY)"

    def amount(self, wait: timedelta) -> float:
        return wait.total_seconds()

    @property
    def _isolates_too_much(self) -> bool:
        """Say whether transactions of this session begin at another level than READ COMMITTED.

        OPTIONS may say so, or the server's configuration, a role's or a database's; asked once a connection.
        """
        if self.connection.connection is None:
            self.connection.ensure_connection()
        known = vars(self.connection).get(LEVEL)
        if known is None or known[0] is not self.connection.connection:
            ((level,),) = self.fetch(SQL("SHOW default_transaction_isolation"))
            known = self.connection.connection, self._asked_isolation or level
            vars(self.connection)[LEVEL] = known
        return "committed" not in known[1]

    @property
    def _asked_isolation(self) -> str:
        """The isolation level that OPTIONS ask for, in words; empty for none."""
        asked = self.connection.settings_dict["OPTIONS"].get("isolation_level")
        return "" if asked is None else str(getattr(asked, "name", asked)).replace("_", " ").lower()

    @property
    def commits_alone(self) -> bool:
        return not self._isolates_too_much and vars(self.connection).get(WAIT) is None

    def begin_transaction(self) -> None:
        # Two claims that meet under REPEATABLE READ are an error.
        if (wait := vars(self.connection).get(WAIT)) is not None:
            self.run(SQL(f"SET LOCAL lock_timeout = {wait}"))
        if self._isolates_too_much:
            self.run(SQL("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))

    @contextmanager
    def kept_whole(self) -> Iterator[None]:
        # Its driver knows how the transaction stands: no need to ask the server twice, by a savepoint.
        standing = Standing(self._transaction_stands)
        with self.connection.execute_wrapper(standing):
            yield
        if standing.is_over:
            raise InternalError("the transaction is over, or was aborted by an error")

    def _transaction_stands(self) -> bool:
        session: Any = self.connection.connection
        return session is not None and session.info.transaction_status == IN_TRANSACTION

    @contextmanager
    def limit_lock_wait(self, seconds: float) -> Iterator[None]:
        self.run(SQL(f"SET LOCAL lock_timeout = {max(1, int(seconds * 1000))}"))
        yield

    @contextmanager
    def keeping_limits(self) -> Iterator[None]:
        # A caller's transaction goes on with what it had; an error rolls the setting back, and so does the end of ours.
        inside = self.connection.in_atomic_block
        with transaction.atomic(using=self.connection.alias):
            before = self.fetch(SQL("SHOW statement_timeout")) if inside else []
            yield
            for (setting,) in before:
                self._set_timeout(setting)

    def limit_statements(self, limit: timedelta) -> None:
        self._set_timeout(f"{max(1, int(limit / timedelta(milliseconds=1)))}ms")

    def _set_timeout(self, setting: str) -> None:
        self.fetch(SQL("SELECT set_config('statement_timeout', %s, true)", (setting,)))

    def end_idle_transactions(self, idle: timedelta, *, ours_alone: bool) -> None:
        milliseconds = int(idle / timedelta(milliseconds=1))
        wait = min(LOCK_WAIT, max(1, milliseconds // RENEWALS_PER_LEASE))
        if self._is_pooled:
            # The next client of the session would have the same setting, so each transaction sets its own.
            vars(self.connection)[WAIT] = wait if ours_alone else None
            return
        self.run(SQL(f"SET idle_in_transaction_session_timeout = {milliseconds}"))
        if ours_alone:
            self.run(SQL(f"SET lock_timeout = {wait}"))

    @contextmanager
    def guarded_transaction(self, idle: timedelta) -> Iterator[None]:
        asked = max(1, int(idle / timedelta(milliseconds=1)))
        inside = self.connection.in_atomic_block
        with self.own_transaction(durable=True):
            ((usual,),) = self.fetch(
                SQL(
                    "SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
                )
            )
            # Of the transaction, not of the session: it works behind a transaction pooler, and ends by itself.
            told = "SET LOCAL idle_in_transaction_session_timeout = {}"
            if not 0 < usual <= asked:
                self.run(SQL(told.format(asked)))
            yield
            if inside:
                self.run(SQL(told.format(usual)))

    @property
    def _is_pooled(self) -> bool:
        """Whether a transaction pooler seems to be in front, so that a session is not ours alone."""
        return bool(self.connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"))

    def session_mark(self) -> Any:
        if self._is_pooled:
            return None
        # The number that the driver knows may be a pooler's.
        asked = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        return tuple(self.fetch(SQL(asked))[0])

    def end_session(self, mark: Any) -> bool:
        # Process numbers come round.
        ended = self.fetch(
            SQL(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s",
                mark,
            )
        )
        return ended == [(True,)]

    def service_options(self) -> dict[str, Any]:
        return {
            "connect_timeout": 5,
            "tcp_user_timeout": 10_000,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }

    def whole_claim(self, statement: ClaimStatement) -> SQL:
        """Lock, claim and return in one statement.

        MATERIALIZED matters: a nested loop runs a plain sub-select again and again, and each run locks another
        LIMIT rows (200 rows for 5 asked were seen).
        """
        table = statement.table
        same_key = " AND ".join(
            f"{table.name}.{column} = {CANDIDATES}.{column}" for column in table.key
        )
        return sql(
            "WITH {} AS MATERIALIZED ({} {} OF {} SKIP LOCKED)"
            " UPDATE {} SET {} FROM {} WHERE {} AND {} RETURNING {}",
            CANDIDATES,
            limited(statement.candidates),
            self.lock_clause,
            _unqualified(table.name),
            table.name,
            statement.assignments,
            CANDIDATES,
            same_key,
            statement.claimable,
            self._returned(statement.fields, table),
        )

    def _returned(self, fields: Sequence[AnyField], table: Table) -> str:
        """Name the columns to return; moments as text, for nearly all are the same and can be read together.

        Django has the driver read each by itself, in Python.
        """
        return ", ".join(
            table.qualified(field) + "::text" * isinstance(field, MomentField) for field in fields
        )

    def converters_of(
        self, table: Table, fields: Sequence[AnyField]
    ) -> dict[int, Callable[[Any], Any]]:
        passed = super().converters_of(table, fields)
        for place, field in enumerate(fields):
            if isinstance(field, MomentField) and not settings.USE_TZ:
                passed[place] = partial(self._shown, passed[place])
        return passed

    def _shown(self, show: Callable[[Any], Any], text: str | None) -> Any:
        return show(self.read_moment(text))

    def read_moment(self, stored: str | None) -> datetime | None:
        if stored is None:
            return None
        return datetime.fromisoformat(stored).astimezone(self.connection.timezone or UTC)

    def value_rows(
        self, table: KeyTable, keys: Sequence[Key], own: Sequence[OwnValues]
    ) -> list[SQL]:
        """Begin with a row of nothing but types: texts, and arrays of texts, have none and take that of their column.

        An explicit cast to the column's type would cut a value that does not fit.
        """
        nothing = "(SELECT {} FROM {} WHERE 1 = 0)".format
        typed = [nothing(column, table.name) for column in table.key]
        for one in own:
            is_text = one.stored == "{}" and all(
                v.text == "%s" and isinstance(v.params[0], str | list | None) for v in one.values
            )
            typed.append(nothing(table.column(one.field), table.name) if is_text else "NULL")
        return [SQL(", ".join(typed)), *super().value_rows(table, keys, own)]

    def renew_held(
        self, table: Table, token: Token, keys: Sequence[Key], lease: timedelta
    ) -> Sequence[Key]:
        held = both(table.keyed(keys), table.standing(token))
        statement = sql(
            "WITH {} AS MATERIALIZED (SELECT {} FROM {} WHERE {} ORDER BY {} {} SKIP LOCKED)"
            " UPDATE {} SET {} FROM {} WHERE {} AND {}",
            CANDIDATES,
            table.key_list,
            table.name,
            held,
            table.key_list,
            self.lock_clause,
            table.name,
            self.extension(table, lease),
            CANDIDATES,
            table.same_key(CANDIDATES, table.key),
            table.standing(token),
        )
        renewed = self.written(table, statement, keys)
        assert renewed is not None, "RETURNING names what was written"
        return renewed

    def lock_in_order(
        self, queryset: "models.QuerySet[Any]", table: KeyTable, limit: int, *, deleting: bool
    ) -> list[Key]:
        key = table.columns.key
        rows = self.compiled(queryset, limit, key)
        if rows is None:
            return []
        # A row that will go may not be referred to meanwhile: the DELETE would wait for that transaction.
        clause = "FOR UPDATE" if deleting else self.lock_clause
        return table.python_keys(
            self.fetch(sql("{} {} OF {} SKIP LOCKED", rows, clause, _unqualified(table.name)))
        )

    def advisory_lock(self, name: str) -> None:
        # A lock of the transaction, not of the session: it works behind a transaction pooler.
        self.fetch(
            sql(
                "SELECT 1 FROM (SELECT pg_advisory_xact_lock(hashtextextended({}, 0))) AS taskclaim_queue",
                value(f"taskclaim:{name}"),
            )
        )

    def sees_new_commits(self) -> bool:
        ((level,),) = self.fetch(SQL("SHOW transaction_isolation"))
        return "committed" in level

    def open_transactions(self) -> frozenset[str]:
        """Return the virtual ids of the transactions that are open in this database; autovacuum's are left out.

        Not their transaction ids, which they are given with their first write, a moment after the key of its row.
        """
        # What a transaction has once seen of the sessions it goes on seeing.
        self.fetch(SQL("SELECT pg_stat_clear_snapshot()"))
        names = self.fetch(
            SQL(
                "SELECT lock.virtualxid FROM pg_locks AS lock WHERE lock.locktype = 'virtualxid' AND lock.granted"
                " AND lock.pid <> pg_backend_pid() AND NOT EXISTS (SELECT 1 FROM pg_stat_activity AS session"
                " JOIN pg_database AS here ON here.datname = current_database() WHERE session.pid = lock.pid"
                " AND (session.datid IS DISTINCT FROM here.oid OR session.usesysid IS NULL))"
                f" UNION ALL SELECT '{PREPARED}' FROM pg_prepared_xacts WHERE database = current_database()"
            )
        )
        return frozenset(name for (name,) in names)

    # What people ask about the database

    def explain(self, statement: SQL, table: Table, *, may_sort: bool) -> Plan:
        """Ask twice: what is planned now, and what could be planned if reading and sorting everything were dear.

        On a small table PostgreSQL rightly reads all of it, so there only the second answer counts.
        """
        ours = self._relations(table)
        usual = self._plan(statement)
        if _rows_of(table, self) >= LARGE and (
            many := _faulty(usual, ours, may_sort, LARGE // 10)
        ) != (False, False):
            return Plan(_told(usual), *many)
        with transaction.atomic(using=self.connection.alias):
            # Joining by hash or merge reads all of a small table as rightly as a sequential scan does.
            dear = ("seqscan", "bitmapscan", "hashjoin", "mergejoin")
            for name in (*dear, *([] if may_sort else ["sort"])):
                self.run(SQL(f"SET LOCAL enable_{name} = off"))
            best = self._plan(statement)
            # Takes the settings back.
            transaction.set_rollback(True, using=self.connection.alias)
        sorts, scans = _faulty(best, ours, may_sort, 0)
        read = {node["Relation Name"] for node in _nodes(best) if "Relation Name" in node}
        # Every claim reads the switch.
        few = SMALL if read - ours - {SWITCH_TABLE} else TINY
        known = self._counted(table)
        return Plan(_told(best), sorts and known > few, scans and known > SMALL)

    def _counted(self, table: Table) -> float:
        """Return how many rows the planner knows of; of a table that was never analysed it assumes many."""
        name = value(real_name(table.name))
        ((analysed,),) = self.fetch(
            sql(
                "SELECT bool_and(reltuples >= 0) FROM pg_class WHERE relkind = 'r'"
                " AND (oid = {}::regclass OR oid IN (SELECT relid FROM pg_partition_tree({}::regclass)))",
                name,
                name,
            )
        )
        return self.believed(table).rows if analysed else math.inf

    def _plan(self, statement: SQL) -> Any:
        (row,) = self.fetch(sql("EXPLAIN (FORMAT JSON) {}", statement))
        answer = json.loads(row[0]) if isinstance(row[0], str) else row[0]
        return answer[0]["Plan"]

    def _relations(self, table: Table) -> frozenset[str]:
        """Return the names of the table and of its partitions."""
        name = real_name(_unqualified(table.name)).strip('"')
        spelled = value(real_name(table.name))
        parts = self.fetch(
            sql("SELECT relid::regclass::text FROM pg_partition_tree({}::regclass)", spelled)
        )
        return frozenset({name, *(part.split(".")[-1].strip('"') for (part,) in parts)})

    def believed(self, table: Table) -> Belief:
        """Take the rows a page as last counted times the pages as they are now, as the planner does."""
        name = value(real_name(table.name))
        ((rows,),) = self.fetch(
            sql(
                "SELECT COALESCE(SUM(CASE WHEN c.reltuples >= 0 AND c.relpages > 0"
                " THEN c.reltuples / c.relpages * pages.now ELSE pages.now * {} END), 0)"
                " FROM pg_class c,"
                " LATERAL (SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint) pages(now)"
                " WHERE c.oid = {}::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree({}::regclass))",
                value(ROWS_A_PAGE),
                name,
                name,
            )
        )
        shares = self.fetch(
            sql(
                "SELECT unnest(most_common_vals::text::text[]), unnest(most_common_freqs) FROM ("
                "SELECT s.most_common_vals, s.most_common_freqs FROM pg_stats s"
                " JOIN pg_namespace n ON n.nspname = s.schemaname"
                " JOIN pg_class c ON c.relname = s.tablename AND c.relnamespace = n.oid"
                " WHERE c.oid = {}::regclass AND s.attname = {} ORDER BY s.inherited DESC LIMIT 1) known",
                name,
                value(real_name(table.columns.status.column)),
            )
        )
        return Belief(float(rows), {state: share * float(rows) for state, share in shares})

    def indexes(self, table: Table) -> list[list[tuple[str, str]]]:
        # Django's introspection finds no table of another schema. What a failed CREATE INDEX CONCURRENTLY leaves behind
        # is not valid.
        found = self.fetch(
            sql(
                "SELECT array_agg(COALESCE(a.attname::text, '') ORDER BY part.place),"
                " array_agg(CASE WHEN part.option & 1 = 1 THEN 'DESC' ELSE 'ASC' END ORDER BY part.place)"
                " FROM pg_index i"
                " CROSS JOIN unnest(i.indkey, i.indoption) WITH ORDINALITY part(number, option, place)"
                " LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = part.number"
                " WHERE i.indrelid = to_regclass({}) AND i.indisvalid GROUP BY i.indexrelid",
                value(real_name(table.name)),
            )
        )
        return [list(zip(names, orders, strict=True)) for names, orders in found]

    def configured_faults(self) -> Iterator[Fault]:
        asked = self._asked_isolation
        if asked and "committed" not in asked:
            yield Fault(
                "W002",
                f"The database {self.connection.alias!r} runs transactions at {asked.upper()}: claims set READ"
                " COMMITTED for themselves, but a handler's own transactions that meet fail with serialization errors.",
                option_hint(
                    self.connection.alias, "isolation_level", "IsolationLevel.READ_COMMITTED"
                )
                + "  # from django.db.backends.postgresql.psycopg_any",
            )

    def server_faults(self, tables: Sequence[Table]) -> Iterator[Fault]:
        alias = self.connection.alias
        ((isolation, read_only, standby, pid),) = self.fetch(
            SQL(
                "SELECT current_setting('default_transaction_isolation'),"
                " current_setting('default_transaction_read_only'), pg_is_in_recovery(), pg_backend_pid()"
            )
        )
        if "committed" not in isolation and not self._asked_isolation:
            yield Fault(
                "E105",
                f"default_transaction_isolation of the database {alias!r} is {isolation!r}: two claims that meet are an"
                " error instead of passing each other.",
                option_hint(alias, "isolation_level", "IsolationLevel.READ_COMMITTED")
                + "  # from django.db.backends.postgresql.psycopg_any",
            )
        if read_only == "on" or standby:
            why = "is a standby" if standby else "has default_transaction_read_only on"
            yield Fault(
                "E106",
                f"The database {alias!r} {why}: no row can be claimed through it.",
                f"Let the router's db_for_write() name the primary for the claimable models, not {alias!r}.",
            )
        yield from self._pooler_faults(pid)

    def _pooler_faults(self, pid: int) -> Iterator[Fault]:
        info = getattr(self.connection.connection, "info", None)
        told = getattr(info, "backend_pid", pid)
        # A pooler hands out a process number of its own.
        if told != pid and not self.connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            yield Fault(
                "W107",
                f"A connection pooler stands before the database {self.connection.alias!r}. Claims work through it, but"
                " the cursors of iterator() break when it pools transactions.",
                f'DATABASES["{self.connection.alias}"]["DISABLE_SERVER_SIDE_CURSORS"] = True',
            )


def _unqualified(name: str) -> str:
    """Return a quoted table name without its schema, as a lock clause and a plan want it."""
    _, schema_ends, last = name.rpartition('"."')
    return f'"{last}' if schema_ends else name


_INDEX_WALKS = {"Index Scan", "Index Only Scan", "Bitmap Index Scan"}


def _rows_of(table: Table, dialect: Dialect) -> float:
    """Return how many rows the server believes the table has; 0 while it has never counted."""
    name = value(real_name(table.name))
    ((rows,),) = dialect.fetch(sql("SELECT reltuples FROM pg_class WHERE oid = {}::regclass", name))
    return max(0.0, float(rows))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _faulty(plan: Any, ours: frozenset[str], may_sort: bool, few: int) -> tuple[bool, bool]:
    """Say whether the plan sorts more than a *few* rows of ours, and whether it reads all of them."""
    sorts = scans = False
    for node in _nodes(plan):
        kind = node["Node Type"]
        below = [one for one in _nodes(node) if one.get("Relation Name") in ours]
        if "Sort" in kind and below and not may_sort:
            sorts = sorts or node["Plans"][0]["Plan Rows"] > few
        if node.get("Relation Name") in ours:
            scans = (
                scans or kind == "Seq Scan" or (kind in _INDEX_WALKS and "Index Cond" not in node)
            )
    return sorts, scans


def _told(plan: Any, depth: int = 0) -> tuple[str, ...]:
    """Tell a plan as EXPLAIN does, one line a node."""
    words = [plan["Node Type"]]
    if "Index Name" in plan:
        words.append(f"using {plan['Index Name']}")
    if "Relation Name" in plan:
        words.append(f"on {plan['Relation Name']}")
    line = f"{'  ' * depth}{' '.join(words)} (about {plan['Plan Rows']:,} rows)"
    return (line, *(text for child in plan.get("Plans", ()) for text in _told(child, depth + 1)))
