"""What is wrong with one model's claims on one database, and what to do about it; ``claimdoctor`` prints it.

What it finds are Django's check messages: an error is a problem, a warning is worth knowing (why nothing moves, or what
could be better), and an Info says that something is in order.

``examine`` changes nothing.
"""

from collections.abc import Iterator

from django.core import checks
from django.db import models

from django_taskclaim.doctor.blockers import contradictions, reasons
from django_taskclaim.doctor.setup import dead_rows, missing_index, missing_tables
from django_taskclaim.monitoring.overview import overview


def examine(model: type[models.Model], alias: str) -> Iterator[checks.CheckMessage]:
    """Yield what is wrong with *model* on the database *alias*, the gravest first."""
    if absent := list(missing_tables(model, alias)):
        yield from absent
        return
    for look in (missing_index, dead_rows, contradictions):
        yield from look(model, alias)
    yield from reasons(overview(model, alias))
