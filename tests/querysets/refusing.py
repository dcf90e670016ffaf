"""Rows of old tables that the database lets nobody write: frozen by a trigger, or in breach of a check."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

from tests.querysets.support import execute, table_of

#: The note of the rows that are refused.
FROZEN = "frozen"

#: What the trigger says.
SAID = "this row is frozen"
TRIGGERS = {
    "sqlite": [
        "CREATE TRIGGER refusing BEFORE UPDATE ON {table} WHEN {when} BEGIN {raises}; END",
    ],
    "mysql": [
        "CREATE TRIGGER refusing BEFORE UPDATE ON {table} FOR EACH ROW"
        " IF {when} THEN {raises}; END IF"
    ],
    "postgresql": [
        "CREATE OR REPLACE FUNCTION refusing() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN {raises}; END$$",
        "CREATE TRIGGER refusing BEFORE UPDATE ON {table} FOR EACH ROW WHEN ({when})"
        " EXECUTE FUNCTION refusing()",
    ],
}


def raising(code: str) -> str:
    """Return what raises the error of a *code*; without one an IntegrityError, OperationalError or ProgrammingError."""
    return {
        "sqlite": "SELECT json('no')" if code else f"SELECT RAISE(ABORT, '{SAID}')",
        "mysql": f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {code or 1644}, MESSAGE_TEXT = '{SAID}'",
        "postgresql": f"RAISE EXCEPTION '{SAID}' USING ERRCODE = '{code or 'P0001'}'",
    }[connection.vendor]


#: On PostgreSQL the row is in breach already, so every UPDATE is refused; elsewhere the claim would be the breach.
CHECKS = {
    "mysql": "CHECK (note <> 'frozen' OR status = 'open')",
    "postgresql": "CHECK (note <> 'frozen') NOT VALID",
}

#: Each way in which this database refuses rows. SQLite adds no check to a table that is there.
WAYS = ["trigger"] if connection.vendor == "sqlite" else ["trigger", "check"]


@contextmanager
def refused(
    model: Any, way: str = "trigger", *, when: str = "OLD.note = 'frozen'", code: str = ""
) -> Iterator[None]:
    """Have the database refuse every UPDATE of the rows that are frozen; a trigger may say *when* else, and how."""
    table = table_of(model)
    if way == "check":
        execute(f"ALTER TABLE {table} ADD CONSTRAINT refusing {CHECKS[connection.vendor]}")
    for statement in TRIGGERS[connection.vendor] if way == "trigger" else ():
        execute(statement.format(table=table, when=when, raises=raising(code)))
    try:
        yield
    finally:
        if way == "check":
            execute(f"ALTER TABLE {table} DROP CONSTRAINT refusing")
        elif connection.vendor == "postgresql":
            execute("DROP FUNCTION refusing() CASCADE")
        else:
            execute("DROP TRIGGER refusing")
