"""A coroutine that is cancelled while it claims, as when its client goes away, leaves no row claimed for nobody."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from django_taskclaim.signals import rows_claimed
from tests.factories import make
from tests.querysets.support import DEADLINE, elsewhere, facts
from tests.testapp.models import Child, Photo

pytestmark = pytest.mark.django_db(transaction=True)

ME: dict[str, Any] = {"claimed_by": "user:17", "include_held": True}


def cancelled(meanwhile: Callable[[], Any], model: Any, options: dict[str, Any]) -> None:
    """Cancel a task once its claim has committed and before its thread has told, and let *meanwhile* happen then."""
    committed, go_on = threading.Event(), threading.Event()

    def hold(**facts: Any) -> None:
        if not committed.is_set():
            committed.set()
            assert go_on.wait(DEADLINE)

    async def run() -> None:
        task = asyncio.create_task(model.objects.aclaim_batch(3, **options))
        assert await asyncio.to_thread(committed.wait, DEADLINE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, DEADLINE)
        await asyncio.to_thread(meanwhile)
        go_on.set()
        # Behind the claim: both run in the one thread of Django's connections.
        await sync_to_async(connections.close_all)()

    rows_claimed.connect(hold)
    try:
        asyncio.run(run())
    finally:
        rows_claimed.disconnect(hold)


def test_its_rows_go_back_uncounted() -> None:
    rows = make(Child, 3)
    cancelled(lambda: None, Child, {})
    assert [(facts(row).status, facts(row).attempts) for row in rows] == [("open", 0)] * 3


def test_what_a_person_holds_stays_the_persons() -> None:
    """A reload cancels the request before it, and may be faster than its thread."""
    rows = make(Photo, 3)
    (held,) = Photo.objects.claim_batch(1, **ME)
    seen: list[Any] = []

    def reload() -> None:
        seen.extend(elsewhere(lambda: Photo.objects.claim_batch(2, **ME)).result(DEADLINE))

    cancelled(reload, Photo, ME)
    for row in (held, *seen):
        assert row.claim.check()
    assert {facts(row).claimed_by for row in rows} == {"user:17"}
