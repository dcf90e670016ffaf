"""``--filter`` of commands: one condition of Django's ``filter()``, such as ``country=NZ``."""

from django.core.exceptions import FieldError, ValidationError
from django.core.management.base import CommandError
from django.db import models
from django.db.models.constants import LOOKUP_SEP


def condition_of(text: str, model: type[models.Model], *, but_for: str = "") -> models.Q:
    """Return the condition that *text* names; CommandError if ``filter()`` would refuse it, or it is on *but_for*.

    The database is not asked.
    """
    lookup, equals, value = text.partition("=")
    try:
        if not (equals and lookup.isidentifier()):
            raise ValueError("it is no filter; write lookup=value, country=NZ for example")
        if lookup.split(LOOKUP_SEP)[0] == but_for:
            raise ValueError(f"claims take open rows only; leave {but_for!r} out")
        condition = models.Q((lookup, _value(lookup, value)))
        models.QuerySet(model).filter(condition)
    except (FieldError, TypeError, ValueError, ValidationError) as error:
        messages = error.messages if isinstance(error, ValidationError) else [str(error)]
        what = f"--filter {text}: {messages[0].rstrip('.')}."
        raise CommandError(what, returncode=2) from error
    return condition


def _value(lookup: str, text: str) -> object:
    """Return the value for ``filter()``: the text itself, but for lookups that take no text."""
    path, _, last = lookup.rpartition(LOOKUP_SEP)
    if path and last == "isnull":
        return models.BooleanField().to_python(text.capitalize())
    if not path or last not in ("in", "range"):
        return text
    parts = text.split(",")
    if last == "range" and len(parts) != 2:
        raise ValueError("a range has two ends, as in width__range=1,9")
    return parts
