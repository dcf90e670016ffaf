"""The health checks that come with the package.

A check is called with the alias of the database that its models are claimed on. It returns the reason of a stop as a
text for people, or None. Classes of checks may also have ``name``.
"""

from datetime import timedelta

from django.db import connections

from django_taskclaim import conf
from django_taskclaim.monitoring.server import server_for

#: How long the statements of a check that comes with the package may take.
CHECK_TIMEOUT = timedelta(seconds=2)


class ReplicaLag:
    """Stop while the replica under the alias *using* lags more than *at_most* (seconds or a timedelta) behind.

    It stops, too, while that follows no primary.
    """

    def __init__(self, at_most: float | timedelta = 10, *, using: str) -> None:
        self.at_most = conf.DURATION.check(at_most, "at_most")
        self.using = using
        self.name = f"replica lag of {using}"

    def __call__(self, using: str) -> str | None:
        """Return the reason to stop; NotSupportedError if the database can give none."""
        server = server_for(connections[self.using])
        with server.bounded(CHECK_TIMEOUT):
            lag = server.own_lag()
        if lag is None:
            return f"replica {self.using} follows no primary"
        if lag <= self.at_most:
            return None
        seconds, limit = round(lag.total_seconds(), 1), self.at_most.total_seconds()
        return f"replica {self.using} lags {seconds:g} s, more than {limit:g} s"


class Sql:
    """Stop while the one number that *statement* gives is larger than *at_most*; NULL stops nothing.

    *name* is what people read. The statement is sent as it is, every HEALTH_EVERY by every process.
    """

    def __init__(
        self, statement: str, *, at_most: float, name: str = "", using: str | None = None
    ) -> None:
        self.statement, self.using = statement, using
        self.at_most = conf.NUMBER.check(at_most, "at_most")
        self.name = name or " ".join(statement.split())[:80]

    def __call__(self, using: str) -> str | None:
        """Return the reason to stop."""
        server = server_for(connections[self.using or using])
        with server.bounded(CHECK_TIMEOUT):
            number = server.number(self.statement)
        if number is None or number <= self.at_most:
            return None
        return f"{self.name} is {number:g}, more than {self.at_most:g}"
