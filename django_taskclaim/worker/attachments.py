"""What apps above this one add to every worker process: registered here, so that the worker need not know them."""

from collections.abc import Callable
from typing import Any, Protocol

from django_taskclaim.worker.records import broken


class Attachment(Protocol):
    """Something that the service thread does beside its duties, on its connection; errors are logged and stop nothing.

    It must not wait for a row that somebody has locked: the leases of the process depend on the thread going on.
    """

    def turn(self, *, busy: bool) -> bool:
        """Do what is due, several times a second; True if the database was asked and has answered."""
        ...

    def leave(self) -> bool:
        """Do what is left: the process ends."""
        ...

    def prune(self) -> bool:
        """Delete a piece of what is too old, and say whether that was all of it."""
        ...


#: Given the service of a process that starts, returns what is attached to it, or None.
Factory = Callable[[Any], "Attachment | None"]

_factories: list[Factory] = []


def attach(factory: Factory) -> None:
    """Have every worker process that starts from now on ask *factory* for an attachment."""
    if factory not in _factories:
        _factories.append(factory)


def attachments_of(service: object) -> list[Attachment]:
    """Return what is attached to a process that starts."""
    made = (_made(factory, service) for factory in _factories)
    return [one for one in made if one is not None]


def _made(factory: Factory, service: Any) -> Attachment | None:
    try:
        return factory(service)
    except Exception as error:
        broken(
            f"{service.options.name} works without an attachment, which could not be made", error
        )
        return None
