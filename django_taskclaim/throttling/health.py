"""The health checks that come with the package: each compares one number of the database's with a limit."""

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import connections

from django_taskclaim.conf import positive_duration
from django_taskclaim.throttling.answers import Answer, Surroundings, ok, stop

if TYPE_CHECKING:
    # Loaded at the first question, for its module needs configured settings.
    from django_taskclaim.monitoring.server import Refusal, Server

#: How long the statements of a check may take: the thread that waits for them has leases to renew.
PATIENCE = timedelta(seconds=2)


class ServerCheck:
    """A check that asks the database one bounded question, so it may be asked where leases are renewed."""

    #: The alias that is asked; None is the one that the model is claimed on.
    using: str | None = None

    def __call__(self, where: Surroundings) -> Answer:
        server = self._server(where)
        with server.bounded(PATIENCE):
            return self.judge(server, where)

    def judge(self, server: "Server", where: Surroundings) -> Answer:
        """Compare what the database says with the limit."""
        raise NotImplementedError

    def asks(self, using: str) -> bool:
        """Say whether this check asks the database *using* itself, and no other."""
        return self.using in {None, using}

    def refusals(self, where: Surroundings, *, ask: bool) -> Iterator["Refusal"]:
        """Yield why the check would be worthless there; with *ask* the server is asked as well."""
        question = self.question()
        server = self._server(where)
        found = server.refusal(question)
        if found is None and ask:
            found = server.denied(question)
        if found is not None:
            yield found

    def question(self) -> str:
        """Return the name of the method of ``Server`` that this check asks."""
        raise NotImplementedError

    def _server(self, where: Surroundings) -> "Server":
        from django_taskclaim.monitoring.server import server_for

        return server_for(connections[self.using or where.using])


class ReplicaLag(ServerCheck):
    """Stop while a replica lags more than *at_most* (seconds or a timedelta) behind.

    On PostgreSQL the primary is asked about all replicas connected to it, and *replicas* says how many there must be
    at least; a replica that is gone lags nowhere. With *using*, on every database, the replica under that alias is
    asked, and it must follow its primary.
    """

    def __init__(
        self, at_most: float | timedelta = 10, *, using: str | None = None, replicas: int = 0
    ) -> None:
        self.at_most = positive_duration(at_most, "at_most")
        self.using = using
        self.replicas = replicas

    def __str__(self) -> str:
        return "replica lag" if self.using is None else f"replica lag of {self.using}"

    def question(self) -> str:
        return "replicas" if self.using is None else "own_lag"

    def judge(self, server: "Server", where: Surroundings) -> Answer:
        return self._of_primary(server) if self.using is None else self._of_replica(server)

    def _of_primary(self, server: "Server") -> Answer:
        known = server.replicas()
        if len(known) < self.replicas:
            return stop(f"{len(known)} of {self.replicas} replicas are connected")
        worst = max(known, key=lambda replica: replica.lag, default=None)
        if worst is None or worst.lag <= self.at_most:
            return ok()
        return stop(f"replica {worst.name} lags {_over(worst.lag, self.at_most)}")

    def _of_replica(self, server: "Server") -> Answer:
        lag = server.own_lag()
        if lag is None:
            return stop(f"replica {self.using} does not follow its primary")
        return (
            ok()
            if lag <= self.at_most
            else stop(f"replica {self.using} lags {_over(lag, self.at_most)}")
        )


class Sql(ServerCheck):
    """Stop while the one number that *statement* gives is larger than *at_most*; NULL is no number and well.

    *name* is what people read. The statement is sent as it is, every HEALTH_EVERY by every process.
    """

    def __init__(
        self, statement: str, *, at_most: float, name: str = "", using: str | None = None
    ) -> None:
        self.statement = statement
        self.at_most = at_most
        self.using = using
        self.name = name or " ".join(statement.split())[:80]

    def __str__(self) -> str:
        return self.name

    def refusals(self, where: Surroundings, *, ask: bool) -> Iterator["Refusal"]:
        # Every database answers some SQL; whether this is some is seen when it is asked.
        yield from ()

    def judge(self, server: "Server", where: Surroundings) -> Answer:
        number = server.number(self.statement)
        if number is None or number <= self.at_most:
            return ok()
        return stop(f"{self.name} is {number:g}, more than {self.at_most:g}")


def _over(found: timedelta, limit: timedelta) -> str:
    return f"{round(found.total_seconds(), 1):g} s, more than {limit.total_seconds():g} s"
