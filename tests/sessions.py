"""The other sessions on a test database, as its server tells of them, and their end."""

from django.db import Error, connections

#: Per vendor: the statement that lists the clients' other sessions on this database, and the one that ends one of
#: them. PostgreSQL's autovacuum shows itself in the same list.
STATEMENTS = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
        "SELECT pg_terminate_backend(%s)",
    ),
    "mysql": (
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
        "KILL %s",
    ),
}


def other_sessions(using: str = "default") -> list[int]:
    """Return the server's numbers of the other sessions; a database without a server has none."""
    statements = STATEMENTS.get(connections[using].vendor)
    if statements is None:
        return []
    with connections[using].cursor() as cursor:
        cursor.execute(statements[0])
        return [number for (number,) in cursor.fetchall()]


def end_session(number: int, using: str = "default") -> bool:
    """Have the server end one session, and return False where it had ended by itself."""
    _, ending = STATEMENTS[connections[using].vendor]
    try:
        with connections[using].cursor() as cursor:
            cursor.execute(ending, [number])
    except Error:
        return False
    return True


def end_sessions(using: str = "default") -> int:
    """Have the server end every other session, and return how many it ended."""
    return sum(end_session(number, using) for number in other_sessions(using))
