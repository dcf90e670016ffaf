"""MySQL and MariaDB: statistics, and settings that break a promise."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from django.core.checks import CheckMessage
from django.db import DatabaseError, NotSupportedError

from django_taskclaim.db.mysql import changed_setting, is_mariadb
from django_taskclaim.db.sql import SQL, Table, sql
from django_taskclaim.monitoring.server.base import Server, message

#: CLIENT_FOUND_ROWS of the client library: an UPDATE counts the rows it found, changed or not.
FOUND_ROWS = 2

#: Collations that compare byte for byte, the space at the end included.
EXACT = ("_nopad_bin", "_0900_bin", "binary")

#: ER_ACCESS_DENIED_ERROR and ER_SPECIFIC_ACCESS_DENIED_ERROR
DENIED = {1045, 1227}


class MySQLServer(Server):
    """What MySQL and MariaDB report about themselves."""

    @property
    def _is_mariadb(self) -> bool:
        return is_mariadb(self.connection)

    def expected_rows(self, table: Table, where: SQL) -> float:
        # The optimiser dives into the index: information_schema may be a day old.
        statement = sql("SELECT COUNT(*) FROM {}{}", table.name, where)
        how = "EXPLAIN" if self._is_mariadb else "EXPLAIN FORMAT=TRADITIONAL"
        steps = self._named_rows(f"{how} {statement.text}", statement.params)
        return float(sum(int(step["rows"] or 0) for step in steps))

    def _named_rows(self, question: str, params: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return rows by the names of their columns, in small letters."""
        with self.connection.cursor() as cursor:
            cursor.execute(question, params)
            names = [column[0].lower() for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    # Settings and versions

    def configured_faults(self) -> Iterator[CheckMessage]:
        options = self.connection.settings_dict["OPTIONS"]
        flags = options.get("client_flag")
        if flags is not None and not flags & FOUND_ROWS:
            yield message(
                "E007",
                f"client_flag of the database {self.alias!r} is {flags!r}, without FOUND_ROWS: an UPDATE that finds a"
                " row as it should be counts 0 rows, and a claim that stands looks lost.",
                f'DATABASES["{self.alias}"]["OPTIONS"]["client_flag"] = {flags} | MySQLdb.constants.CLIENT.FOUND_ROWS',
            )

    def server_faults(self, tables: Sequence[Table]) -> Iterator[CheckMessage]:
        if not self.connection.features.has_select_for_update_skip_locked:
            yield message(
                "E101",
                f"This {self.connection.display_name} has no SKIP LOCKED, which every renewal and the reaper need.",
                "Use MySQL 8.0.1 or newer, or MariaDB 10.6 or newer.",
            )
        if self.ask("SHOW SESSION VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'"):
            yield message(
                "W102",
                f"The database {self.alias!r} is a Galera cluster: row locks hold on one node only, so"
                " claims sent to several nodes end in certification failures.",
                "Send all workers to one node.",
            )
        for table in tables:
            yield from self._table_faults(table)

    def _table_faults(self, table: Table) -> Iterator[CheckMessage]:
        field, name = table.columns.claimed_by, table.model_table
        found = self.ask(
            "SELECT t.ENGINE, c.COLLATION_NAME FROM information_schema.TABLES t"
            " LEFT JOIN information_schema.COLUMNS c ON c.TABLE_SCHEMA = t.TABLE_SCHEMA"
            " AND c.TABLE_NAME = t.TABLE_NAME AND c.COLUMN_NAME = %s"
            " WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = %s",
            field.column,
            name,
        )
        engine, collation = found[0] if found else (None, None)
        if engine and engine.upper() not in {"INNODB", "NDBCLUSTER"}:
            yield message(
                "E102",
                f"The table {name} is kept by {engine}, which has neither transactions nor row locks.",
                f"ALTER TABLE {table.name} ENGINE = InnoDB;",
            )
        if collation and not collation.endswith(EXACT):
            meant = field.db_parameters(self.connection)
            yield message(
                "E103",
                f"Holders in {field.model._meta.db_table}.{field.column} are compared by {collation}, which takes"
                " different names for the same (user:Bob for user:bob, or one with a space at its end).",
                f"ALTER TABLE {table.name} MODIFY {table.column(field)} {meant['type']} CHARACTER SET utf8mb4"
                f" COLLATE {meant['collation']} NULL;",
            )

    # Old versions of rows

    # trx_started is in the time zone of the server's system.
    oldest_transaction = """
SELECT TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), UTC_TIMESTAMP()),
    CONCAT('session ', trx_mysql_thread_id, ', ', LOWER(trx_state)), CONCAT('KILL ', trx_mysql_thread_id, ';')
FROM information_schema.innodb_trx WHERE trx_mysql_thread_id NOT IN (0, CONNECTION_ID())
ORDER BY trx_started LIMIT 1
"""

    # Health

    def own_lag(self) -> timedelta | None:
        question = "SHOW ALL SLAVES STATUS" if self._is_mariadb else "SHOW REPLICA STATUS"
        try:
            rows = self._named_rows(question)
        except DatabaseError as error:
            if error.args[0] in DENIED:
                # The server names the privilege.
                raise NotSupportedError(f"The database {self.alias!r}: {error.args[-1]}") from error
            raise
        # Of each source in seconds; NULL where it is not followed any more.
        name = f"seconds_behind_{'master' if self._is_mariadb else 'source'}"
        lags = [row[name] for row in rows]
        return None if not lags or None in lags else timedelta(seconds=max(lags))

    # How long questions may take

    def limiting_statements(self, limit: timedelta) -> AbstractContextManager[None]:
        # MySQL counts milliseconds and minds SELECTs alone, MariaDB counts seconds; both keep it for the session.
        seconds = limit.total_seconds()
        if self._is_mariadb:
            return changed_setting(self.dialect, "max_statement_time", seconds)
        return changed_setting(self.dialect, "max_execution_time", max(1, int(seconds * 1000)))
