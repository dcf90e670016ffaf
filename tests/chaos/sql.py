"""The triggers that copy every change of the work table into the history, and other SQL that differs by database.

One more trigger refuses the completion of rows with the act "refuse", with an error of Django's OperationalError.
"""

from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tests.chaos.app.models import TRACKED, Work

TABLE = "chaos_work"
COPY = "chaos_copy"
REFUSE = "chaos_refuse"

#: The clock of the database at the start of the statement, the one that claims are decided by.
NOW = {
    "postgresql": "STATEMENT_TIMESTAMP()",
    "mysql": "UTC_TIMESTAMP(6)",
    "sqlite": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now')",
}

_REFUSED = "NEW.status = 'complete' AND NEW.act = 'refuse'"
REFUSING = {
    "postgresql": [
        f"CREATE FUNCTION {REFUSE}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'the trigger refuses this result' USING ERRCODE = '54000'; END $$",
        f"CREATE TRIGGER {REFUSE} BEFORE UPDATE ON {TABLE} FOR EACH ROW WHEN ({_REFUSED}) EXECUTE FUNCTION {REFUSE}()",
    ],
    "mysql": [
        f"CREATE TRIGGER {REFUSE} BEFORE UPDATE ON {TABLE} FOR EACH ROW BEGIN IF {_REFUSED} THEN"
        " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the trigger refuses this result'; END IF; END"
    ],
    # RAISE() would be an IntegrityError.
    "sqlite": [
        f"CREATE TRIGGER {REFUSE} BEFORE UPDATE ON {TABLE} FOR EACH ROW WHEN {_REFUSED}"
        " BEGIN SELECT JSON('the trigger refuses this result'); END"
    ],
}


def now(connection: BaseDatabaseWrapper) -> str:
    return NOW[connection.vendor]


def later(connection: BaseDatabaseWrapper, moment: str, seconds: float | str) -> str:
    """Return *moment* (an expression) so many seconds later; *seconds* may be an expression too."""
    return {
        "postgresql": f"({moment} + ({seconds}) * INTERVAL '1 second')",
        "mysql": f"({moment} + INTERVAL ROUND(({seconds}) * 1000000) MICROSECOND)",
        "sqlite": f"STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', {moment}, ({seconds}) || ' seconds')",
    }[connection.vendor]


def differs(connection: BaseDatabaseWrapper, left: str, right: str) -> str:
    """Compare two values of which either may be NULL."""
    return {
        "postgresql": f"{left} IS DISTINCT FROM {right}",
        "mysql": f"NOT ({left} <=> {right})",
        "sqlite": f"{left} IS NOT {right}",
    }[connection.vendor]


def execute(connection: BaseDatabaseWrapper, statement: str, params: Any = ()) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, tuple(params))
        return int(cursor.rowcount)


def install(using: str = "default") -> None:
    """Put the triggers on the work table."""
    uninstall(using)
    connection = connections[using]
    for statement in [*_triggers(connection), *REFUSING[connection.vendor]]:
        execute(connection, statement)


def uninstall(using: str = "default") -> None:
    """Take the triggers off: emptying the table is no change of rows."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        execute(connection, f"DROP FUNCTION IF EXISTS {COPY}() CASCADE")
        execute(connection, f"DROP FUNCTION IF EXISTS {REFUSE}() CASCADE")
        return
    execute(connection, f"DROP TRIGGER IF EXISTS {REFUSE}")
    for operation in ("insert", "update", "delete"):
        execute(connection, f"DROP TRIGGER IF EXISTS {COPY}_{operation}")


def _triggers(connection: BaseDatabaseWrapper) -> list[str]:
    if connection.vendor == "postgresql":
        return _one_function(connection)
    each = "FOR EACH ROW"
    changed = _changed(connection)
    update = _copy(connection, "U", "OLD", "NEW")
    if connection.vendor == "mysql":
        body = f"{each} BEGIN IF {changed} THEN {update}; END IF; END"
    else:
        body = f"{each} WHEN {changed} BEGIN {update}; END"
    return [
        f"CREATE TRIGGER {COPY}_insert AFTER INSERT ON {TABLE} {each} BEGIN {_copy(connection, 'I', '', 'NEW')}; END",
        f"CREATE TRIGGER {COPY}_update AFTER UPDATE ON {TABLE} {body}",
        f"CREATE TRIGGER {COPY}_delete AFTER DELETE ON {TABLE} {each} BEGIN {_copy(connection, 'D', 'OLD', '')}; END",
    ]


def _one_function(connection: BaseDatabaseWrapper) -> list[str]:
    body = (
        f"IF TG_OP = 'INSERT' THEN {_copy(connection, 'I', '', 'NEW')};"
        f" ELSIF TG_OP = 'DELETE' THEN {_copy(connection, 'D', 'OLD', '')};"
        f" ELSIF {_changed(connection)} THEN {_copy(connection, 'U', 'OLD', 'NEW')}; END IF; RETURN NULL;"
    )
    return [
        f"CREATE FUNCTION {COPY}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
        f"CREATE TRIGGER {COPY} AFTER INSERT OR UPDATE OR DELETE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION {COPY}()",
    ]


def _changed(connection: BaseDatabaseWrapper) -> str:
    return " OR ".join(differs(connection, f"OLD.{name}", f"NEW.{name}") for name in _columns())


def _copy(connection: BaseDatabaseWrapper, op: str, old: str, new: str) -> str:
    """Return the INSERT of one entry; *old* or *new* is empty where there is no such row."""
    columns = _columns()
    before = [f"{old}.{name}" if old else "NULL" for name in columns]
    after = [f"{new}.{name}" if new else "NULL" for name in columns]
    names = [*(f"old_{name}" for name in columns), *(f"new_{name}" for name in columns)]
    return (
        f"INSERT INTO chaos_history (work_id, op, at, {', '.join(names)})"
        f" VALUES ({new or old}.id, '{op}', {now(connection)}, {', '.join([*before, *after])})"
    )


def _columns() -> list[str]:
    return [Work._meta.get_field(name).column for name in TRACKED]
