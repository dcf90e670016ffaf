"""What the codes of database errors mean: one table for all databases.

No driver is imported for that, so none has to be installed.
"""

from enum import Enum, auto
from typing import TypeAlias

#: PostgreSQL's SQLSTATE, the error number of MySQL and MariaDB, or SQLite's (extended) result code.
Code: TypeAlias = str | int


class Meaning(Enum):
    """What an error says of the statement that it answers."""

    #: A lock timeout, deadlock or serialization failure: others were in the way.
    CONTENTION = auto()
    #: The server can write nothing now: no disk or memory left, read-only, not in its cluster (Galera).
    SERVER = auto()
    #: The session has ended or was refused: a network or an operator, too many sessions, an account not let in.
    SESSION = auto()
    #: The statement was not taken, and nothing was done: it speaks of the rows. Every other code means this.
    REFUSAL = auto()


#: Others held a lock for longer than this session was to wait; 3572 is MySQL's NOWAIT.
LOCK_TIMEOUTS: frozenset[Code] = frozenset({"55P03", 1205, 3572})

MEANINGS: dict[Code, Meaning] = {
    # serialization_failure, deadlock_detected; deadlock, changed since the snapshot (MariaDB)
    **dict.fromkeys((*LOCK_TIMEOUTS, "40001", "40P01", 1213, 1020), Meaning.CONTENTION),
    **dict.fromkeys(
        ("25006", 1021, 1037, 1041, 1047, 1114, 1290, 1792, 1836, 3032), Meaning.SERVER
    ),
    # temp_file_limit is a limit of one statement, although its class is that of insufficient resources.
    "53400": Meaning.REFUSAL,
    # The transaction stood still or took too long; the server stops, or the network to it fails.
    **dict.fromkeys(("25P03", "25P04", 1053, 1159, 1160, 1161, 1927, 4031), Meaning.SESSION),
    # Too many sessions, or this account is not let in.
    **dict.fromkeys(
        (1040, 1042, 1043, 1044, 1045, 1049, 1129, 1130, 1203, 1226, 1698, 3118), Meaning.SESSION
    ),
}

#: Classes of SQLSTATEs: insufficient resources, system error, connection exception, operator intervention.
SQLSTATE_CLASSES = {
    "53": Meaning.SERVER,
    "58": Meaning.SERVER,
    "08": Meaning.SESSION,
    "57P": Meaning.SESSION,
}

#: Low bytes of extended codes. SQLITE_BUSY and SQLITE_LOCKED; out of memory, read-only, I/O error, corrupt, full,
#: cannot open, locking protocol, no database.
SQLITE_MEANINGS = {
    **dict.fromkeys((5, 6), Meaning.CONTENTION),
    **dict.fromkeys((7, 8, 10, 11, 13, 14, 15, 26), Meaning.SERVER),
}


def contention_code(error: BaseException | None) -> Code | None:
    """Return the database's own code if ``error`` is a lock timeout, deadlock or serialization failure.

    Returns None for every other error. The cause of a database error is looked at, too, for that is where
    Django keeps the driver's error. The cause of any other error is not: code that raised a ``ValueError``
    from a deadlock has dealt with the deadlock.
    """
    return _code(error, Meaning.CONTENTION)


def server_code(error: BaseException | None) -> Code | None:
    """Return the database's own code if ``error`` says that the server can write nothing now, else None."""
    return _code(error, Meaning.SERVER)


def refusal_code(error: BaseException | None) -> Code | None:
    """Return the database's own code if ``error`` is its answer to a statement that it does not take, else None.

    Such an answer speaks of the rows, in whichever class of errors the driver puts it, and nothing was done. It did
    not end the session.
    """
    return _code(error, Meaning.REFUSAL)


def _code(error: BaseException | None, wanted: Meaning) -> Code | None:
    """Return the code of the error, or of what a database error was raised from, if that is what it means."""
    # No chain of causes is as long, but one may lead back to its beginning.
    for _ in range(10):
        if error is None:
            break
        # PEP 249's class name, which Django, every driver and SQLAlchemy share.
        is_of_database = any(kind.__name__ == "DatabaseError" for kind in type(error).__mro__)
        # psycopg 3, asyncpg and others say sqlstate, psycopg2 says pgcode.
        sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        sqlite_code = getattr(error, "sqlite_errorcode", None)
        # A bare number counts only in a database error: KeyError(1213) is about a key.
        number = error.args[0] if error.args and is_of_database else None
        if isinstance(sqlstate, str):
            return sqlstate if _of_sqlstate(sqlstate) is wanted else None
        if isinstance(sqlite_code, int):
            meaning = SQLITE_MEANINGS.get(sqlite_code & 0xFF, Meaning.REFUSAL)
            return sqlite_code if meaning is wanted else None
        if isinstance(number, int):
            return number if _of_number(number) is wanted else None
        error = error.__cause__ if is_of_database else None
    return None


def _of_sqlstate(code: str) -> Meaning:
    classes = [kind for start, kind in SQLSTATE_CLASSES.items() if code.startswith(start)]
    return MEANINGS.get(code, classes[0] if classes else Meaning.REFUSAL)


def _of_number(code: int) -> Meaning:
    # From 2000 to 2999 the client speaks: the server is gone.
    usual = Meaning.SESSION if code // 1000 in (0, 2) else Meaning.REFUSAL
    return MEANINGS.get(code, usual)
