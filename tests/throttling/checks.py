"""Health checks of the tests' handlers, by the name that a test gives a worker."""

import threading

from django_taskclaim.throttling import ReplicaLag, Sql


def broken(using: str) -> None:
    raise RuntimeError("no connection to the moon")


def hanging(using: str) -> None:
    threading.Event().wait()


ROWS = Sql("SELECT COUNT(*) FROM testapp_uuidkey", at_most=0, name="rows")

CHECKS = {
    "": [],
    "rows": [ROWS],
    "odd": [broken, hanging, ROWS],
    "refused": [ReplicaLag(using="other")],
}
