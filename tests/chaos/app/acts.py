"""What rows of work ask of their handler: ``work``, or what may go wrong, with a detail after a colon."""

import os
import time
from collections.abc import Callable
from typing import Any

from django.db import OperationalError, connection, transaction

from django_taskclaim.exceptions import Permanent, RetryLater
from tests.chaos.app.models import Resource, Work


class HandlerError(Exception):
    """What a handler raises on purpose."""


def work(row: Work, detail: str) -> None:
    """Nothing that could go wrong."""


def save(row: Work, detail: str) -> None:
    row.save(update_fields=["signed_by", "signed_iteration"])


def sleep(row: Work, detail: str) -> None:
    time.sleep(float(detail))


def fail(row: Work, detail: str) -> None:
    """Fail so many times, or always."""
    if not detail or row.attempts < int(detail):
        raise HandlerError(f"row {row.pk} fails")


def later(row: Work, detail: str) -> None:
    if row.iteration < int(detail):
        raise RetryLater(0.2)


def permanent(row: Work, detail: str) -> None:
    raise Permanent(f"row {row.pk} can never be done")


def refuse(row: Work, detail: str) -> None:
    """Nothing: a trigger refuses the completion of such a row, see ``tests.chaos.sql``."""


def refer(row: Work, detail: str) -> None:
    """Return a reference to a row that somebody may have locked."""
    row.resource_id = int(detail)


def die(row: Work, detail: str) -> None:
    os._exit(9)


def deadlock(row: Work, detail: str) -> None:
    """Lock two resources, in the order that the row's key says."""
    with transaction.atomic():
        for number in (1, 2) if row.pk % 2 else (2, 1):
            _lock(number)
            time.sleep(0.01)


def swallow(row: Work, detail: str) -> None:
    """The same, by a handler that takes no notice when it was the victim."""
    try:
        for number in (1, 2) if row.pk % 2 else (2, 1):
            _lock(number)
    except OperationalError:
        if connection.vendor == "postgresql":
            # There the transaction says so itself with each statement that follows.
            raise


def _lock(number: int) -> None:
    rows: Any = Resource.objects.filter(pk=number)
    if connection.features.has_select_for_update and connection.in_atomic_block:
        rows = rows.select_for_update()
    list(rows)


ACTS: dict[str, Callable[[Work, str], None]] = {
    act.__name__: act
    for act in (work, save, sleep, fail, later, permanent, refuse, refer, die, deadlock, swallow)
}


def act_on(row: Work) -> None:
    """Sign the row and do what it asks."""
    row.signed_by, row.signed_iteration = row.claim.token
    name, _, detail = row.act.partition(":")
    ACTS[name](row, detail)
