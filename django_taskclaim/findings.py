"""What a system check finds, as Django's check message: a sentence, and a hint that says what to do."""

from django.core.checks import CheckMessage, Error, Warning

TAG = "taskclaim"


def message(number: str, text: str, hint: str, obj: object = None) -> CheckMessage:
    """Return an error for ``E…``, a warning for ``W…``."""
    kind = Error if number.startswith("E") else Warning
    return kind(text, hint=hint, obj=obj, id=f"{TAG}.{number}")
