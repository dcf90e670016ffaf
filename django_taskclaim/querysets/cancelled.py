"""Claims of coroutines that are cancelled: no thread can be, so what it claims meanwhile is given back."""

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import models

from django_taskclaim.claim import carried_claim
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets.failing import release
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.states import WORKER_MARK

M = TypeVar("M", bound=models.Model)

logger = logging.getLogger("django_taskclaim")

#: What a database's clock may lose of a lease.
ROUNDING = timedelta(milliseconds=2)


async def unless_cancelled(claim: Callable[[], list[M]]) -> list[M]:
    """Return what *claim* claims in Django's thread; it goes back, uncounted, where the task is cancelled meanwhile."""
    rows: list[M] = []
    lock, cancelled = threading.Lock(), threading.Event()

    def claim_here() -> None:
        claimed = claim()
        with lock:
            if not cancelled.is_set():
                rows.extend(claimed)
                return
        _give_back(claimed)

    try:
        await sync_to_async(claim_here)()
    except asyncio.CancelledError:
        with lock:
            cancelled.set()
        if rows:
            # The thread had finished, and the news of it came too late.
            await asyncio.shield(asyncio.ensure_future(sync_to_async(_give_back)(rows)))
        raise
    return rows


def _give_back(rows: list[Any]) -> None:
    """Give newly claimed rows back; what its holder had before, or has asked for again, stays the holder's."""
    rows = [row for row in rows if not carried_claim(row).held_before]
    if not rows:
        return
    claim, label = carried_claim(rows[0]), rows[0]._meta.label
    target = ClaimTarget.of(type(rows[0]), claim.alias)
    try:
        if WORKER_MARK in claim.token.holder:
            release(rows, None)
        else:
            with target.dialect.own_transaction():
                target.lock_holder(claim.token.holder)
                rows = _not_extended(rows, target)
                release(rows, None)
    except ClaimLost:
        # An operator, or the reaper, has been faster.
        return
    except Exception:
        logger.exception(
            "%d rows of %s were claimed for a coroutine that was cancelled, and could not be given back; they wait for"
            " the end of their lease",
            len(rows),
            label,
            extra={"event": "trouble", "model": label, "rows": len(rows)},
        )
        return
    logger.info(
        "%d rows of %s were given back: the coroutine that claimed them was cancelled",
        len(rows),
        label,
        extra={"event": "released", "model": label, "rows": len(rows)},
    )


def _not_extended(rows: list[Any], target: ClaimTarget) -> list[Any]:
    """Return those of a named holder's rows that no later call has returned to it, as a reload of its page does."""
    columns, lease = target.columns, carried_claim(rows[0]).lease
    fields = [*columns.key, columns.claimed_at, columns.expires_at]
    stored = target.rows.filter(pk__in=[carried_claim(row).pk for row in rows])
    fresh = {
        target.table.key_of(found)
        for found in stored.values_list(*(field.attname for field in fields))
        if found[-2] and found[-1] and found[-1] - found[-2] <= lease + ROUNDING
    }
    return [row for row in rows if carried_claim(row).pk in fresh]
