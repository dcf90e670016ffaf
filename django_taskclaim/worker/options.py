"""What ``claimworker`` was asked for, in a form that travels to a child."""

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from typing import Any, Self

from django.apps import apps

from django_taskclaim import conf
from django_taskclaim.handlers import Handler, handler_for
from django_taskclaim.policy import fault_of, faults
from django_taskclaim.worker.selection import narrowed


class ExitCode(IntEnum):
    """How a worker ended."""

    ENDED = 0
    #: A running handler was cut short, or children could not be kept alive.
    CUT_SHORT = 1
    USAGE = 2
    #: A drain ended with work left, because of a pause.
    WORK_LEFT = 3
    #: Between child and supervisor only: start me again.
    RECYCLE = 75


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
    max_rows: int | None = None
    #: By ``clock()``, which all processes of a machine share, so that a restarted child ends with the others.
    ends_at: float | None = None
    #: How much is said where the project's LOGGING says nothing of us: 0 trouble, 1 a summary too, 2 every change.
    verbosity: int = 1
    #: What ``--filter`` was given, as it was written: values of the database's types need not be pickled.
    filters: tuple[str, ...] = ()
    #: Touched while all is well.
    health_file: str | None = None
    #: Of the tenant for whom the command was called by django-tenants.
    schema: str | None = None

    @property
    def connections(self) -> int:
        """How many connections one process may open: each handler thread, the claimer, the service, health checks."""
        has_checks = bool(conf.setting("HEALTH_CHECKS")) or any(
            handler.health_checks for handler in self.handlers()
        )
        return self.threads + 2 + has_checks

    def named(self, number: int) -> Self:
        """Return the options of the child with this number, from 1."""
        return self if self.processes == 1 else replace(self, name=f"{self.name}-{number}")

    def handlers(self) -> list[Handler]:
        """Return the handlers asked for, with this worker's own lease, batch size and filters.

        LookupError for a model without one, SelectionError for a filter that its model does not know.
        """
        found = [self._handler(apps.get_model(label)) for label in self.labels]
        return [narrowed(handler, self.filters) for handler in found]

    def _handler(self, model: Any) -> Handler:
        if why := fault_of(model):
            raise LookupError(why)
        found = handler_for(model)
        if found is None:
            # What names no model that is known may have been meant for this one.
            if why := next((why for named, why in faults if named is None), ""):
                raise LookupError(f"{model._meta.label} has no handler, and {why}")
            raise LookupError(
                f"{model._meta.label} has no handler: write one with @handler({model.__name__}) in the claims.py of an"
                f" installed app, or give the model a process() method."
            )
        given: dict[str, Any] = {"own_lease": self.lease, "own_batch_size": self.batch_size}
        return replace(found, **{name: one for name, one in given.items() if one is not None})
