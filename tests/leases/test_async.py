"""Named leases in async code."""

import asyncio
import threading
from contextlib import nullcontext
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection

from django_taskclaim import named_lease
from django_taskclaim.exceptions import LeaseUnavailable
from tests.leases.support import is_held, renewer_threads, stored
from tests.querysets.support import DEADLINE, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_tasks_of_one_loop_keep_each_other_out_and_wait_without_blocking() -> None:
    @async_to_sync
    async def run() -> list[str]:
        seen: list[str] = []
        first_in, refused = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with named_lease("report") as held:
                first_in.set()
                assert await sync_to_async(is_held)("report")
                assert await held.acheck()
                await refused.wait()
                seen.append("first")
            assert held.lost

        async def second() -> None:
            await first_in.wait()
            with pytest.raises(LeaseUnavailable):
                async with named_lease("report"):
                    pytest.fail("entered")
            refused.set()
            async with named_lease("report", wait=DEADLINE):
                seen.append("second")

        await asyncio.gather(first(), second())
        return seen

    assert run() == ["first", "second"]
    assert not is_held("report")
    wait_for(lambda: not renewer_threads())


@pytest.mark.parametrize("taking_is_slow", [False, True])
def test_a_cancelled_task_keeps_nobody_out(taking_is_slow: bool) -> None:
    """The thread that takes a lease cannot be cancelled, so what it takes is given back."""
    taking, go_on = threading.Event(), threading.Event()

    def slow(execute: Any, sql: str, *args: Any) -> Any:
        if not taking.is_set():
            taking.set()
            assert go_on.wait(DEADLINE)
        return execute(sql, *args)

    @async_to_sync
    async def run() -> None:
        entered = asyncio.Event()

        async def hold() -> None:
            async with named_lease("report", lease=600):
                entered.set()
                await asyncio.sleep(DEADLINE * 2)

        task = asyncio.create_task(hold())
        while not (entered.is_set() or taking.is_set()):
            await asyncio.sleep(0.01)
        task.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    with connection.execute_wrapper(slow) if taking_is_slow else nullcontext():
        run()
    assert stored("report").iteration > 0
    wait_for(lambda: not is_held("report"))
    wait_for(lambda: not renewer_threads())
