"""How the messages of our checks are made."""

from django.core.checks import CheckMessage, Error, Warning

TAG = "taskclaim"


def message(number: str, text: str, hint: str, obj: object = None) -> CheckMessage:
    """Return an error for ``E…``, a warning for ``W…``."""
    kind = Error if number.startswith("E") else Warning
    return kind(text, hint=hint, obj=obj, id=f"{TAG}.{number}")
