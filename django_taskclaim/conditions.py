"""``--filter`` of commands: one condition of Django's ``filter()``, such as ``country=NZ``."""

from contextlib import suppress
from typing import Any

from django.core.exceptions import EmptyResultSet, FieldError, ValidationError
from django.core.management.base import CommandError
from django.db import NotSupportedError, ProgrammingError, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.constants import LOOKUP_SEP

#: How Django refuses a condition.
_REFUSALS = (FieldError, NotSupportedError, OverflowError, TypeError, ValueError, ValidationError)


def condition_of(text: str, model: type[models.Model], *, but_for: str | None = None) -> models.Q:
    """Return the condition that *text* names; CommandError if Django would refuse it, or it is on *but_for*.

    The database is not asked.
    """
    lookup, equals, value = text.partition("=")
    try:
        if not (equals and lookup.isidentifier()):
            raise ValueError("it is no filter; write lookup=value, country=NZ for example")
        if lookup.split(LOOKUP_SEP)[0] == but_for:
            raise ValueError(f"claims take open rows only; leave {but_for!r} out")
        given: Any = _value(lookup, value)
        rows: models.QuerySet[models.Model] = models.QuerySet(model)
        for one in rows.filter((lookup, given)).query.where.leaves():
            field = one.lhs.output_field
            if isinstance(field, models.BinaryField) and one.lookup_name != "isnull":
                raise ValueError("a binary column can only be asked for __isnull")
            if isinstance(field, models.DurationField) and one.lookup_name != "isnull":
                # Django takes no text for one.
                read = field.to_python
                given = [*map(read, given)] if isinstance(given, list) else read(given)
        condition = models.Q((lookup, given))
        compiler = rows.filter(condition).query.get_compiler(connection=_unconnected(rows.db))
        with suppress(EmptyResultSet, ProgrammingError):
            for number in compiler.as_sql()[1]:
                if isinstance(number, int) and abs(number) >= 2**63:
                    raise OverflowError(f"no column holds a number as large as {number}")
    except _REFUSALS as error:
        messages = error.messages if isinstance(error, ValidationError) else [str(error)]
        what = f"--filter {text}: {messages[0].rstrip('.')}."
        raise CommandError(what, returncode=2) from error
    return condition


def _unconnected(alias: str) -> BaseDatabaseWrapper:
    """Return a connection for which SQL can be written, and which raises an ``Error`` rather than connect."""
    connection = connections.create_connection(alias)
    # As Django marks one that was lost in a transaction, and must not be opened again.
    connection.in_atomic_block = connection.closed_in_transaction = True
    return connection


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
