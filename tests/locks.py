"""Locks of a table, and whether a session waits for one, asked of the database itself."""

from django.db import connection

from tests.querysets.support import value_of


def waits_for_a_lock() -> bool:
    """Say whether a session of this database waits for a lock of another."""
    statement = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'",
        "mysql": "SELECT count(*) FROM information_schema.innodb_trx"
        " JOIN information_schema.processlist ON id = trx_mysql_thread_id"
        " WHERE db = DATABASE() AND trx_state = 'LOCK WAIT'",
    }[connection.vendor]
    return bool(value_of(statement))


def keeping_writers_out(table: str) -> tuple[str, str]:
    """Return what keeps all others from writing to the table, and what ends that."""
    return {
        "sqlite": ("BEGIN IMMEDIATE", "ROLLBACK"),
        "postgresql": (f"BEGIN; LOCK TABLE {table} IN SHARE MODE", "ROLLBACK"),
        "mysql": (f"LOCK TABLES {table} READ", "UNLOCK TABLES"),
    }[connection.vendor]
