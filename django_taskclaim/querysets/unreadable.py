"""Claimed rows that cannot be read: a value that the driver refuses, a field or a constructor that raises.

Such a row fails alone, with that error, as if its handler had raised it. The others of its claim are handed out.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from django.db import connections, models, transaction

from django_taskclaim.claim import carried_claim
from django_taskclaim.columns import claim_columns
from django_taskclaim.db import dialect_for
from django_taskclaim.error_text import describe
from django_taskclaim.exceptions import ClaimLost, TaskClaimError
from django_taskclaim.querysets.failing import fail
from django_taskclaim.states import Status

T = TypeVar("T")

logger = logging.getLogger("django_taskclaim")


def may_be_of_a_row(error: Exception, using: str) -> bool:
    """Say whether *error* may be that one row cannot be read; not where the database is away or contended."""
    if isinstance(error, TaskClaimError):
        return False
    return dialect_for(connections[using]).may_be_of_reading(error)


def isolate_unreadable(
    given: Sequence[T], read: Callable[[Sequence[T]], object], rows: "models.QuerySet[Any]"
) -> list[tuple[T, Exception]]:
    """Have *read* read all that it can of what is *given*, and return what it cannot, each with the error.

    Halves of a part that it cannot read are tried until each is alone. An error that is not a row's passes on: one of
    the database, or one that also comes where *rows*, what it reads of, are none.
    """
    unreadable: list[tuple[T, Exception]] = []
    todo = [given] if given else []
    while todo:
        part = todo.pop()
        try:
            with transaction.atomic(using=rows.db):
                read(part)
        except Exception as error:
            if not may_be_of_a_row(error, rows.db):
                raise
            half = len(part) // 2
            if half:
                todo += [part[half:], part[:half]]
                continue
            if not unreadable:
                list(rows.extra(where=["1 = 0"]))
            unreadable.append((part[0], error))
    return unreadable


def fail_unreadable(unreadable: Iterable[tuple[models.Model, Exception]]) -> None:
    """Fail claimed rows that cannot be read, each with its error and by its policy, and log them.

    What cannot be failed either waits for the end of its lease, and keeps nobody from the other rows.
    """
    for row, error in unreadable:
        key, label = carried_claim(row).pk, row._meta.label
        said, level = "it is tried again by its policy", logging.WARNING
        try:
            fail([row], error, retry=True)
        except ClaimLost:
            # Which is logged already.
            continue
        except Exception as refused:
            said, level = f"it could not be failed ({describe(refused)})", logging.ERROR
        if row.__dict__.get(claim_columns(type(row)).status.attname) == Status.FAILED:
            said, level = "it has failed", logging.ERROR
        logger.log(
            level,
            "%s %s cannot be read, so %s: %s. The other rows go on.",
            label,
            key,
            said,
            describe(error).rstrip("."),
            extra={"event": "unreadable", "model": label, "rows": 1, "keys": [str(key)]},
        )
