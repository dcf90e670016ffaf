"""Claims of coroutines that are cancelled: no thread can be, so what it claims meanwhile is given back."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import models

from django_taskclaim.claim import carried_claim
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets.failing import release
from django_taskclaim.states import WORKER_MARK

M = TypeVar("M", bound=models.Model)

logger = logging.getLogger("django_taskclaim")


async def unless_cancelled(claim: Callable[[], list[M]]) -> list[M]:
    """Return what *claim* claims in Django's thread; it goes back where the task is cancelled meanwhile."""
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
            # The thread had finished, but the task was cancelled before it learned of that.
            await asyncio.shield(asyncio.ensure_future(sync_to_async(_give_back)(rows)))
        raise
    return rows


def _give_back(rows: list[Any]) -> None:
    """Give rows back uncounted; those of a name of the caller's stay: the next request of that name returns them."""
    if not rows or WORKER_MARK not in carried_claim(rows[0]).token.holder:
        return
    facts = {"model": rows[0]._meta.label, "rows": len(rows)}
    try:
        release(rows, None)
    except ClaimLost:
        # An operator, or the reaper, was faster; that is logged already.
        return
    except Exception:
        text = "%(rows)d rows of %(model)s wait for the end of their lease: their coroutine was cancelled"
        logger.exception(text, facts, extra={"event": "trouble", **facts})
    else:
        text = "%(rows)d rows of %(model)s were given back: the coroutine that claimed them was cancelled"
        logger.info(text, facts, extra={"event": "released", **facts})
