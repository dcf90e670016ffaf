"""The handler of ``Work``, of the kind that ``TASKCLAIM_CHAOS_MODE`` names, and what rows ask of it."""

import os
import time
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, transaction

from django_taskclaim import handler
from django_taskclaim.exceptions import Permanent, RetryLater
from tests.chaos.app.models import Resource, Work
from tests.chaos.history import Run

MAX_ATTEMPTS = 5


def fail(row: Work, detail: str) -> None:
    """Fail so many times, or always."""
    if not detail or row.attempts < int(detail):
        raise ValueError(f"row {row.pk} fails")


def later(row: Work, detail: str) -> None:
    if row.iteration < int(detail):
        raise RetryLater(0.2)


def permanent(row: Work, detail: str) -> None:
    raise Permanent(f"row {row.pk} can never be done")


def refer(row: Work, detail: str) -> None:
    """Return a reference to a row that somebody may have locked."""
    row.resource_id = int(detail)


def deadlock(row: Work, detail: str) -> None:
    """Lock two resources, in the order that the row's key says."""
    with transaction.atomic():
        lock_both(row)


def swallow(row: Work, detail: str) -> None:
    """The same, by a handler that takes no notice when it was the victim."""
    try:
        lock_both(row)
    except OperationalError:
        if connection.vendor == "postgresql":
            # There the transaction says so itself with each statement that follows.
            raise


def lock_both(row: Work) -> None:
    for number in (1, 2) if row.pk % 2 else (2, 1):
        rows: Any = Resource.objects.filter(pk=number)
        if connection.features.has_select_for_update and connection.in_atomic_block:
            rows = rows.select_for_update()
        list(rows)
        time.sleep(0.01)


#: What may go wrong with a row; its detail stands behind a colon. A trigger refuses the completion of "refuse".
ACTS: dict[str, Callable[[Work, str], object]] = {
    "work": lambda row, detail: None,
    "refuse": lambda row, detail: None,
    "save": lambda row, detail: row.save(update_fields=["signed_by", "signed_iteration"]),
    "sleep": lambda row, detail: time.sleep(float(detail)),
    "die": lambda row, detail: os._exit(9),
    "fail": fail,
    "later": later,
    "permanent": permanent,
    "refer": refer,
    "deadlock": deadlock,
    "swallow": swallow,
}


def act_on(row: Work) -> None:
    """Sign the row and do what it asks."""
    row.signed_by, row.signed_iteration = row.claim.token
    name, _, detail = row.act.partition(":")
    ACTS[name](row, detail)


def plain(row: Work) -> None:
    with Run([row]):
        act_on(row)


async def coroutine(row: Work) -> None:
    await sync_to_async(plain)(row)


def batch(rows: list[Work]) -> dict[Work, BaseException | None]:
    """Some rows say themselves what became of them; one that raises fails the batch."""
    with Run(rows) as run:
        outcomes = {row: _outcome(row) for row in rows}
        run.raised = any(outcomes.values())
    return outcomes


def _outcome(row: Work) -> BaseException | None:
    try:
        act_on(row)
    except (RetryLater, Permanent) as said:
        return said
    return None


#: Each kind of handler: its function, and the options of ``@handler`` that make it one.
MODES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plain": (plain, {}),
    "async": (coroutine, {}),
    "batch": (batch, {"batch": True}),
    "atomic": (plain, {"atomic": True}),
    "atomic_batch": (batch, {"atomic": True, "batch": True}),
}
_function, _options = MODES[os.environ.get("TASKCLAIM_CHAOS_MODE", "plain")]
handler(
    Work,
    queryset=Work.objects.filter(wanted=True),
    update_fields=["signed_by", "signed_iteration", "resource"],
    max_attempts=MAX_ATTEMPTS,
    backoff=lambda failures: 0.2,
    # On SQLite an atomic handler is the one writer, and may be for a quarter of the lease.
    timeout=float(os.environ.get("TASKCLAIM_CHAOS_TIMEOUT", "60")),
    **_options,
)(_function)
