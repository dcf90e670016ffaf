"""How the messages of our checks are made."""

from typing import TYPE_CHECKING

from django.core.checks import CheckMessage, Error, Warning

if TYPE_CHECKING:
    from django_taskclaim.monitoring.server import Fault

TAG = "taskclaim"


def message(number: str, text: str, hint: str, obj: object = None) -> CheckMessage:
    """Return an error for ``E…``, a warning for ``W…``."""
    kind = Error if number.startswith("E") else Warning
    return kind(text, hint=hint, obj=obj, id=f"{TAG}.{number}")


def from_fault(fault: "Fault") -> CheckMessage:
    """Return what a server, or its settings, break as a message."""
    return message(fault.id, fault.message, fault.hint)
