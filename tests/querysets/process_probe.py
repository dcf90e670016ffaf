"""Run as a process of its own: takes pickled claimed rows from standard input, and pickles what came of them.

``python -m tests.querysets.process_probe <act>``
"""

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import django
from django.db import connection, connections


def complete(rows: list[Any]) -> tuple[list[Any], list[Any]]:
    """Finish the rows as the process that claimed them would; return the written ones and the lost keys."""
    from django_taskclaim.exceptions import ClaimLost

    for row in rows:
        assert row.claim.remaining() is None, "the clock of another process says nothing here"
        assert not row.claim.lost
        row.note = f"by {os.getpid()}"
    try:
        type(rows[0]).objects.complete(rows, update_fields=["note"])
    except ClaimLost as error:
        return [row for row in rows if row not in error.lost], [row.pk for row in error.lost]
    return rows, []


def fork(rows: list[Any]) -> Any:
    """Fork twice while holding claims: once with the connection left open, once with it closed first."""
    told: dict[str, Any] = {}
    ours, childs = rows
    session = connection.ensure_connection() or connection.connection
    told["a look"] = in_a_fork(lambda: look(childs))
    told["the same session"] = ours.claim.check() and connection.connection is session
    connections.close_all()
    told["a verb"] = in_a_fork(childs.claim.complete)
    ours.claim.complete()
    told["its copy here"] = refused(childs.claim.complete)
    return told


def look(row: Any) -> None:
    """Everything that a claim answers by itself; its answers may not come through the parent's connection."""

    def forbidden(*args: Any) -> NoReturn:
        raise AssertionError("a query was sent over the connection of the parent")

    with connection.execute_wrapper(forbidden):
        assert not row.claim.lost
        assert row.claim.token.holder
        assert row.claim.remaining() is None
        repr(row.claim)
        again = pickle.loads(pickle.dumps(row))
        assert again.claim.token == row.claim.token


def in_a_fork(act: Callable[[], Any]) -> str:
    """Return what came of *act* in a child, which leaves without closing anything of its parent's."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            act()
            said = "done"
        except BaseException as error:
            said = repr(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        return answer.read()


def refused(act: Callable[[], Any]) -> str:
    from django_taskclaim.exceptions import ClaimLost

    try:
        act()
    except ClaimLost:
        return "lost"
    return "done"


def main() -> None:
    django.setup()
    acts = {"complete": complete, "fork": fork}
    answer = acts[sys.argv[1]](pickle.load(sys.stdin.buffer))
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    main()
