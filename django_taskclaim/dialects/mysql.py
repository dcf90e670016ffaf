"""MySQL 8.0+ and MariaDB 10.6+: candidates are read without locks, then locked by key, then updated by key."""

import hashlib
import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.db import Error, NotSupportedError, OperationalError, models

from django_taskclaim.columns import KeyColumns
from django_taskclaim.dialects.base import NAMED_LEASES, ClaimOrder, Dialect
from django_taskclaim.dialects.inspection import LARGE, Belief, Fault, Plan, option_hint, real_name
from django_taskclaim.dialects.statements import SQL, Key, KeyTable, Table, sql, value
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import AnyField
from django_taskclaim.states import WORKER_MARK, Status, Token

#: ER_NO_SUCH_THREAD
NO_SUCH_THREAD = 1094
#: Incorrect string value, illegal mix of collations (MariaDB), cannot convert string (MySQL): mysqlclient calls them
#: operational errors, like those of a server that is away.
TEXT_REFUSED = frozenset({1366, 1267, 3854})


class MySQL(Dialect):
    """A claim that sorts locks every row it sorts, so nothing here locks in any order but the key's.

    All row locks are taken through the primary key: claims that lock index entry then row, beside completions that
    lock row then index entry, deadlock.
    """

    # NOW() follows the session's time zone.
    now = "UTC_TIMESTAMP(6)"
    unix_time = "UNIX_TIMESTAMP()"
    strategies = ("auto", "update_limit", "compare_and_swap")
    updates_from_itself = False
    walks_small_tables = True
    # A comparison of rows is an index range for equality only.
    seeks_row_values = False

    #: Candidates read for each row still wanted; those that other claims have just locked are passed over.
    LOOK_AHEAD = 4

    def refuses_text(self, error: Exception) -> bool:
        number = error.args[0] if isinstance(error, OperationalError) and error.args else None
        return number in TEXT_REFUSED or super().refuses_text(error)

    def later(self, wait: timedelta) -> SQL:
        return SQL(
            f"({self.now} + INTERVAL %s MICROSECOND)", (int(wait / timedelta(microseconds=1)),)
        )

    def before_transaction(self) -> None:
        # REPEATABLE READ would bring gap locks and stale reads; this counts for the next transaction only.
        if getattr(self.connection, "isolation_level", None) != "read committed":
            self.run(SQL("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))

    def limit_lock_wait(self, seconds: int) -> None:
        # Of the session: there is no such setting for a transaction.
        self.run(SQL(f"SET SESSION innodb_lock_wait_timeout = {seconds}"))

    @contextmanager
    def keeping_limits(self) -> Iterator[None]:
        ((before,),) = self.fetch(SQL(f"SELECT @@SESSION.{self._limit}"))
        try:
            yield
        finally:
            # A session that is gone takes the setting with it.
            with suppress(Error):
                self.run(SQL(f"SET SESSION {self._limit} = {before}"))

    def limit_statements(self, limit: timedelta) -> None:
        unit = timedelta(seconds=1) if self._is_mariadb else timedelta(milliseconds=1)
        most = limit / unit if self._is_mariadb else max(1, int(limit / unit))
        self.run(SQL(f"SET SESSION {self._limit} = {most}"))

    @property
    def _limit(self) -> str:
        """MySQL counts milliseconds and minds SELECTs alone, MariaDB counts seconds; both keep it for the session."""
        return "max_statement_time" if self._is_mariadb else "max_execution_time"

    def end_idle_transactions(self, idle: timedelta, *, ours_alone: bool) -> None:
        seconds = max(1, math.ceil(idle.total_seconds()))
        if ours_alone:
            self.run(SQL("SET SESSION innodb_lock_wait_timeout = 2"))
            self.run(SQL("SET SESSION lock_wait_timeout = 2"))
        if self._is_mariadb:
            self.run(SQL(f"SET SESSION idle_transaction_timeout = {seconds}"))
        elif ours_alone:
            self.limit_idle_session(idle)

    def limit_idle_session(self, idle: timedelta | None) -> None:
        if self._is_mariadb:
            return
        # MySQL knows idle sessions only; a handler that thinks between two queries must not be cut off.
        seconds = "DEFAULT" if idle is None else max(1, math.ceil(idle.total_seconds()))
        self.run(SQL(f"SET SESSION wait_timeout = {seconds}"))

    @contextmanager
    def guarded_transaction(self, idle: timedelta) -> Iterator[None]:
        # Of the session, so it is taken back, but not before the COMMIT: a process may freeze between the two.
        name = "idle_transaction_timeout" if self._is_mariadb else "wait_timeout"
        ((usual,),) = self.fetch(SQL(f"SELECT @@SESSION.{name}"))
        asked = max(1, math.ceil(idle.total_seconds()))
        asked = min(asked, usual or asked)
        self.run(SQL(f"SET SESSION {name} = {asked}"))
        session = self.connection.connection
        try:
            with self.own_transaction(durable=True):
                yield
        finally:
            # A session that is gone takes the setting with it.
            if self.connection.connection is session:
                with suppress(Error):
                    self.run(SQL(f"SET SESSION {name} = {usual}"))

    def session_id(self) -> int | None:
        raw: Any = self.connection.connection
        return None if raw is None else int(raw.thread_id())

    def end_session(self, number: int) -> None:
        try:
            self.run(SQL("KILL %s", (number,)))
        except OperationalError as error:
            if error.args[:1] != (NO_SUCH_THREAD,):
                raise

    def service_options(self) -> dict[str, Any]:
        # mysqlclient waits for ever by default.
        return {"connect_timeout": 5, "read_timeout": 10, "write_timeout": 10}

    def update_target(self, table: KeyTable) -> str:
        return self.locking_source(table)

    def locking_source(self, table: KeyTable) -> str:
        return f"{table.name} FORCE INDEX ({table.key_index})"

    def key_table(self, columns: KeyColumns) -> KeyTable:
        if columns.owner._meta.managed:
            return super().key_table(columns)
        return KeyTable(columns, self.connection, key_index=self._index_of_key(columns))

    def _index_of_key(self, columns: KeyColumns) -> str:
        """Return the index that leads to the rows of a table that Django has not made."""
        name, key = real_name(columns.owner._meta.db_table), [field.column for field in columns.key]
        with self.connection.cursor() as cursor:
            found = self.connection.introspection.get_constraints(cursor, name)
        for index, facts in found.items():
            if facts["index"] and [*facts["columns"]][: len(key)] == [*map(real_name, key)]:
                return self.connection.ops.quote_name(index.replace("%", "%%"))
        raise NotSupportedError(
            f"The table {name} has no index on {', '.join(map(str, key))}, so all rows are locked to find one."
        )

    def claim_best(self, order: ClaimOrder, table: Table) -> list[list[Any]]:
        keys = self._lock_candidates(order, table)
        if not keys:
            return []
        written = self.take(order, table, keys)
        if not written:
            # A pause was committed between the two statements.
            return []
        if written != len(keys):
            # Undoes the part that was written: rows claimed and handed to nobody would wait for their lease to end.
            raise TaskClaimError(
                f"Claimed {written} of {len(keys)} rows that were locked for it; rolled back."
            )
        return self.read(table, keys, order.returning)

    def _lock_candidates(self, order: ClaimOrder, table: Table) -> list[Key]:
        """Return the keys of up to ``limit`` rows that are now ours to claim."""
        rows = self._lock_in_order(
            order.candidates, table, order.limit, table.columns.key, order.limit * self.LOOK_AHEAD
        )
        return [table.key_of(row) for row in rows]

    def lock_in_order(
        self, queryset: "models.QuerySet[Any]", table: KeyTable, limit: int, *, deleting: bool
    ) -> list[Key]:
        if not self.connection.features.has_select_for_update_skip_locked:
            return super().lock_in_order(queryset, table, limit, deleting=deleting)
        key = table.columns.key
        rows = self._lock_in_order(queryset, table, limit, key, look=limit * self.LOOK_AHEAD)
        return [table.key_of(row) for row in rows]

    def delete_locked(self, table: KeyTable, keys: Sequence[Key]) -> int:
        # On a small table every plainer form walks all rows, index hint or not, and waits for those of others.
        own = table.list_of(table.columns.key)
        same = " AND ".join(f"{table.name}.{one} = taskclaim_k.{one}" for one in table.key)
        chosen = sql("SELECT DISTINCT {} FROM {} WHERE {}", own, table.name, table.keyed(keys))
        text = "DELETE {} FROM ({}) taskclaim_k STRAIGHT_JOIN {} ON {}"
        return self.run(sql(text, table.name, chosen, self.locking_source(table), same))

    def _lock_in_order(
        self,
        queryset: "models.QuerySet[Any]",
        table: KeyTable,
        limit: int,
        fields: Sequence[AnyField],
        look: int,
    ) -> list[list[Any]]:
        """Lock up to *limit* rows, the first of *queryset* that nobody else has, and return *fields* of each.

        *look* keys are read at first, and more as long as others have too many of them.
        """
        locked: list[list[Any]] = []
        tried: set[Key] = set()
        while True:
            keys = [
                table.key_of(row) for row in self.first(queryset, table, look, table.columns.key)
            ]
            # A join in the order may show a key more than once.
            fresh = [key for key in dict.fromkeys(keys) if key not in tried]
            while fresh and len(locked) < limit:
                part = fresh[: limit - len(locked)]
                fresh = fresh[len(part) :]
                tried.update(part)
                locked += self._lock_keys(queryset, table, part, fields)
            if len(locked) == limit or len(keys) < look:
                return locked
            look *= self.LOOK_AHEAD

    def _lock_keys(
        self,
        queryset: "models.QuerySet[Any]",
        table: KeyTable,
        keys: Sequence[Key],
        fields: Sequence[AnyField],
    ) -> list[list[Any]]:
        """Lock those of *keys* that nobody else has locked and that still belong to *queryset*."""
        where = table.where_of(queryset)
        if where is None or not keys:
            return []
        statement = sql(
            "SELECT {} FROM {} WHERE {} AND {} ORDER BY {} {} SKIP LOCKED",
            table.list_of(fields),
            self.locking_source(table),
            table.keyed(keys),
            where,
            table.list_of(table.columns.key),
            self.lock_clause,
        )
        return table.python_rows(fields, self.fetch(statement))

    def lock_first(
        self,
        queryset: "models.QuerySet[Any]",
        table: Table,
        limit: int,
        fields: Sequence[AnyField],
    ) -> list[list[Any]]:
        return self._lock_in_order(queryset, table, limit, fields, look=limit)

    def claim_update_limit(self, order: ClaimOrder, table: Table) -> list[list[Any]]:
        """Claim as servers without SKIP LOCKED can: mark the first rows in order, then find them by the mark."""
        named = WORKER_MARK not in order.holder
        # A holder that claims twice would get its old rows back with the new ones.
        batch = (
            f"{order.holder[:150]}{WORKER_MARK}{secrets.token_hex(8)}" if named else order.holder
        )
        if not self._mark_first(order, table, batch):
            return []
        columns = table.columns
        held = sql(
            "{} AND {} = {}",
            table.in_state(Status.PROCESSING),
            table.qualified(columns.claimed_by),
            value(batch),
        )
        keys = table.python_keys(
            self.fetch(
                sql("SELECT {} FROM {} WHERE {}", table.list_of(columns.key), table.name, held)
            )
        )
        if named:
            self.update_where(
                table, keys, held, [table.assign(columns.claimed_by, value(order.holder))]
            )
        return self.read(table, keys, order.returning)

    def _mark_first(self, order: ClaimOrder, table: Table, batch: str) -> int:
        conditions = self.claimable(order, table)
        if order.simple:
            where = table.where_of(order.candidates)
            conditions = [] if where is None else [where]
            ranking = ", ".join(
                table.qualified(field) + " DESC" * descending
                for field, descending in table.columns.ranking
            )
        else:
            # An UPDATE can neither join nor look at its own table, so the candidates are read first.
            keys = [
                table.key_of(row)
                for row in self.first(order.candidates, table, order.limit, table.columns.key)
            ]
            conditions = [table.keyed(keys), *conditions] if keys else []
            ranking = table.list_of(table.columns.key)
        if not conditions:
            return 0
        return self.run(
            sql(
                "UPDATE {} SET {} WHERE {} ORDER BY {} LIMIT {}",
                table.name,
                self.claim_assignments(replace(order, holder=batch), table),
                SQL.join(" AND ", conditions),
                ranking,
                value(order.limit),
            )
        )

    def update_held(
        self, table: Table, token: Token, keys: Sequence[Key], assignments: Sequence[SQL]
    ) -> list[Key]:
        """Write the rows that *token* still holds; without RETURNING they are locked first to know which those are."""
        if len(keys) == 1 and self.update_where(table, keys, table.standing(token), assignments):
            return list(keys)
        held = self.lock_standing(table, token, keys)
        if held:
            self.update_where(table, held, table.standing(token), assignments)
        return held

    def delete_held(self, table: Table, token: Token, keys: Sequence[Key]) -> list[Key]:
        """Delete the rows that *token* still holds, locked first like those of ``update_held``."""
        standing = table.standing(token)
        if len(keys) == 1 and self._delete_keyed(table, keys, standing):
            return list(keys)
        held = self.lock_standing(table, token, keys)
        if held:
            self._delete_keyed(table, held, standing)
        return held

    def _delete_keyed(self, table: Table, keys: Sequence[Key], condition: SQL) -> int:
        return self.delete_where(table.name, sql("{} AND {}", table.keyed(keys), condition))

    def delete_where(self, name: str, condition: SQL) -> int:
        # Only this form takes a hint, and without one a small table is read, and locked, as a whole.
        return self.run(
            sql("DELETE {} FROM {} FORCE INDEX (PRIMARY) WHERE {}", name, name, condition)
        )

    def queue(self, name: str) -> None:
        """Wait in line at a row of that name: GET_LOCK belongs to the session, not to the transaction."""
        digest = hashlib.sha256(name.encode()).hexdigest()
        self.run(
            sql(
                "INSERT INTO {} (name, claimed_at, iteration) VALUES ({}, {}, 0)"
                " ON DUPLICATE KEY UPDATE claimed_at = VALUES(claimed_at)",
                NAMED_LEASES,
                value(f"queue:{digest}"),
                self.now,
            )
        )

    def sees_new_commits(self) -> bool:
        return getattr(self.connection, "isolation_level", None) == "read committed"

    # What people ask about the database

    @property
    def _is_mariadb(self) -> bool:
        return bool(getattr(self.connection, "mysql_is_mariadb", False))

    def explain(self, statement: SQL, table: Table, *, may_sort: bool) -> Plan:
        """Judge what locks at any size, and the rest from a size on at which an optimiser should know better.

        A sort locks too much where a LIMIT follows it: every row that was sorted, not the first ones only.
        """
        how = "EXPLAIN {}" if self._is_mariadb else "EXPLAIN FORMAT=TRADITIONAL {}"
        steps = self._told_steps(sql(how, statement))
        name = real_name(table.columns.owner._meta.db_table)
        writes = statement.text.startswith(("UPDATE", "DELETE"))
        locks = writes or self.lock_clause in statement.text
        ours = [step for step in steps if step["table"] == name]
        large = [step for step in ours if int(step["rows"] or 0) >= LARGE]
        sorted_steps = any("filesort" in (step["extra"] or "") for step in steps)
        return Plan(
            tuple(_told(step) for step in steps),
            sorts=sorted_steps
            and not may_sort
            and (bool(large) or (locks and " LIMIT " in statement.text)),
            scans=any(step["type"] in {"ALL", "index"} for step in (ours if locks else large)),
        )

    def believed(self, table: Table) -> Belief:
        """Ask the optimiser, which dives into the index: information_schema may be a day old."""
        told = {
            state.value: self._believed_rows(sql("WHERE {}", table.in_state(state)), table)
            for state in Status
        }
        return Belief(self._believed_rows(SQL(""), table), told)

    def _believed_rows(self, where: SQL, table: Table) -> float:
        how = "EXPLAIN {}" if self._is_mariadb else "EXPLAIN FORMAT=TRADITIONAL {}"
        counting = sql("SELECT COUNT(*) FROM {} {}", table.name, where)
        return float(sum(int(step["rows"] or 0) for step in self._told_steps(sql(how, counting))))

    def _told_steps(self, statement: SQL) -> list[dict[str, Any]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement.text, statement.params)
            names = [column[0].lower() for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def ignored_indexes(self, table_name: str) -> set[str]:
        visible, shown = ("IGNORED", "NO") if self._is_mariadb else ("IS_VISIBLE", "YES")
        hidden = sql(
            f"SELECT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE()"
            f" AND TABLE_NAME = {{}} AND {visible} <> '{shown}'",
            value(table_name),
        )
        return {row[0] for row in self.fetch(hidden)}

    def refresh_statistics(self, table: Table) -> str:
        return f"ANALYZE TABLE {real_name(table.name)}"

    def configured_faults(self) -> Iterator[Fault]:
        alias, options = self.connection.alias, self.connection.settings_dict["OPTIONS"]
        flags = options.get("client_flag")
        if flags is not None and not flags & FOUND_ROWS:
            yield Fault(
                "E007",
                f"client_flag of the database {alias!r} is {flags!r}, without FOUND_ROWS: an UPDATE that finds a row"
                " as it should be counts 0 rows, and a claim that stands looks lost.",
                option_hint(alias, "client_flag", f"{flags} | MySQLdb.constants.CLIENT.FOUND_ROWS"),
            )
        asked = options.get("isolation_level", "read committed")
        if str(asked).lower() != "read committed":
            level = "the server's own level" if asked is None else str(asked).upper()
            yield Fault(
                "W002",
                f"The database {alias!r} runs transactions at {level}: claims set READ COMMITTED for"
                " themselves, but a handler's own transactions take gap locks, read stale rows and deadlock more.",
                option_hint(alias, "isolation_level", '"read committed"'),
            )

    def server_faults(self, tables: Sequence[Table]) -> Iterator[Fault]:
        if not self.connection.features.has_select_for_update_skip_locked:
            yield Fault(
                "E101",
                f"{self.connection.display_name} {_version(self.connection)} has no SKIP LOCKED, which every"
                " renewal and the reaper need.",
                "Use MySQL 8.0.1 or newer, or MariaDB 10.6 or newer.",
            )
        yield from self._replication_faults()
        for table in tables:
            yield from self._engine_faults(table)
            yield from self._collation_faults(table)

    def _replication_faults(self) -> Iterator[Fault]:
        said = dict(
            self.fetch(SQL(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({', '.join(_TOLD)})"))
        )
        if said.get("log_bin") == "ON" and said.get("binlog_format") == "STATEMENT":
            yield Fault(
                "E103",
                f"The database {self.connection.alias!r} writes its binary log as statements, and so refuses or"
                " replicates wrongly what SKIP LOCKED and LIMIT chose.",
                "SET PERSIST binlog_format = 'ROW'  -- or binlog_format = ROW in the server's configuration",
            )
        if said.get("wsrep_on") == "ON":
            yield Fault(
                "W108",
                f"The database {self.connection.alias!r} is a Galera cluster: row locks hold on one node only, so"
                " claims sent to several nodes end in certification failures.",
                "Send all workers to one node.",
            )

    def _engine_faults(self, table: Table) -> Iterator[Fault]:
        name = real_name(table.columns.owner._meta.db_table)
        engine = self.fetch(
            sql(
                "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = {}",
                value(name),
            )
        )
        if engine and engine[0][0] and engine[0][0].upper() not in {"INNODB", "NDBCLUSTER"}:
            yield Fault(
                "E102",
                f"The table {name} is kept by {engine[0][0]}, which has neither transactions nor row locks.",
                f"ALTER TABLE {table.name} ENGINE = InnoDB;".replace("%%", "%"),
            )

    def _collation_faults(self, table: Table) -> Iterator[Fault]:
        field = table.columns.claimed_by
        meant = field.db_parameters(self.connection)
        found = self.fetch(
            sql(
                "SELECT COLLATION_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()"
                " AND TABLE_NAME = {} AND COLUMN_NAME = {}",
                value(real_name(table.columns.owner._meta.db_table)),
                value(real_name(field.column)),
            )
        )
        collation = found[0][0] if found else None
        if collation and not collation.endswith(EXACT):
            column = table.column(field).replace("%%", "%")
            yield Fault(
                "E104",
                f"Holders in {field.model._meta.db_table}.{field.column} are compared by {collation}, which takes"
                " different names for the same (user:Bob for user:bob, or one with a space at its end).",
                f"ALTER TABLE {table.name.replace('%%', '%')} MODIFY {column} {meant['type']} CHARACTER SET utf8mb4"
                f" COLLATE {meant['collation']} NULL;",
            )


#: CLIENT_FOUND_ROWS of the client library: an UPDATE counts the rows it found, changed or not.
FOUND_ROWS = 2

#: Collations that compare byte for byte, the space at the end included.
EXACT = ("_nopad_bin", "_0900_bin", "binary")

_TOLD = ("'log_bin'", "'binlog_format'", "'wsrep_on'")


def _told(step: dict[str, Any]) -> str:
    facts = {
        name: step[name]
        for name in ("table", "type", "key", "rows", "extra")
        if step[name] is not None
    }
    return ", ".join(f"{name}: {fact}" for name, fact in facts.items())


def _version(connection: Any) -> str:
    return ".".join(str(part) for part in connection.mysql_version)
