"""The handler of ``Work``, of the kind that ``TASKCLAIM_CHAOS_MODE`` names."""

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from asgiref.sync import sync_to_async

from django_taskclaim import handler
from django_taskclaim.exceptions import Permanent, RetryLater
from tests.chaos.app.acts import act_on
from tests.chaos.app.models import Work
from tests.chaos.ledger import Run

MAX_ATTEMPTS = 5
MODE = os.environ.get("TASKCLAIM_CHAOS_MODE", "plain")

Outcomes = dict[Work, BaseException | None]


def plain(row: Work) -> None:
    """Write down that it begins, that it had its effect, and that it ended."""
    run = Run([row])
    run.other("started")
    try:
        # Before the act: what an act rolls back, or swallows, takes this along.
        run.same()
        act_on(row)
    except BaseException:
        run.other("raised")
        raise
    run.other("ended")


async def coroutine(row: Work) -> None:
    await sync_to_async(plain)(row)


def batch(rows: list[Work]) -> Outcomes:
    """The same for all rows at once: some say themselves what became of them, one that raises fails the batch."""
    run = Run(rows)
    run.other("started")
    try:
        run.same()
        outcomes = {row: _outcome(row) for row in rows}
    except BaseException:
        run.other("raised")
        raise
    run.other("raised" if any(outcomes.values()) else "ended")
    return outcomes


def _outcome(row: Work) -> BaseException | None:
    try:
        act_on(row)
    except (RetryLater, Permanent) as said:
        return said
    return None


#: Each kind of handler: its function, and the options of ``@handler`` that make it one.
KINDS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "plain": (plain, {}),
    "async": (coroutine, {}),
    "batch": (batch, {"batch": True}),
    "atomic": (plain, {"atomic": True}),
    "atomic_batch": (batch, {"atomic": True, "batch": True}),
}


def is_known(mode: str) -> bool:
    """Say whether this version of the package has such handlers."""
    return set(KINDS[mode][1]) <= set(inspect.signature(handler).parameters)


_function, _options = KINDS[MODE]
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
