"""What ``claimworker`` was asked for, in a form that travels to a child, and what follows from it.

That is which rows a worker is for, ``--filter country=NZ`` and the like.
"""

import math
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from typing import Any, Self

from django.apps import apps

from django_taskclaim.columns import claim_columns
from django_taskclaim.conditions import condition_of
from django_taskclaim.handlers import Handler, handler_for

HOW_TO_HANDLE = "write one with @handler(…) in the claims.py of an installed app, or give the model a process() method"


class ExitCode(IntEnum):
    """How a worker ended."""

    ENDED = 0
    #: A running handler was cut short, or children could not be kept alive.
    CUT_SHORT = 1
    USAGE = 2
    #: A drain ended with work left: a pause, a throttle, or rows that the database refuses to write.
    WORK_LEFT = 3
    #: Between child and supervisor only: start me again.
    RECYCLE = 75


#: How many seconds running rows may go on after a second signal, instead of the grace period.
NOW = 0.5
#: How many seconds a process may need after that or the grace period, before it is ended by force.
AFTER_GRACE = 4.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of one ``claimworker``; a field left None follows the handler or the settings."""

    labels: tuple[str, ...]
    name: str
    using: str
    processes: int = 1
    threads: int = 1
    batch_size: int | None = None
    lease: timedelta | None = None
    poll: timedelta = timedelta(seconds=1)
    grace: timedelta = timedelta(seconds=8)
    drain: bool = False
    max_rows: float = math.inf
    #: By ``clock()``, which all processes of a machine share, so that a restarted child ends with the others.
    ends_at: float = math.inf
    #: What is logged if the project's LOGGING has no handler for the package: 0 trouble, 1 a summary too, 2 everything.
    verbosity: int = 1
    #: ``--filter`` as it was written, so that no value of the database's types has to be pickled.
    filters: tuple[str, ...] = ()
    #: Touched while all is well.
    health_file: str | None = None
    #: Of the tenant for whom the command was called by django-tenants.
    schema: str | None = None

    @property
    def connections(self) -> int:
        """How many connections one process may open: each handler thread, the claimer, the service, health checks.

        Coroutines have one of their own beside the threads of other handlers.
        """
        handlers = self.handlers()
        is_mixed = len({handler.is_async for handler in handlers}) > 1
        return self.threads + 2 + is_mixed + any(handler.health_checks for handler in handlers)

    def named(self, number: int) -> Self:
        """Return the options of the child with this number, from 1."""
        return self if self.processes == 1 else replace(self, name=f"{self.name}-{number}")

    def handlers(self) -> list[Handler]:
        """Return the handlers asked for, with this worker's own lease, batch size and filters.

        LookupError for a model without one, CommandError for a filter that its model does not know.
        """
        return [self._handler(apps.get_model(label)) for label in self.labels]

    def _handler(self, model: Any) -> Handler:
        found = handler_for(model)
        if found is None:
            raise LookupError(f"{model._meta.label} has no handler: {HOW_TO_HANDLE}.")
        lease, size = self.lease or found.own_lease, self.batch_size or found.own_batch_size
        status = claim_columns(model).status.name
        conditions = [condition_of(text, model, but_for=status) for text in self.filters]
        queryset = found.rows().filter(*conditions) if conditions else found.queryset
        return replace(found, own_lease=lease, own_batch_size=size, queryset=queryset)
