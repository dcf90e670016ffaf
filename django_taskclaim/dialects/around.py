"""What hangs on a table and on its server: triggers, publications, partitions, replicas, the limit of connections.

Asked by the doctor alone, so it stands beside the dialects rather than in them; each database has its class here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django_taskclaim.dialects.base import Dialect
from django_taskclaim.dialects.inspection import real_name
from django_taskclaim.dialects.statements import SQL, Table, sql, value


@dataclass(frozen=True, slots=True)
class Hangers:
    """What each update of a row of one table brings along."""

    #: Row triggers that an update of our columns fires.
    triggers: Sequence[str] = ()
    #: What sends each change of a row to subscribers.
    publications: Sequence[str] = ()
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class Connections:
    """How many a server lets a user like ours open, and how many are open now, whoever has them."""

    most: int
    open: int


class Around:
    """Where nothing special is known: nothing hangs there, and nothing is limited."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def hangers(self, table: Table) -> Hangers:
        return Hangers()

    def replicas(self) -> int:
        """Return how many servers follow this one, as far as we may know."""
        return 0

    def connections(self) -> Connections | None:
        """Return the limit; None where there is none."""
        return None

    def _names(self, statement: SQL) -> list[str]:
        return [str(row[0]) for row in self.dialect.fetch(statement)]

    def _number(self, statement: SQL) -> int:
        ((number,),) = self.dialect.fetch(statement)
        return int(number or 0)


#: Bits of pg_trigger.tgtype: for each row, on update.
_ROW, _UPDATE = 1, 16


class AroundPostgreSQL(Around):
    """By the catalogues, which every user may read."""

    def hangers(self, table: Table) -> Hangers:
        name = value(real_name(table.name))
        ours = [real_name(field.column) for field in table.columns.guarded]
        columns = SQL.join(", ", [value(column) for column in ours])
        # tgattr names the columns of UPDATE OF; without any the trigger is for all.
        triggers = self._names(
            sql(
                "SELECT t.tgname FROM pg_trigger t WHERE t.tgrelid = {}::regclass AND NOT t.tgisinternal"
                " AND t.tgenabled <> 'D' AND t.tgtype & {} = {} AND (t.tgattr::text = ''"
                " OR EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = t.tgrelid"
                " AND a.attnum = ANY(t.tgattr) AND a.attname IN ({}))) ORDER BY t.tgname",
                name,
                value(_ROW | _UPDATE),
                value(_ROW | _UPDATE),
                columns,
            )
        )
        publications = self._names(
            sql(
                "SELECT DISTINCT p.pubname FROM pg_publication_tables p JOIN pg_class c ON c.relname = p.tablename"
                " JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = p.schemaname"
                " WHERE c.oid = {}::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree({}::regclass))"
                " ORDER BY p.pubname",
                name,
                name,
            )
        )
        # Of partitions of partitions the leaves: it is they that are read.
        partitions = self._number(
            sql(
                "SELECT COUNT(*) FROM pg_partition_tree({}::regclass) WHERE isleaf AND level > 0",
                name,
            )
        )
        return Hangers(triggers, publications, partitions)

    def replicas(self) -> int:
        return self._number(SQL("SELECT COUNT(*) FROM pg_stat_replication"))

    def connections(self) -> Connections:
        most = self._number(
            SQL(
                "SELECT LEAST("
                "current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
                " - COALESCE(current_setting('reserved_connections', true), '0')::int,"
                " NULLIF((SELECT datconnlimit FROM pg_database WHERE datname = current_database()), -1),"
                " NULLIF((SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user), -1))"
            )
        )
        sessions = "SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        return Connections(most, self._number(SQL(sessions)))


class AroundMySQL(Around):
    """By the information schema, for MariaDB too."""

    def hangers(self, table: Table) -> Hangers:
        name = value(real_name(table.columns.owner._meta.db_table))
        triggers = self._names(
            sql(
                "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = DATABASE()"
                " AND EVENT_OBJECT_TABLE = {} AND EVENT_MANIPULATION = 'UPDATE' ORDER BY TRIGGER_NAME",
                name,
            )
        )
        partitions = self._number(
            sql(
                "SELECT COUNT(PARTITION_NAME) FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = DATABASE()"
                " AND TABLE_NAME = {}",
                name,
            )
        )
        return Hangers(triggers, (), partitions)

    def replicas(self) -> int:
        # Each has a thread here that dumps the binary log to it; others' threads show to whoever has PROCESS.
        return self._number(
            SQL(
                "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%%'"
            )
        )

    def connections(self) -> Connections:
        ((most, of_user),) = self.dialect.fetch(
            SQL("SELECT @@GLOBAL.max_connections, @@SESSION.max_user_connections")
        )
        open_now: Any = dict(self.dialect.fetch(SQL("SHOW GLOBAL STATUS LIKE 'Threads_connected'")))
        return Connections(min(most, of_user or most), int(open_now.get("Threads_connected", 0)))


class AroundSQLite(Around):
    """It keeps triggers, and nothing else of this."""

    def hangers(self, table: Table) -> Hangers:
        name = value(real_name(table.columns.owner._meta.db_table))
        kept = self.dialect.fetch(
            sql(
                "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower({})"
                " ORDER BY name",
                name,
            )
        )
        return Hangers([trigger for trigger, text in kept if "UPDATE" in _event(text)])


def _event(text: str) -> str:
    """Return the part of a CREATE TRIGGER that says when it fires."""
    before, _, _ = text.upper().partition("BEGIN")
    return before


_KINDS: dict[str, type[Around]] = {
    "postgresql": AroundPostgreSQL,
    "mysql": AroundMySQL,
    "sqlite": AroundSQLite,
}


def around(dialect: Dialect) -> Around:
    """Return who knows what hangs on the tables of this database."""
    return _KINDS.get(dialect.connection.vendor, Around)(dialect)
