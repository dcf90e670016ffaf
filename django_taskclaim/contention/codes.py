"""Which errors are contention, which are trouble of the server's own, and which speak of the rows.

No driver is imported to tell, so none has to be installed.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

#: PostgreSQL's SQLSTATE, the error number of MySQL and MariaDB, or SQLite's (extended) result code.
Code: TypeAlias = str | int

# serialization_failure, deadlock_detected, lock_not_available
SQLSTATES = frozenset({"40001", "40P01", "55P03"})
# Lock wait timeout, deadlock, changed since the snapshot (MariaDB), NOWAIT (MySQL)
MYSQL_NUMBERS = frozenset({1205, 1213, 1020, 3572})
# SQLITE_BUSY and SQLITE_LOCKED, each also the low byte of its extended codes
SQLITE_CODES = frozenset({5, 6})

#: Others held a lock for longer than this session was to wait.
LOCK_TIMEOUTS = frozenset({"55P03", 1205, 3572})

# The server can write nothing now: no disk or memory left, read-only, not in its cluster (Galera).
SERVER_CLASSES, SERVER_SQLSTATES = ("53", "58"), frozenset({"25006"})
SERVER_NUMBERS = frozenset({1021, 1037, 1041, 1047, 1114, 1290, 1792, 1836, 3032})
# Out of memory, read-only, I/O error, corrupt, full, cannot open, locking protocol, no database
SERVER_SQLITE_CODES = frozenset({7, 8, 10, 11, 13, 14, 15, 26})
# A limit of one statement (temp_file_limit), although its class is that of insufficient resources
STATEMENT_SQLSTATES = frozenset({"53400"})

# No such table, no such column; SQLite says so with a code that has many meanings.
SCHEMA_CODES = frozenset({"42P01", "42703", 1146, 1054})
SCHEMA_WORDS = ("no such table", "no such column", "has no column")

# Errors that end a session: its connection fails, an operator intervenes, the server stops, its transaction stood
# still or took too long.
ENDING_CLASSES = ("08", "57P", "25P03", "25P04")
ENDING_NUMBERS = frozenset({1053, 1159, 1160, 1161, 1927, 4031})
# Errors that refuse a session: there are too many, or this account is not let in.
DOOR_NUMBERS = frozenset({1040, 1042, 1043, 1044, 1045, 1049, 1129, 1130, 1203, 1226, 1698, 3118})


def contention_code(error: BaseException | None) -> Code | None:
    """Return the database's own code if ``error`` is a lock timeout, deadlock or serialization failure.

    Returns None for every other error. The cause of a database error is looked at, too, for that is where
    Django keeps the driver's error. The cause of any other error is not: whoever raised a ``ValueError``
    from a deadlock has dealt with the deadlock.
    """
    return _first_code(error, _is_contention)


def is_of_the_schema(error: BaseException) -> bool:
    """Say whether a table or a column is missing that the statement names."""
    known = _first_code(error, lambda code, kind: code in SCHEMA_CODES and kind != "sqlite")
    return known is not None or str(error).startswith(SCHEMA_WORDS)


def server_code(error: BaseException | None) -> Code | None:
    """Return the database's own code if ``error`` says that the server can write nothing now, else None.

    Where the code may stand is as with ``contention_code``.
    """
    return _first_code(error, _is_of_the_server)


def refusal_code(error: BaseException | None) -> Code | None:
    """Return the database's own code if ``error`` is its answer to a statement that it does not take, else None.

    Such an answer speaks of the rows, in whichever class of errors the driver puts it, and nothing was done. It is
    neither contention nor trouble of the server's, and did not end the session.
    """
    return _first_code(error, _is_refusal)


def _is_contention(code: Code, kind: str) -> bool:
    if kind == "sqlite":
        return isinstance(code, int) and code & 0xFF in SQLITE_CODES
    return code in (SQLSTATES if kind == "sqlstate" else MYSQL_NUMBERS)


def _is_of_the_server(code: Code, kind: str) -> bool:
    if isinstance(code, str):
        return code in SERVER_SQLSTATES or (
            code.startswith(SERVER_CLASSES) and code not in STATEMENT_SQLSTATES
        )
    return code & 0xFF in SERVER_SQLITE_CODES if kind == "sqlite" else code in SERVER_NUMBERS


def _is_refusal(code: Code, kind: str) -> bool:
    if _is_contention(code, kind) or _is_of_the_server(code, kind):
        return False
    if isinstance(code, str):
        return not code.startswith(ENDING_CLASSES)
    # From 2000 to 2999 it is the client that speaks: the server is gone.
    return kind == "sqlite" or (
        code // 1000 not in (0, 2) and code not in ENDING_NUMBERS | DOOR_NUMBERS
    )


def _first_code(error: BaseException | None, is_wanted: Callable[[Code, str], bool]) -> Code | None:
    """Return the first code that is wanted, of the error or of what a database error was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        for code, kind in _codes(error):
            if is_wanted(code, kind):
                return code
        seen.add(id(error))
        error = error.__cause__ if _is_database_error(error) else None
    return None


def _codes(error: BaseException) -> Iterator[tuple[Code, str]]:
    # psycopg 3, asyncpg and others say sqlstate, psycopg2 says pgcode.
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(sqlstate, str):
        yield sqlstate, "sqlstate"
    sqlite_code = getattr(error, "sqlite_errorcode", None)
    if isinstance(sqlite_code, int):
        yield sqlite_code, "sqlite"
    # A bare number counts only in a database error: KeyError(1213) is about a key.
    number = error.args[0] if error.args and _is_database_error(error) else None
    if isinstance(number, int):
        yield number, "number"


def _is_database_error(error: BaseException) -> bool:
    """Go by PEP 249's class name, which Django, every driver and SQLAlchemy share."""
    return any(kind.__name__ == "DatabaseError" for kind in type(error).__mro__)
