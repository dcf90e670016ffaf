"""Which errors are contention. No driver is imported to tell, so none has to be installed."""

from typing import TypeAlias, cast

#: PostgreSQL's SQLSTATE, the error number of MySQL and MariaDB, or SQLite's (extended) result code.
Code: TypeAlias = str | int

# serialization_failure, deadlock_detected, lock_not_available
SQLSTATES = frozenset({"40001", "40P01", "55P03"})
# Lock wait timeout, deadlock, changed since the snapshot (MariaDB), NOWAIT (MySQL)
MYSQL_NUMBERS = frozenset({1205, 1213, 1020, 3572})
# SQLITE_BUSY and SQLITE_LOCKED, each also the low byte of its extended codes
SQLITE_CODES = frozenset({5, 6})


def contention_code(error: BaseException | None) -> Code | None:
    """Return the database's own code if ``error`` is a lock timeout, deadlock or serialization failure.

    Returns None for every other error. The cause of a database error is looked at, too, for that is where
    Django keeps the driver's error. The cause of any other error is not: whoever raised a ``ValueError``
    from a deadlock has dealt with the deadlock.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if (code := _own_code(error)) is not None:
            return code
        seen.add(id(error))
        error = error.__cause__ if _is_database_error(error) else None
    return None


def _own_code(error: BaseException) -> Code | None:
    # psycopg 3, asyncpg and others say sqlstate, psycopg2 says pgcode.
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(sqlstate, str) and sqlstate in SQLSTATES:
        return sqlstate
    sqlite_code = getattr(error, "sqlite_errorcode", None)
    if isinstance(sqlite_code, int) and sqlite_code & 0xFF in SQLITE_CODES:
        return sqlite_code
    # A bare number counts only in a database error: KeyError(1213) is about a key.
    number = error.args[0] if error.args and _is_database_error(error) else None
    return cast("int", number) if number in MYSQL_NUMBERS else None


def _is_database_error(error: BaseException) -> bool:
    """Go by PEP 249's class name, which Django, every driver and SQLAlchemy share."""
    return any(kind.__name__ == "DatabaseError" for kind in type(error).__mro__)
