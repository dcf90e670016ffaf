"""What MySQL and MariaDB tell of themselves: plans, statistics, indexes, and settings that break a promise."""

from collections.abc import Iterator, Sequence
from typing import Any

from django_taskclaim.db.inspection import (
    LARGE,
    Belief,
    Fault,
    Inspection,
    Plan,
    option_hint,
    real_name,
)
from django_taskclaim.db.sql import SQL, Table, sql, value
from django_taskclaim.states import Status

#: CLIENT_FOUND_ROWS of the client library: an UPDATE counts the rows it found, changed or not.
FOUND_ROWS = 2

#: Collations that compare byte for byte, the space at the end included.
EXACT = ("_nopad_bin", "_0900_bin", "binary")

_TOLD = ("'log_bin'", "'binlog_format'", "'wsrep_on'")


class MySQLInspection(Inspection):
    """What people ask, for both servers, and how these two are told apart."""

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


def _told(step: dict[str, Any]) -> str:
    facts = {
        name: step[name]
        for name in ("table", "type", "key", "rows", "extra")
        if step[name] is not None
    }
    return ", ".join(f"{name}: {fact}" for name, fact in facts.items())


def _version(connection: Any) -> str:
    return ".".join(str(part) for part in connection.mysql_version)
