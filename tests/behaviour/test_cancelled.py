"""A coroutine that is cancelled while it claims, as when its client goes away, leaves no row claimed for nobody."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from django_taskclaim.querysets import cancelled, claiming
from tests.behaviour.support import DEADLINE, elsewhere, facts
from tests.factories import make
from tests.testapp.models import Child, CompositeKey, Photo

pytestmark = pytest.mark.django_db(transaction=True)

ME: dict[str, Any] = {"claimed_by": "user:17", "include_held": True}


@pytest.fixture
def at_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Cancel a task once its claim has committed and before its thread has told, and let *meanwhile* happen then."""
    usual = claiming.claim

    def cancel_then(meanwhile: Callable[[], Any], model: Any, options: dict[str, Any]) -> None:
        committed, go_on = threading.Event(), threading.Event()

        def claim(*args: Any) -> Any:
            rows = usual(*args)
            if committed.is_set():
                return rows
            committed.set()
            assert go_on.wait(DEADLINE)
            return rows

        async def run() -> None:
            task = asyncio.create_task(model.objects.aclaim_batch(3, **options))
            while not committed.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, DEADLINE)
            await asyncio.to_thread(meanwhile)
            go_on.set()
            # Behind the claim: both run in the one thread of Django's connections.
            await sync_to_async(connections.close_all)()

        with monkeypatch.context() as patched:
            patched.setattr(claiming, "claim", claim)
            asyncio.run(run())

    return cancel_then


@pytest.mark.parametrize("model", [Photo, CompositeKey, Child])
@pytest.mark.parametrize("options", [{}, {"claimed_by": "user:17"}], ids=["unnamed", "named"])
def test_its_rows_go_back_uncounted(at_the_end: Any, model: Any, options: Any) -> None:
    rows = make(model, 3)
    at_the_end(lambda: None, model, options)
    assert [(facts(row).status, facts(row).attempts) for row in rows] == [("open", 0)] * 3


def test_what_a_person_held_before_stays_the_persons(at_the_end: Any) -> None:
    rows = make(Photo, 3)
    (held,) = Photo.objects.claim_batch(1, **ME)
    at_the_end(lambda: None, Photo, ME)
    assert held.claim.check()
    assert [facts(row).status for row in rows] == ["processing", "open", "open"]


def test_what_the_person_has_asked_for_again_stays_the_persons(at_the_end: Any) -> None:
    """A reload cancels the request before it, and may be faster than its thread."""
    rows = make(Photo, 3)

    def reload() -> None:
        elsewhere(lambda: Photo.objects.claim_batch(2, **ME)).result(DEADLINE)

    at_the_end(reload, Photo, ME)
    assert sorted(facts(row).status for row in rows) == ["open", "processing", "processing"]


def test_news_that_come_too_late_go_back_as_well() -> None:
    """The thread has finished, but the task is cancelled before its loop turns to it again."""
    (row,) = make(Photo)

    @async_to_sync
    async def run() -> None:
        claimed = threading.Event()

        def claim() -> list[Any]:
            rows = Photo.objects.claim_batch(1)
            claimed.set()
            return rows

        task = asyncio.create_task(cancelled.unless_cancelled(claim))
        await asyncio.sleep(0)
        # The loop stands still, so the task hears nothing.
        assert claimed.wait(DEADLINE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run()
    assert (facts(row).status, facts(row).iteration, facts(row).attempts) == ("open", 1, 0)
